"""Captured models, kept on disk by content: a second command neither runs nor imports the library or the function."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

import simpar
from simpar.architectures import graph as graphs
from simpar.architectures.graph import ModelGraph
from simpar.dataclass import dataclass
from simpar.kept import cache_folder, keep
from simpar.tracing import own_code
from simpar.tracing.library import installed, require_library

FORMAT = 1
"""Of the files of kept captures."""


def captured_model(config: Mapping[str, Any], class_name: str, name: str, seq_len: int, why: str) -> ModelGraph:
    """The graph of the installed library's module for a config, for sequences of ``seq_len`` tokens.

    ``class_name`` chooses the class ("": the one for causal language models); ``why`` says why the module is asked for
    and begins errors. Raises UserError without torch or the class, and where it cannot be captured.
    """
    require_library(why)
    path = cache_folder("captures") / f"{_digest(config, class_name, seq_len)}.json"
    graph = _kept(path)
    if graph is None:
        from simpar.tracing.graph import trace_library  # late: it imports torch

        graph = trace_library(config, class_name, name, seq_len, why)
        keep(path, _adapter().dump_json(graph))
    return replace(graph, name=name)


@dataclass(frozen=True)
class _OfFunction:
    """What a function of the user's gave, and the stamps of the files on which that hung."""

    reads: Mapping[str, str]
    graph: ModelGraph


def function_model(name: str, seq_len: int) -> ModelGraph:
    """The graph of the torch module that the user's ``module:function`` returns, for sequences of ``seq_len`` tokens.

    The function runs again where a file that it read, an installed package or the environment has changed. Raises
    UserError.
    """
    path = cache_folder("captures") / f"{_digest({'function': name}, own_code.environment(), seq_len)}.json"
    loaded = own_code.is_loaded(name)
    if not loaded and (known := _kept_function(path)) is not None:
        return known
    from simpar.tracing.graph import trace_code  # late: it imports torch

    with own_code.watched_reads() as opened:
        graph = trace_code(name, seq_len)
    if not loaded:
        keep(path, _function_adapter().dump_json(_OfFunction(own_code.depended_on(opened), graph)))
    return graph


def _kept_function(path: Path) -> ModelGraph | None:
    """The graph in a file; None where there is none, or where something on which it hangs has changed."""
    try:
        kept = _function_adapter().validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return kept.graph if all(own_code.stamp(each) == known for each, known in kept.reads.items()) else None


@lru_cache(maxsize=1)
def _function_adapter() -> TypeAdapter[_OfFunction]:
    return TypeAdapter(_OfFunction)


def _digest(config: Mapping[str, Any], class_name: str, seq_len: int) -> str:
    """Everything on which a capture depends: the config, the library's versions and the code that captures."""
    said = json.dumps(
        [FORMAT, config, class_name, seq_len, *installed(), simpar.__version__], sort_keys=True, default=str
    )
    return hashlib.sha256(said.encode() + _code()).hexdigest()


@lru_cache(maxsize=1)
def _code() -> bytes:
    """The sources of this room and of graphs, so that a changed checkout keeps no stale captures."""
    paths = [*sorted(Path(__file__).parent.glob("*.py")), Path(graphs.__file__)]
    return b"".join(path.read_bytes() for path in paths if path.is_file())


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[ModelGraph]:
    return TypeAdapter(ModelGraph)


def _kept(path: Path) -> ModelGraph | None:
    """The graph in a file; None where there is none, or where it was cut short."""
    try:
        return _adapter().validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None

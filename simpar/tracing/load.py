"""Load a model: by name, by a config that simpar or an installed library knows, or by a function of the user's."""

from collections.abc import Mapping
from typing import Any

from simpar.architectures.catalogue import find_config
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read, reason_unread
from simpar.tracing.code import LIBRARY, class_of, is_code

DEFAULT_SEQ_LEN = 256


def load_model(name: str, *, seq_len: int = DEFAULT_SEQ_LEN) -> ModelGraph:
    """A model of the catalogue, the path of a config.json, or ``module:function``, which runs the user's code.

    A config whose family is not declared is captured from the installed transformers, in the class that a colon behind
    the path names, else in its own; ``transformers:CLASS`` is a class with its default config. What is captured or
    returned by a function is traced with sequences of ``seq_len`` tokens. Raises UserError for an unknown name, a file
    that cannot be read and a module that cannot be traced.

    >>> model = load_model("llama-3-8b")
    >>> len(model.layers), model.num_parameters()
    (32, 8030261248)
    """
    where, class_name = class_of(name)
    if class_name:
        config = {} if where == LIBRARY else find_config(where)[0]
        return _captured(config, class_name, name, seq_len, f"model = {name}")
    if is_code(name):
        from simpar.tracing.captures import function_model  # late: models of the catalogue need no tracing

        return function_model(name, seq_len)
    return load_config(*find_config(name), seq_len=seq_len)


def load_config(config: Mapping[str, Any], name: str, *, seq_len: int = DEFAULT_SEQ_LEN) -> ModelGraph:
    """The graph of a config: of its declared family, else captured from the installed library. Raises UserError."""
    why = reason_unread(config, name)
    return _captured(config, "", name, seq_len, why) if why else read(config, name)


def _captured(config: Mapping[str, Any], class_name: str, name: str, seq_len: int, why: str) -> ModelGraph:
    from simpar.tracing.captures import captured_model  # late: declared models need none of it

    return captured_model(config, class_name, name, seq_len, why)

"""Loops over the tokens of a sequence, one elementwise update after the other: training runs a kernel that passes once.

Such code reads gates and values [batch, seq, channels], carries a state of as many channels, and makes a tensor like
the values: the time mixing of RWKV [arXiv 2305.13048] and the gated recurrence of Griffin [arXiv 2402.19427].
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simpar.tracing.fused import Note
from simpar.tracing.vocabulary import SCAN

LOOPS: Mapping[str, tuple[str, ...]] = {
    "rwkv_linear_attention": ("value", "key", "time_decay", "time_first"),
    "_rnn_scan": ("hidden_states", "recurrent_gate"),
}
"""Functions and methods of transformers that loop, and what they read: first what their output is like."""


@contextmanager
def whole_scans(module: Any, note: Note) -> Iterator[None]:
    """While it lasts, loops of ``module`` and its parts record their pass over the sequence as one call."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for place in {type(each).__module__ for each in module.modules()}:
        names = vars(sys.modules[place])
        for name in LOOPS.keys() & names.keys():
            replaced.append((names, name, names[name]))
            names[name] = _recorded(names[name], LOOPS[name], note)
    parts = [(each, name) for each in module.modules() for name in LOOPS if hasattr(type(each), name)]
    for each, name in parts:
        setattr(each, name, _recorded(getattr(each, name), LOOPS[name], note))
    try:
        yield
    finally:
        for names, name, function in replaced:
            names[name] = function
        for each, name in parts:
            delattr(each, name)


def _recorded(function: Any, reads: tuple[str, ...], note: Note) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def run(*args: Any, **kwargs: Any) -> tuple[Any, None]:
        bound = signature.bind(*args, **kwargs).arguments
        return note(SCAN, tuple(bound[name] for name in reads), bound[reads[0]]), None

    return run

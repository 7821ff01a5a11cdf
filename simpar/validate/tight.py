"""Runs whose printed settings need more memory than their devices have: what they must have done without saying it.

They ran, so something was recomputed or kept in fewer bits. Taken is what costs the least of what frameworks offer:
Megatron-Core keeps inputs of gated activations in 8 bits (``activation_func_fp8_input_store``) beside 8-bit products,
and all recompute so many whole layers of every stage. Nothing here looks at how long a run took.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from simpar.models.recompute import FULL, NONE, by_layer
from simpar.validate.cells import Unmodelled
from simpar.validate.predict import Prediction, predict
from simpar.validate.row_plan import MEGATRONS
from simpar.validate.rows import Case, Measured

UNLIKELY = 0.05
"""How likely printed settings are to fit, by what is known of errors of memory, from where on they are believed."""
_Tried = tuple[Case, Prediction]


def as_it_ran(entry: Case, prediction: Prediction, measured: Measured) -> _Tried:
    """A case with the savings without which it could not have run, and its prediction; most are as they were.

    Only where a run is said to have recomputed nothing and prints no peak of memory.
    """
    known = prediction.certainty
    ran = measured.fits and measured.step_time_s is not None
    if not ran or measured.peak_memory_bytes or entry.plan["recompute"] != "none" or known is None:
        return entry, prediction
    if known.fit_probability >= UNLIKELY:
        return entry, prediction
    tried = [found for some in _savings(entry) if (found := _least(some)) is not None]
    return min(tried, key=lambda one: one[1].step_time_s) if tried else (entry, prediction)


def _savings(entry: Case) -> Iterator[Case]:
    """The case as it is, and with inputs of activations in 8 bits where its framework and precision have them."""
    yield entry
    narrow: Mapping[str, object] = {**entry.stack_changes, "memory.gate_inputs": "fp8"}
    if entry.plan["precision"] == "fp8" and entry.stack in MEGATRONS:
        yield _saying(replace(entry, stack_changes=narrow), "inputs of activations kept in 8 bits")


def _least(entry: Case) -> _Tried | None:
    """The case with the fewest layers of every stage recomputed with which it fits; None where none does."""
    stages = int(str(entry.plan["pp"])) * int(str(entry.plan["vpp"]))
    layers, rest = divmod(len(entry.graph.layers), stages)
    if rest:
        return None
    low, high, found = 0, layers, None
    while low <= high:
        middle = (low + high) // 2
        tried = _tried(entry, middle, layers, stages)
        if tried is not None and tried[1].fits:
            found, high = tried, middle - 1
        else:
            low = middle + 1
    return found


def _tried(entry: Case, count: int, layers: int, stages: int) -> _Tried | None:
    case = entry
    if count:
        kinds = [(FULL, count), (NONE, layers - count)] * stages
        again = FULL if count == layers else by_layer(kinds)
        words = f"{count * stages} of {layers * stages} layers recomputed"
        case = _saying(replace(entry, plan={**entry.plan, "recompute": again}), words)
    try:
        return case, predict(case)
    except Unmodelled:
        return None


def _saying(case: Case, words: str) -> Case:
    return replace(case, supposed=(*case.supposed, f"{words}, for it does not fit as printed"))

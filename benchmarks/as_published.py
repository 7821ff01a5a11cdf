"""Published rows as ``simpar validate`` predicts them, and two kinds of rows that only published tables have.

Rows that time one layer instead of a step are compared with its forward and backward. Runs whose printed settings need
more memory than their devices have ran, so something was recomputed or kept in fewer bits. The cheapest of the
frameworks' options is assumed: Megatron-Core can keep parameters in 8 bits (``fp8_param_gather``), then also inputs of
gated activations (``activation_func_fp8_input_store``), with 8-bit products, and all can recompute some whole layers of
every stage. The measured time is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from simpar.architectures.recompute import FULL, NONE, by_layer
from simpar.precisions import narrower
from simpar.validation.cells import Row, Unmodelled, measurement
from simpar.validation.predict import Prediction, predict, result_of
from simpar.validation.profile_overrides import AS_NAMED, ProfileOverrides
from simpar.validation.rows import MEGATRONS, Case, Measurements, read_measurements
from simpar.validation.summary import RowOutcome
from simpar.validation.table import outcomes_of, predict_row

MIN_FIT_PROBABILITY = 0.05
"""Printed settings are doubted if they fit with less than this probability, given the errors of memory."""
LOW = narrower(16)
_Tried = tuple[Case, Prediction]


def published_outcomes(rows: Sequence[Row], *, jobs: int = -1) -> list[RowOutcome]:
    """Predict published rows on ``jobs`` processes (-1: all cores); the results are in order."""
    return outcomes_of(rows, jobs=jobs, predicted=predict_published)


def predict_published(row: Row, chosen: ProfileOverrides = AS_NAMED) -> tuple[Case, Measurements, Prediction]:
    """What a row ran as, what was measured, and the prediction, whose ``fits`` is about the printed settings.

    So is its probability to fit. Raises Unmodelled or UserError with the reason.
    """
    if (layer_s := layer_time_s(row)) is not None:
        entry = chosen.case(row)
        prediction = predict_layer(entry)
        actual = replace(read_measurements(row), step_time_s=layer_s, fits=None)
        return replace(entry, supposed=(*entry.supposed, "one layer")), actual, prediction
    entry, actual, printed = predict_row(row, chosen)
    ran, prediction = recompute_to_fit(entry, printed, actual)
    assert prediction.certainty, "steps have one"
    assert printed.certainty, "steps have one"
    certainty = prediction.certainty.model_copy(update={"fit_probability": printed.certainty.fit_probability})
    return ran, actual, replace(prediction, fits=printed.fits, certainty=certainty)


def layer_time_s(row: Row) -> float | None:
    """Seconds of a layer's forward and backward; None if the row is about a step."""
    forward_s, backward_s = measurement(row, "layer_forward_s"), measurement(row, "layer_backward_s")
    return forward_s + backward_s if forward_s and backward_s else None


def predict_layer(entry: Case) -> Prediction:
    """A case whose step time is what one more layer adds to its passes. Raises Unmodelled.

    The certainty of such a difference is not known.
    """
    twice = replace(entry, graph=replace(entry.graph, layers=entry.graph.layers * 2))
    results = map(result_of, (entry, twice))
    one_s, two_s = (result.step_time_s - result.time_breakdown_s.optimizer for result in results)
    return replace(predict(entry), step_time_s=(two_s - one_s) / len(entry.graph.layers), certainty=None)


def recompute_to_fit(entry: Case, prediction: Prediction, actual: Measurements) -> _Tried:
    """A case with the savings without which it could not have run, and its prediction; most are unchanged.

    This applies only to runs that report no recomputation and no memory peak.
    """
    known = prediction.certainty
    ran = actual.fits and actual.step_time_s is not None
    if not ran or actual.peak_memory_bytes or entry.plan["recompute"] != "none" or known is None:
        return entry, prediction
    if known.fit_probability >= MIN_FIT_PROBABILITY:
        return entry, prediction
    if entry.plan["precision"] in LOW and entry.stack in MEGATRONS:
        entry = _saying(replace(entry, plan={**entry.plan, "quantized_weights": "stored"}), "weights kept in 8 bits")
        prediction = predict(entry)
        if prediction.certainty and prediction.certainty.fit_probability >= MIN_FIT_PROBABILITY:
            return entry, prediction
    tried = [found for some in _savings(entry) if (found := _least(some)) is not None]
    return min(tried, key=lambda one: one[1].step_time_s) if tried else (entry, prediction)


def _savings(entry: Case) -> Iterator[Case]:
    """The case, and the case with 8-bit inputs of activations if its framework and precision support them."""
    yield entry
    narrow: Mapping[str, object] = {**entry.stack_changes, "memory.gate_inputs": "fp8"}
    if entry.plan["precision"] == "fp8" and entry.stack in MEGATRONS:
        yield _saying(replace(entry, stack_changes=narrow), "inputs of activations kept in 8 bits")


def _least(entry: Case) -> _Tried | None:
    """The case with the fewest recomputed layers per stage with which it fits; None if none does."""
    stages = int(str(entry.plan["pp"])) * int(str(entry.plan["vpp"]))
    layers, rest = divmod(len(entry.graph.layers), stages)
    if rest:
        return None
    low, high, result = 0, layers, None
    while low <= high:
        middle = (low + high) // 2
        tried = _tried(entry, middle, layers, stages)
        if tried is not None and tried[1].fits:
            result, high = tried, middle - 1
        else:
            low = middle + 1
    return result


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

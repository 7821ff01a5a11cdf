"""Rows that time one layer instead of a step: its forward and backward, without embedding, head and update."""

from __future__ import annotations

from dataclasses import replace

from simpar.validation.cells import Row, measurement
from simpar.validation.predict import Prediction, predict, result_of
from simpar.validation.rows import Case


def layer_time_s(row: Row) -> float | None:
    """Seconds of a layer's forward and backward; None if the row is about a step."""
    forward_s, backward_s = measurement(row, "layer_forward_s"), measurement(row, "layer_backward_s")
    return forward_s + backward_s if forward_s and backward_s else None


def predict_layer(entry: Case) -> Prediction:
    """A case whose step time is what one more layer adds to its passes. Raises Unmodelled.

    The certainty of such a difference is not known.
    """
    twice = replace(entry, graph=replace(entry.graph, layers=entry.graph.layers * 2))
    one_s, two_s = (found.step_time_s - found.time_breakdown_s.optimizer for found in map(result_of, (entry, twice)))
    return replace(predict(entry), step_time_s=(two_s - one_s) / len(entry.graph.layers), certainty=None)

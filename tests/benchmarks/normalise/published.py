"""Rows as published tables have them, read by way of their explicit columns."""

from benchmarks.as_published import predict_published
from benchmarks.normalise.mixtures import mixture_columns
from benchmarks.normalise.rows import normalised
from simpar.validation import rows, table
from simpar.validation.models import graph_of


def case(row):
    """The simulation input of a published row. Raises Unmodelled."""
    return rows.case(normalised(row))


def measured(row):
    """The measurements of a published row. Raises Unmodelled."""
    return rows.read_measurements(normalised(row))


def outcome(line, row):
    """Prediction and measurement of a published row, or the reason why it is not modelled."""
    return table.outcome(line, normalised(row), predicted=predict_published)


def suspect(row):
    """Why a published row is disturbed."""
    return table.suspect(normalised(row))


def mixture(row):
    """The mixture of a published row. Raises Unmodelled."""
    return graph_of({**row, **mixture_columns(row)})

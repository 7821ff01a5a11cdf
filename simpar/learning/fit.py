"""The most probable parameters after a few runs: penalised, robust, bounded least squares of log errors.

The errors are those of step times, or of another quantity that runs show (:mod:`simpar.learning.memory`). Every
parameter is moved once for every run to get slopes. The parameters that are most probable under these slopes are the
point at which slopes are taken again. Spreads are those of :mod:`simpar.learning.parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import lsq_linear

from simpar.dataclass import dataclass
from simpar.learning.parameters import Name, bounds_of, names_of, spread_of_part, tuning_of, value_of
from simpar.units import Flags, Floats
from simpar.validation.predict import NO_TUNING, ParameterOverrides, predict_time_s
from simpar.validation.rows import Case, PeakCounts

MODEL_ERROR = 0.05
"""Standard deviation of the logarithm of a step that no parameter explains: the spread between layouts of one job."""
ROBUST_LIMIT = 0.15  # a run with a larger error counts less
REWEIGHTED, LINEARISED = 12, 4
SETTLED = 0.02  # share of the spread: the fit ends when all parameters move less
MOST_FOLDS = 10
SLOWEST = 6.0
"""Spreads below which no clock of a device lies: beyond, it is not the device that is slow."""
MIN_BOUND_WIDTH = 2.0**-20  # widens bounds that coincide
LEAST_MOVE = 0.02  # share of the spread: a parameter that moves less keeps its old value


@dataclass(frozen=True)
class Peak:
    """Peak memory of the fullest device in bytes, and what it ``counts``."""

    size_bytes: float
    counts: PeakCounts = "reserved"


@dataclass(frozen=True)
class Observed:
    """A measured layout: the seconds of its step, their scatter (of logarithms), and where it is from.

    ``peak`` is its memory, if known. ``repeats`` runs of it were merged; ``rows`` are their lines in a table.
    """

    case: Case
    time_s: float
    scatter: float = 0.0
    label: str = ""
    rows: tuple[int, ...] = ()
    repeats: int = 1
    peak: Peak | None = None


Names = Callable[[Case, ParameterOverrides], Iterator[Name]]


@dataclass(frozen=True)
class Quantity:
    """A quantity of runs to learn from, measured and predicted (SI units, above zero), and its parameters."""

    measured: Callable[[Observed], float]
    predicted: Callable[[Observed, ParameterOverrides], float]
    names: Names


STEP_TIME = Quantity(lambda run: run.time_s, lambda run, tuning: predict_time_s(run.case, tuning), names_of)


@dataclass(frozen=True)
class Slopes:
    """The effect of every parameter on every run around a point.

    ``at`` are the values of the parameters ``names``; ``errors[run]`` is log(measured / predicted) there; ``slopes[run,
    parameter]`` is the change of the logarithm of the prediction per unit of a parameter.
    """

    names: tuple[Name, ...]
    at: Floats
    errors: Floats
    slopes: Floats


@dataclass(frozen=True)
class Prior:
    """Prior knowledge: usual values of parameters, their spreads and bounds."""

    names: tuple[Name, ...]
    values: Floats
    spread: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, cases: Sequence[Case], tuning: ParameterOverrides = NO_TUNING, names_of: Names = names_of) -> Prior:
        """The prior of all parameters that the cases depend on, with values of their profiles or of the tuning."""
        result = {name: value_of(name, case, tuning) for case in cases for name in names_of(case, tuning)}
        names = tuple(sorted(result))
        values = np.array([result[name] for name in names])
        spread = np.array([spread_of_part((kind, part, _shared(key))) for kind, part, key in names])
        ranges = [bounds_of(name) for name in names]
        least = np.array([one.low for one in ranges])
        of_devices = np.array([name[0] == "device" for name in names], dtype=np.bool_)
        least = np.where(of_devices, np.maximum(least, values - SLOWEST * spread), least)
        return cls(
            names=names,
            values=values,
            spread=spread,
            low=np.minimum(least, values),
            high=np.maximum([one.high for one in ranges], values),
        )


def _shared(key: str) -> str:
    """The key by which the shipped profiles are compared: all rates of attention count as one parameter."""
    return "fusion.attention_rate.others" if key.startswith("fusion.attention_rate") else key


def slopes_of(runs: Sequence[Observed], prior: Prior, at: Floats, quantity: Quantity = STEP_TIME) -> Slopes:
    """Errors and slopes of runs at values of the prior's parameters. Raises Unmodelled."""
    values = dict(zip(prior.names, at.tolist(), strict=True))
    rows = [_slopes(run, values, quantity) for run in runs]
    return Slopes(prior.names, at, np.array([error for error, _ in rows]), np.array([slope for _, slope in rows]))


def _slopes(run: Observed, values: Mapping[Name, float], quantity: Quantity) -> tuple[float, list[float]]:
    tuning = tuning_of(values)
    base, mine, result = quantity.predicted(run, tuning), set(quantity.names(run.case, tuning)), []
    for name, value in values.items():
        if name not in mine:
            result.append(0.0)
            continue
        known = bounds_of(name)
        step = known.step if value + known.step <= known.high else -known.step
        moved = quantity.predicted(run, tuning_of({**values, name: value + step}))
        result.append(float(np.log(moved / base)) / step)
    return float(np.log(quantity.measured(run) / base)), result


def fit_values(prior: Prior, known: Slopes, scatter: Floats, used: Flags | None = None) -> Floats:
    """The most probable values of the parameters, given errors and slopes of the ``used`` runs.

    Runs that remain far off count less, as under a Cauchy distribution; an error that all of them share does not count
    as far.
    """
    keep = np.ones(len(known.errors), dtype=np.bool_) if used is None else used
    slopes, start = known.slopes[keep] * prior.spread, (known.at - prior.values) / prior.spread
    errors, noise = known.errors[keep] + slopes @ start, np.hypot(MODEL_ERROR, scatter[keep])
    bounds = (
        (prior.low - prior.values) / prior.spread - MIN_BOUND_WIDTH,
        (prior.high - prior.values) / prior.spread + MIN_BOUND_WIDTH,
    )
    # with x in spreads around the prior: minimise sum of w ((errors - slopes x) / noise)^2 + |x|^2
    weight, values = np.ones(len(errors)), start
    for _ in range(REWEIGHTED):
        scale = np.sqrt(weight) / noise
        table = np.vstack([slopes * scale[:, None], np.eye(len(start))])
        aims = np.concatenate([errors * scale, np.zeros(len(start))])
        values = lsq_linear(table, aims, bounds=bounds).x
        left = np.abs(errors - slopes @ values)
        weight = 1.0 / (1.0 + (left / max(ROBUST_LIMIT, 2.0 * float(np.median(left)))) ** 2)
    return np.clip(prior.values + values * prior.spread, prior.low, prior.high)


@dataclass(frozen=True)
class Learned:
    """The result: the prior, the values found, and every run's error before, after, and when it was left out.

    Errors are log(measured / predicted).
    """

    prior: Prior
    values: Floats
    before: Floats
    after: Floats
    left_out: Floats

    @property
    def tuning(self) -> ParameterOverrides:
        """The values in the form that predictions take."""
        return tuning_of(dict(zip(self.prior.names, self.values.tolist(), strict=True)))


def learn(runs: Sequence[Observed], tuning: ParameterOverrides = NO_TUNING, quantity: Quantity = STEP_TIME) -> Learned:
    """The most probable parameters after some runs, starting from profiles or a tuning. Raises Unmodelled."""
    prior = Prior.of([run.case for run in runs], tuning, quantity.names)
    scatter = np.array([run.scatter for run in runs])
    known = slopes_of(runs, prior, prior.values, quantity)
    before, values = known.errors, prior.values
    for _ in range(LINEARISED):
        values = fit_values(prior, known, scatter)
        if np.all(np.abs(values - known.at) <= SETTLED * prior.spread):
            break
        known = slopes_of(runs, prior, values, quantity)
    values = _settled(prior, values)
    learned = Learned(prior, values, before, _errors(runs, prior, values, quantity), before)
    return replace(learned, left_out=_left_out(runs, learned, known, scatter, quantity))


def _settled(prior: Prior, values: Floats) -> Floats:
    """Values rounded to four digits, as files have them; those that hardly moved keep the prior's value."""
    rounded = np.array([float(f"{value:.4g}") for value in values.tolist()])
    return np.where(np.abs(values - prior.values) < LEAST_MOVE * prior.spread, prior.values, rounded)


def _errors(runs: Sequence[Observed], prior: Prior, values: Floats, quantity: Quantity) -> Floats:
    tuning = tuning_of(dict(zip(prior.names, values.tolist(), strict=True)))
    return np.array([np.log(quantity.measured(run) / quantity.predicted(run, tuning)) for run in runs])


def _left_out(runs: Sequence[Observed], learned: Learned, known: Slopes, scatter: Floats, quantity: Quantity) -> Floats:
    """Errors of runs under parameters learnt without them: one run at a time, many runs in ten parts."""
    part = np.arange(len(runs)) % max(min(len(runs), MOST_FOLDS), 1)
    result = np.array(learned.before)
    for fold in range(int(part.max()) + 1):
        out = part == fold
        if out.all():
            break  # no runs remain to learn from
        values = fit_values(learned.prior, known, scatter, ~out)
        rest = [run for run, one in zip(runs, out, strict=True) if one]
        result[out] = _errors(rest, learned.prior, values, quantity)
    return result

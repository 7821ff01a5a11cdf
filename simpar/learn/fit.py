"""The most probable parameters after a few runs: a penalised, robust, bounded least squares of log errors.

Of step times, or of another quantity that runs show (:mod:`simpar.learn.memory`).

Every parameter is moved once for every run; the parameters that are most probable under those slopes are the point
around which they are taken again. Spreads are those of :mod:`simpar.learn.parameters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import lsq_linear

from simpar.learn.parameters import Name, names_of, parameter, spread_of, tuning_of, value_of
from simpar.units import Flags, Floats
from simpar.validate.predict import NO_TUNING, Tuning, predict_time_s
from simpar.validate.rows import Case
from simpar.validate.words import PeakCounts

MODEL_ERROR = 0.05
"""Standard deviation of the logarithm of a step that no parameter explains: layouts of one job differ by it."""
FAR = 0.15  # from this error on a run counts less
REWEIGHTED, LINEARISED = 12, 4
SETTLED = 0.02  # of their spread: parameters that move less are found
MOST_FOLDS = 10
BARELY = 2.0**-20  # what opens bounds that meet
LEAST_MOVE = 0.02  # of its spread: what moves less is left as it was


@dataclass(frozen=True)
class Peak:
    """Most bytes on the fullest device, and what of them it ``counts``."""

    size_bytes: float
    counts: PeakCounts = "reserved"


@dataclass(frozen=True)
class Observed:
    """One layout that was measured: seconds of its step, how sure they are in logarithms, and where it is from.

    ``peak`` of its memory where that is known; ``repeats`` of it were taken together, ``rows`` are their lines of a
    table.
    """

    case: Case
    time_s: float
    scatter: float = 0.0
    label: str = ""
    rows: tuple[int, ...] = ()
    repeats: int = 1
    peak: Peak | None = None


Names = Callable[[Case, Tuning], Iterator[Name]]


@dataclass(frozen=True)
class Quantity:
    """What of a run is learnt from: as measured and as predicted, in SI and above zero, and what it depends on."""

    measured: Callable[[Observed], float]
    predicted: Callable[[Observed, Tuning], float]
    names: Names


STEP_TIME = Quantity(lambda run: run.time_s, lambda run, tuning: predict_time_s(run.case, tuning), names_of)


@dataclass(frozen=True)
class Slopes:
    """What every parameter does to every run around a point.

    ``names`` of columns and ``at`` their values; ``errors[run]`` is log(measured / predicted) there and
    ``slopes[run, parameter]`` by how much a parameter moves the logarithm of the prediction, per unit of it.
    """

    names: tuple[Name, ...]
    at: Floats
    errors: Floats
    slopes: Floats


@dataclass(frozen=True)
class Prior:
    """What is known before: usual values of parameters, their spreads and bounds."""

    names: tuple[Name, ...]
    values: Floats
    spread: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, cases: Sequence[Case], tuning: Tuning = NO_TUNING, names_of: Names = names_of) -> Prior:
        """Of all parameters that some cases depend on: as their profiles have them, or the tuning."""
        found = {name: value_of(name, case, tuning) for case in cases for name in names_of(case, tuning)}
        names = tuple(sorted(found))
        values = np.array([found[name] for name in names])
        ranges = [parameter(key) for _, _, key in names]
        return cls(
            names=names,
            values=values,
            spread=np.array([spread_of(kind, _shared(key)) for kind, _, key in names]),
            low=np.minimum([one.low for one in ranges], values),
            high=np.maximum([one.high for one in ranges], values),
        )


def _shared(key: str) -> str:
    """The key under which the shipped profiles are compared: attention's rate by device is one parameter."""
    return "fusion.attention_rate.others" if key.startswith("fusion.attention_rate") else key


def slopes_of(runs: Sequence[Observed], prior: Prior, at: Floats, quantity: Quantity = STEP_TIME) -> Slopes:
    """Errors and slopes of runs around values of the prior's parameters. Raises Unmodelled."""
    values = dict(zip(prior.names, at.tolist(), strict=True))
    rows = [_slopes(run, values, quantity) for run in runs]
    return Slopes(
        prior.names, at, np.array([error for error, _ in rows]), np.array([slope for _, slope in rows])
    )


def _slopes(run: Observed, values: Mapping[Name, float], quantity: Quantity) -> tuple[float, list[float]]:
    tuning = tuning_of(values)
    base, mine, found = quantity.predicted(run, tuning), set(quantity.names(run.case, tuning)), []
    for name, value in values.items():
        if name not in mine:
            found.append(0.0)
            continue
        known = parameter(name[2])
        step = known.step if value + known.step <= known.high else -known.step
        moved = quantity.predicted(run, tuning_of({**values, name: value + step}))
        found.append(float(np.log(moved / base)) / step)
    return float(np.log(quantity.measured(run) / base)), found


def most_probable(prior: Prior, known: Slopes, scatter: Floats, used: Flags | None = None) -> Floats:
    """The most probable values of the parameters under errors and slopes of the runs that are used.

    Runs that stay far off count less, as under Cauchy's distribution; what all of them share does not make them far.
    """
    keep = np.ones(len(known.errors), dtype=np.bool_) if used is None else used
    slopes, start = known.slopes[keep] * prior.spread, (known.at - prior.values) / prior.spread
    errors, noise = known.errors[keep] + slopes @ start, np.hypot(MODEL_ERROR, scatter[keep])
    bounds = (
        (prior.low - prior.values) / prior.spread - BARELY,
        (prior.high - prior.values) / prior.spread + BARELY,
    )
    weight, found = np.ones(len(errors)), start
    for _ in range(REWEIGHTED):
        scale = np.sqrt(weight) / noise
        table = np.vstack([slopes * scale[:, None], np.eye(len(start))])
        aims = np.concatenate([errors * scale, np.zeros(len(start))])
        found = lsq_linear(table, aims, bounds=bounds).x
        left = np.abs(errors - slopes @ found)
        weight = 1.0 / (1.0 + (left / max(FAR, 2.0 * float(np.median(left)))) ** 2)
    return np.clip(prior.values + found * prior.spread, prior.low, prior.high)


@dataclass(frozen=True)
class Learned:
    """What was learnt: the prior, the values found, and each run's error before, after, and where it was left out.

    Errors are log(measured / predicted).
    """

    prior: Prior
    values: Floats
    before: Floats
    after: Floats
    left_out: Floats

    @property
    def tuning(self) -> Tuning:
        """The values as predictions take them."""
        return tuning_of(dict(zip(self.prior.names, self.values.tolist(), strict=True)))


def learn(runs: Sequence[Observed], tuning: Tuning = NO_TUNING, quantity: Quantity = STEP_TIME) -> Learned:
    """Most probable parameters after some runs, from profiles or a tuning of them. Raises Unmodelled."""
    prior = Prior.of([run.case for run in runs], tuning, quantity.names)
    scatter = np.array([run.scatter for run in runs])
    known = slopes_of(runs, prior, prior.values, quantity)
    before, found = known.errors, prior.values
    for _ in range(LINEARISED):
        found = most_probable(prior, known, scatter)
        if np.all(np.abs(found - known.at) <= SETTLED * prior.spread):
            break
        known = slopes_of(runs, prior, found, quantity)
    found = _settled(prior, found)
    learned = Learned(prior, found, before, _errors(runs, prior, found, quantity), before)
    return replace(learned, left_out=_left_out(runs, learned, known, scatter, quantity))


def _settled(prior: Prior, found: Floats) -> Floats:
    """Values as files have them, to four digits; what hardly moved stays as it was."""
    rounded = np.array([float(f"{value:.4g}") for value in found.tolist()])
    return np.where(np.abs(found - prior.values) < LEAST_MOVE * prior.spread, prior.values, rounded)


def _errors(runs: Sequence[Observed], prior: Prior, values: Floats, quantity: Quantity) -> Floats:
    tuning = tuning_of(dict(zip(prior.names, values.tolist(), strict=True)))
    return np.array([np.log(quantity.measured(run) / quantity.predicted(run, tuning)) for run in runs])


def _left_out(
    runs: Sequence[Observed], learned: Learned, known: Slopes, scatter: Floats, quantity: Quantity
) -> Floats:
    """Errors of runs under parameters that were learnt without them: one at a time, many in ten parts."""
    part = np.arange(len(runs)) % max(min(len(runs), MOST_FOLDS), 1)
    found = np.array(learned.before)
    for fold in range(int(part.max()) + 1):
        out = part == fold
        if out.all():
            break  # nothing is left to learn from
        values = most_probable(learned.prior, known, scatter, ~out)
        rest = [run for run, one in zip(runs, out, strict=True) if one]
        found[out] = _errors(rest, learned.prior, values, quantity)
    return found

"""How far needs of memory are from predictions, by cause, from runs that ran or ran out of memory and from peaks.

What the allocator adds is told by verdicts near the limit. A source that prints both kinds tells by how many of its
layouts ran at each predicted need. One that prints only what ran tells where its runs stop: as many layouts are taken
to have been tried at any need near the device's memory, so that what ran there is as frequent as it is probable to
fit. Peaks of allocated memory have no gaps: those of one source differ by workspaces, and sources by what stacks keep.
Rows whose plan was not published whole tell nothing. calibrate_uncertainty.py calls this.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from calibrate_uncertainty_rows import NEVER, Run
from normalise.tables import read_published
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr
from tables import DATA

from simpar.cost.memory.allocator import MANY_CHANNELS
from simpar.plan.routing import expected_maximum
from simpar.stacks.stack import load_stack
from simpar.uncertainty.memory import SOME_RUNS, MemoryRisk, Parts
from simpar.uncertainty.table import ErrorTable, MemoryErrors
from simpar.validation.cells import text
from simpar.validation.predict import cluster_of
from simpar.validation.rows import UNNAMED, case, read_measurements

Floats = NDArray[np.float64]
FULLEST_EXPERTS, ROUTED_EXPERTS = (0.72, 0.04, 0.52, 0.04), 64
"""What the fullest of so many experts of a layer has above the mean, in means, over a validation set: models of 1B and
3B parameters, each balanced by an auxiliary loss and without one (arXiv 2408.15664, tables 2 and 5)."""
ALIKE = 60
"""Runs of one source that count as so many, whatever there are."""
REFUSED = 30
"""Published runs of a stack out of memory from which on its memory outside the allocator is known."""
MOST_UNKNOWN = 0.3  # a source whose memory is farther off counts as one that is so far
COMMUNICATORS = 0.1  # of stacks whose sizes are those under which layouts ran out of memory as published
REPORTED_GB = (
    (1.0 + 0.544, 1.0 + 0.4),  # all-reduce of 2 A100 (NVIDIA/nccl issue 964), communicators alone as all without "all"
    (1.0 + 0.688, 1.0 + 0.4),  # of 3 and 4 (there)
    (1.6, 1.0 + 0.4),  # one communicator, all that the device shows (NVIDIA/nccl issue 864)
    (6.0, 1.0 + 3 * 0.4),  # three, all (there)
    (4.34, 1.0 + 0.4),  # all-to-all of 8 H100, all but tensors (NVIDIA/nccl issue 1685)
    (1.2 + 7.0, 1.2 + 3 * 0.4),  # Megatron tp 2, pp 2, dp 2 on 8 H100 (verl pull request 6408)
    (1.2 + 9.5, 1.2 + 4 * 0.4),  # the same with experts (there)
    (1.0 + 2.47, 1.0 + 3 * 0.4),  # three of RCCL, 1 GiB and 0.65 GiB for each further one (LUMI-AI-Guide issue 111)
    (1.0 + 1.0, 1.0 + 2 * 0.4),  # tp and ep of 8 devices in inference (vllm pull request 46234)
)
"""What lay outside of the allocator, and what stacks say of it: context, and 0.4 GB a kind of groups.

Where a report is of communicators alone, the context is taken as predicted.
"""
DOUBT = 0.01  # share of verdicts on memory that have another cause
FULL = 0.985
"""Share of a device's memory from which on a peak of it, or of its allocator, fills it."""
NEAR = np.exp(np.linspace(-0.25, 0.25, 41))
"""Predicted needs near the limit, in shares of the device, among which as many layouts are taken to have been tried.

What ran although it is said to need a quarter more than there is did something that its row does not say.
"""
USUAL_PLANNED = 0.1
"""Standard deviation of what a compiler's plan may need less or more, per byte that comes and goes, before any run."""
START = (-0.3, -0.1, np.log(0.5), np.log(0.1), np.log(0.1))
ROUNDED = 4  # decimals of needs that are alike


@dataclass(frozen=True)
class Verdicts:
    """Runs of which it is known whether they fitted, in shares of their device's memory, float64[runs].

    ``mixed``: their source prints runs out of memory, too; ``unknown``: the share of the spread of unknown stacks that
    theirs has; ``outside_spread``: that of what lies outside the allocator.
    """

    runs: Sequence[Run]
    needed: Floats
    inside: Floats
    moving: Floats
    gaps: Floats
    outside: Floats
    experts: tuple[Floats, Floats]
    planned: Floats
    unknown: Floats
    outside_spread: Floats
    mixed: NDArray[np.bool_]

    @staticmethod
    def of(runs: Sequence[Run], known: Sequence[Published | None]) -> Verdicts:
        """Those of runs whose plan was published whole; ``known`` is what :func:`published` gives."""
        both = zip(runs, known, strict=True)
        rows = [(run, one.few) for run, one in both if one is not None and run.fits is not None]
        told, shown, refused = [run for run, _ in rows], memory_runs(runs), set(refused_stacks(runs))
        failed = {run.source for run in told if run.fits is False}
        only = MemoryErrors(
            gaps=(0, 0), workspaces=0, planned=0, communicators=(COMMUNICATORS, unseen_communicators()),
            imbalance=(0, 0), habits=(0, 0.5**0.5, 1), low=-1, high=1,
        )  # fmt: skip
        risks = [
            MemoryRisk.of_runs(shown.get(run.traits.stack, 0), only, few or run.traits.stack in refused)
            for run, few in rows
        ]
        capacity = np.array([run.capacity_bytes for run in told])
        sizes = np.array([parts_of(run) for run in told], dtype=np.float64).T
        (static, moving, outside, *experts), gaps = sizes[:-1] / capacity, sizes[-1]
        return Verdicts(
            runs=told,
            needed=np.array([run.needed_bytes for run in told]) / capacity,
            inside=static + moving,
            moving=moving,
            gaps=gaps * moving,
            outside=outside,
            experts=(experts[0], experts[1]),
            planned=np.array([is_planned(run.traits.stack) for run in told], dtype=np.float64),
            unknown=np.array([risk.habits for risk in risks]),
            outside_spread=np.array([risk.communicators for risk in risks]),
            mixed=np.array([run.source in failed for run in told]),
        )

    @cached_property
    def ran(self) -> NDArray[np.bool_]:
        """Whether they did."""
        return np.array([bool(run.fits) for run in self.runs])

    @cached_property
    def near(self) -> NDArray[np.bool_]:
        """Runs whose predicted need is near their device's memory."""
        return (self.needed > NEAR[0]) & (self.needed < NEAR[-1])

    @cached_property
    def weight(self) -> Floats:
        """Runs that need alike count as one, and those of a source near the limit as ALIKE at most."""
        kinds = [
            (run.source, run.fits, round(float(needed), ROUNDED), round(float(moving), ROUNDED))
            for run, needed, moving in zip(self.runs, self.needed, self.moving, strict=True)
        ]
        counts, total = Counter(kinds), defaultdict(float)
        weight = np.array([1 / counts[kind] for kind in kinds])
        for kind, one, near in zip(kinds, weight.tolist(), self.near.tolist(), strict=True):
            total[kind[0]] += one * near
        return weight * np.array([min(1.0, ALIKE / max(total[kind[0]], 1.0)) for kind in kinds])

    def excess(self, values: Floats) -> tuple[Floats, Floats]:
        """(Mean, standard deviation) of the need beyond the prediction under the parameters of :func:`allocator`."""
        mean, planned = values[:2]
        gaps, workspaces, unknown = np.exp(values[2:])
        squares = (
            (gaps * self.gaps) ** 2
            + (workspaces * self.moving) ** 2
            + (unknown * self.unknown * self.inside) ** 2
            + (self.outside_spread * self.outside) ** 2
            + self.experts[1] ** 2
        )
        return mean * self.gaps + planned * self.planned * self.moving + self.experts[0], np.sqrt(squares)

    def loss(self, values: Floats) -> float:
        """Minus the logarithm of the likelihood of the verdicts."""
        mean, spread = self.excess(values)
        fits = DOUBT + (1 - 2 * DOUBT) * ndtr((1 - self.needed - mean) / spread)
        likely = np.where(self.ran, fits, 1 - fits)
        # where only what ran is printed, its share among all needs that may have been tried
        tried = ~self.mixed & self.near
        shares = (1 / NEAR - 1 - (mean / self.needed)[tried, None]) / (spread / self.needed)[tried, None]
        likely[tried] /= (DOUBT + (1 - 2 * DOUBT) * ndtr(shares)).mean(axis=1)
        told = self.mixed | tried
        return float(-(self.weight * np.log(likely))[told].sum())


@dataclass(frozen=True)
class Allocated:
    """What verdicts and peaks tell: parameters, the standard errors of each, and verdicts near the limit."""

    values: Floats
    errors: Floats
    runs: int
    sources: int

    def __str__(self) -> str:
        words = ("mean of gaps", "mean of planned", "log gaps", "log workspaces", "log unknown")
        told = (f"{w} {v:.3f} +- {e:.3f}" for w, v, e in zip(words, self.values, self.errors, strict=True))
        return f"{self.runs} verdicts of {self.sources} sources near the limit: {', '.join(told)}"


def allocator(runs: Sequence[Run]) -> Allocated:
    """The most likely errors for the verdicts and for peaks.

    Means of gaps and of what a compiler plans, and the logarithms of the spreads of gaps, of workspaces, and of tensors
    of unknown stacks. Gaps exist: their mean is above -1. Workspaces have long tails (a Laplace distribution).
    """
    known = list(published(runs))
    verdicts, peaks = Verdicts.of(runs, known), peaks_of(runs, known)

    def loss(values: Floats) -> float:
        if values[0] <= -1:
            return np.inf
        squares = np.exp(2 * values[4]) + np.exp(2 * values[2]) * peaks.gaps**2 + peaks.outside**2
        between = np.sum(np.log(squares) + peaks.middles**2 / squares) / 2
        beside = np.sum(values[3] + 2**0.5 * peaks.within * np.exp(-values[3]))
        return float(verdicts.loss(values) + between + beside + values[1] ** 2 / 2 / USUAL_PLANNED**2)

    options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-4, "fatol": 1e-5, "adaptive": True}
    values = minimize(loss, np.array(START), method="Nelder-Mead", options=options).x
    near = [run for run, is_near in zip(verdicts.runs, verdicts.near, strict=True) if is_near]
    return Allocated(values, standard_errors(loss, values), len(near), len({run.source for run in near}))


def standard_errors(loss: Callable[[Floats], float], values: Floats, step: float = 0.02) -> Floats:
    """From the curvature of a loss around its least value."""
    steps = np.eye(len(values)) * step

    def curvature(one: Floats, two: Floats) -> float:
        ends = loss(values + one + two), loss(values + one - two), loss(values - one + two), loss(values - one - two)
        return float(ends[0] - ends[1] - ends[2] + ends[3]) / (4 * step**2)

    curved = np.array([[curvature(one, two) for two in steps] for one in steps])
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv(curved)), 0.0))


@dataclass(frozen=True)
class Peaks:
    """What sources with peaks show.

    Of every source, ``middles`` are by how much its peaks differ from the prediction in the median (natural logarithm),
    and ``gaps`` and ``outside`` what is counted beside tensors, in shares of the predicted peak: gaps of the allocator
    where peaks are of what it reserved, and the standard deviation of what lies outside it where they are a device's.
    ``within``: by how much peaks of tensors differ from the median of their source, in shares of the bytes that come
    and go. float64[sources] and float64[peaks].
    """

    middles: Floats
    gaps: Floats
    outside: Floats
    within: Floats


def peaks_of(runs: Sequence[Run], known: Sequence[Published | None]) -> Peaks:
    """What the sources of runs with peaks show; ``known`` is what :func:`published` gives."""
    by_source, unseen = defaultdict(list), unseen_communicators()
    for run, one in zip(runs, known, strict=True):
        if run.peak_error is not None and one is not None and not one.fills:
            parts, counts = parts_of(run), one.peak_counts
            inside, moving = float(parts.static_bytes + parts.moving_bytes), float(parts.moving_bytes)
            gaps = 0.0 if counts == "allocated" else float(parts.gaps) * moving / inside
            spread = COMMUNICATORS if one.few else unseen
            outside = spread * float(parts.outside_bytes) / inside if counts == "device" else 0.0
            by_source[run.source].append(
                (run.peak_error, gaps, outside, moving / inside if counts == "allocated" else np.nan)
            )
    middles, within = [], []
    for each in by_source.values():
        errors, _, _, moving = columns = np.array(each).T
        middles.append(np.median(columns[:3], axis=1))
        within.append(np.abs(errors - middles[-1][0])[moving > 0] / moving[moving > 0])
    errors, gaps, outside = np.array(middles).T
    return Peaks(np.clip(errors, -MOST_UNKNOWN, MOST_UNKNOWN), gaps, outside, np.concatenate(within))


@dataclass(frozen=True)
class Published:
    """What a run's row says: whether communicators have few channels, what its peak counts, and whether it ``fills``.

    A peak that fills the device is what the allocator kept until it had to give some back, and not what it needed.
    """

    few: bool
    peak_counts: str
    fills: bool


def published(runs: Sequence[Run]) -> Iterator[Published | None]:
    """What is known of each run; None where its plan was not published whole, or it tells nothing of memory."""
    tables = {name: read_published(DATA / name) for name in {run.row[0] for run in runs}}
    few: dict[str, bool] = {}
    for run in runs:
        row = tables[run.row[0]][run.row[1]]
        told = run.fits is not None or run.peak_error is not None
        asked = case(row) if told and not NEVER.match(run.source) and not text(row, "configured_by") else None
        if asked is None or asked.open:
            yield None
            continue
        if asked.hardware not in few:
            parts = cluster_of(asked).parts
            few[asked.hardware] = any(part.profile.scale_up.kind not in MANY_CHANNELS for part in parts)
        shown = read_measurements(row)
        fills = shown.peak_counts != "allocated" and (shown.peak_memory_bytes or 0.0) > FULL * run.capacity_bytes
        yield Published(few[asked.hardware], shown.peak_counts, fills)


def is_planned(stack: str) -> bool:
    """Whether a compiler plans the buffers of a stack."""
    return stack != UNNAMED and load_stack(stack).memory.allocator.planned


def parts_of(run: Run) -> Parts:
    """The parts of a run's need; what it needs beyond these are gaps."""
    parts = run.parts_bytes
    beyond = run.needed_bytes - float(parts.static_bytes + parts.moving_bytes + parts.outside_bytes)
    return parts._replace(gaps=max(beyond, 0.0) / max(float(parts.moving_bytes), 1.0))


def memory_errors(runs: Sequence[Run]) -> MemoryErrors:
    """Errors of memory.

    What sources differ by in the median is what nobody knows of a stack beforehand; half of its variance is left where
    one source shows its memory. ``low`` and ``high`` are percentiles of peaks, each under what other sources show.
    """
    known = allocator(runs)
    mean, planned = known.values[:2].tolist()
    gaps, workspaces, unknown = np.exp(known.values[2:]).tolist()
    errors = MemoryErrors(
        gaps=(mean, gaps),
        workspaces=workspaces,
        planned=planned,
        communicators=(COMMUNICATORS, unseen_communicators()),
        imbalance=imbalance(),
        habits=(0.0, unknown / 2**0.5, unknown),
        low=-1,
        high=1,
    )
    peaks = [(run, run.peak_error) for run in runs if run.peak_error is not None]
    shown, counts = memory_runs(runs), Counter(run.source for run, _ in peaks)
    scaled, weight = [], []
    for run, error in peaks:
        others = shown[run.traits.stack] - counts[run.source]
        risk = MemoryRisk.of_runs(others, errors, False, planned=is_planned(run.traits.stack))
        scaled.append(error / risk.spread(parts_of(run)))
        weight.append(min(1.0, ALIKE / counts[run.source]))
    low, high = (percentile(np.array(scaled), np.array(weight), share) for share in (0.05, 0.95))
    return errors.model_copy(update={"low": low, "high": high})


def percentile(values: Floats, weight: Floats, share: float) -> float:
    """The value below which a share of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(reached, share)), len(order) - 1)])


def unseen_communicators() -> float:
    """The root mean square of reported errors of what lies outside the allocator, in shares of what is predicted."""
    measured, predicted = np.array(REPORTED_GB).T
    return float(np.sqrt(np.mean((measured / predicted - 1) ** 2)))


def imbalance() -> tuple[float, float]:
    """(Mean, standard deviation) over published models of how unlike the loads of experts are.

    The largest of that many normals is ``expected_maximum`` standard deviations above their mean.
    """
    found = np.array(FULLEST_EXPERTS) / expected_maximum(ROUTED_EXPERTS)
    return float(found.mean()), float(found.std())


def memory_runs(runs: Sequence[Run]) -> dict[str, int]:
    """How many runs show the memory of each stack: peaks, or layouts that ran out of it.

    A source of ordinary runs counts as SOME_RUNS at most: it shows one release, and settings that others change.
    """
    shown = [run for run in runs if run.peak_error is not None or run.fits is False]
    ordinary = Counter((run.traits.stack, run.source) for run in shown if run.population == "ordinary")
    result = Counter(run.traits.stack for run in shown if run.population == "tuned")
    for (stack, _), count in ordinary.items():
        result[stack] += min(SOME_RUNS, count)
    return dict(sorted(result.items()))


def refused_stacks(runs: Sequence[Run]) -> tuple[str, ...]:
    """Stacks of which REFUSED or more published runs ran out of memory."""
    counts = Counter(run.traits.stack for run in runs if run.fits is False)
    return tuple(sorted(stack for stack, count in counts.items() if count >= REFUSED))


def fit_probability(run: Run, table: ErrorTable, *, few: bool = False) -> float:
    """How probable it is that a run fits; ``few``: its communicators have few channels."""
    stack = run.traits.stack
    risk = MemoryRisk.of(stack, table, has_few_channels=few, planned=is_planned(stack))
    return risk.fit_probability(run.capacity_bytes, run.needed_bytes, parts_of(run))


def mistakes(runs: Sequence[Run], table: ErrorTable) -> Iterator[str]:
    """A line for every probability and kind of run: how many ran and are said not to fit, and the other way round."""
    rows = [(run, known) for run, known in zip(runs, published(runs), strict=True) if run.fits is not None]
    told = [run for run, _ in rows]
    sure = np.array([fit_probability(run, table, few=known is not None and known.few) for run, known in rows])
    ran = np.array([run.fits for run in told])
    kinds: Mapping[str, list[bool]] = {
        "ordinary": [run.population == "ordinary" for run in told],
        "tuned": [run.population == "tuned" for run in told],
        "planned by a compiler": [is_planned(run.traits.stack) for run in told],
    }
    for probability in (0.5, 0.9, 0.95):
        for kind, mine in kinds.items():
            some, refused = ran & mine, ~ran & np.array(mine)
            unfit, fit = int((sure[some] < probability).sum()), int((sure[refused] >= probability).sum())
            words = f"{unfit} of {some.sum()} that ran not said to fit, {fit} of {refused.sum()} out of memory said to"
            yield f"{probability:.0%} sure, {kind}: {words}"

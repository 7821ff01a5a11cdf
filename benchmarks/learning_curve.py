"""How fast a few measured runs make predictions of an unseen source better.

Usage: python benchmarks/learning_curve.py [--rows FILE] [--json FILE]

Every source of the development tables is unseen once: the parameters of all stacks, devices and clusters are fitted
to the other sources (what nothing is left to tell of returns to what others of its kind are like), and simpar.learning
is given 0, 1, 3, 5 and 10 of its runs, drawn DRAWS times; the rest is scored. How far learning can lead at all says
the error of each run where all others of its source are given. Each parameter is moved once for each
run, and fits are of what these slopes say: seconds instead of hours. --rows keeps the slopes for another run.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from calibrate_uncertainty_rows import NEVER, TABLES
from normalise.tables import read_published
from numpy.typing import NDArray
from tables import DATA

from simpar.learning.fit import Observed, Prior, Slopes, fit_values, slopes_of
from simpar.learning.parameters import Name, parameter, spread_of
from simpar.report.certainty import traits_of
from simpar.uncertainty.own_runs import OwnRuns, after, match_runs
from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import Traits, support_of
from simpar.uncertainty.table import LearnedErrors, load_error_table
from simpar.validation.cells import Row, Unmodelled, text
from simpar.validation.predict import cluster_of, has_rate, job_of, with_rates
from simpar.validation.rows import case, read_measurements
from simpar.validation.table import suspect
from simpar.workers import Workers

GIVEN = (0, 1, 3, 5, 10)
DRAWS = 30
MOST_RUNS = 24  # of one source
MOST_RUNS_OF = {
    "ultrascale-playbook": 60,
    "Megatron-Bridge performance summary": 60,
    "NVIDIA dgxc-benchmarking READMEs": 60,
    "Zero Bubble PP": 20,
}
USUALLY = 3  # runs that people have to give
WEIGHTS = (1, 2, 3, 5, 8, 12)  # that are tried of the spread of before, in layouts
SCORED = 3  # runs that must be left to score
NOISE, FAR, PASSES = 0.07, 0.15, 12  # of the fit to the other sources

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """A measured run: what every parameter does to it around the shipped profiles."""

    source: str
    traits: Traits
    prior: Prior
    error: float
    slopes: Floats


def run_of(row: Row) -> Run | None:
    """One row as a run; None where it has no time that is modelled."""
    if suspect(row) or text(row, "notes").startswith("tier C") or NEVER.match(text(row, "source")):
        return None
    try:
        found = read_measurements(row)
        entry = case(row)
        if entry.open:
            return None  # what it leaves open is chosen by the numbers that are to be learnt
        if not found.step_time_s and has_rate(row):
            found = with_rates(found, row, entry)
        if not found.step_time_s:
            return None
        prior = Prior.of([entry])
        known = slopes_of([Observed(entry, found.step_time_s)], prior, prior.values)
        cluster = cluster_of(entry)
        traits = traits_of(job_of(entry, cluster), cluster, cluster.device.name)
    except Unmodelled:
        return None
    return Run(text(row, "source"), traits, prior, float(known.errors[0]), known.slopes[0])


def runs_of(paths: Sequence[Path]) -> list[Run]:
    """Runs of all sources, thinned evenly as for fits."""
    rows = defaultdict(list)
    for path in paths:
        for row in read_published(path):
            rows[text(row, "source")].append(row)
    tasks = []
    for source, found in sorted(rows.items()):
        step = max(1.0, len(found) / MOST_RUNS_OF.get(source, MOST_RUNS))
        tasks += [found[int(i * step)] for i in range(int(len(found) / step))]
    made = Workers(jobs=2).map(run_of, tasks)
    return [run for run in made if run is not None]


@dataclass(frozen=True)
class Scored:
    """The error of a run after some others of its source were learnt from: what was known, and what those show."""

    source: str
    given: int
    error: float
    before: StepTimeError
    own: tuple[OwnRuns, ...]


class Everything:
    """All runs over all parameters in one table."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.sources = np.array([run.source for run in runs])
        self.traits = [run.traits for run in runs]
        self.scored: list[Scored] = []
        values = {name: value for run in runs for name, value in zip(run.prior.names, run.prior.values, strict=True)}
        self.names: tuple[Name, ...] = tuple(sorted(values))
        place = {name: at for at, name in enumerate(self.names)}
        self.values = np.array([values[name] for name in self.names])
        self.spread = np.array([spread_of(kind, _shared(key)) for kind, _, key in self.names])
        self.errors = np.array([run.error for run in runs])
        self.slopes = np.zeros((len(runs), len(self.names)))
        for at, run in enumerate(runs):
            self.slopes[at, [place[name] for name in run.prior.names]] = run.slopes
        usual = defaultdict(list)
        for (kind, _, key), value in zip(self.names, self.values, strict=True):
            usual[kind, _shared(key)].append(value)
        self.usual = np.array([float(np.median(usual[kind, _shared(key)])) for kind, _, key in self.names])

    def without(self, source: str) -> Floats:
        """Parameters fitted to all other sources."""
        used = self.sources != source
        moved, slopes, errors = np.zeros(len(self.names)), self.slopes[used], self.errors[used]
        pull = self.usual - self.values
        for _ in range(PASSES):
            left = errors - slopes @ moved
            weight = 1.0 / (1.0 + (left / FAR) ** 2) / NOISE**2
            normal = (slopes * weight[:, None]).T @ slopes + np.diag(1.0 / self.spread**2)
            moved = np.linalg.solve(normal, (slopes * weight[:, None]).T @ errors + pull / self.spread**2)
        low, high = np.array([(parameter(key).low, parameter(key).high) for _, _, key in self.names]).T
        return np.clip(self.values + moved, np.minimum(low, self.values), np.maximum(high, self.values))

    def _unseen(self, source: str) -> tuple[Ints, Prior, Slopes]:
        """A source's runs, what is known of its parameters without it, and what they do to its runs."""
        mine = np.flatnonzero(self.sources == source)
        used = np.flatnonzero(np.any(self.slopes[mine] != 0, axis=0))
        start = self.without(source)
        errors = self.errors[mine] - self.slopes[mine] @ (start - self.values)
        names = tuple(self.names[at] for at in used)
        low, high = np.array([(parameter(key).low, parameter(key).high) for _, _, key in names]).T
        prior = Prior(
            names, start[used], self.spread[used], np.minimum(low, start[used]), np.maximum(high, start[used])
        )
        return mine, prior, Slopes(names, start[used], errors, self.slopes[np.ix_(mine, used)])

    def least(self, source: str) -> tuple[float, float]:
        """The median absolute error of a source's runs with none given, and each with all the others."""
        mine, prior, known = self._unseen(source)
        left = np.array([_left(prior, known, np.arange(len(mine)) != at)[at] for at in range(len(mine))])
        before, after = (float(np.median(np.abs(np.expm1(-each)))) for each in (known.errors, left))
        return before, after

    def curve(self, source: str, generator: np.random.Generator) -> dict[int, float]:
        """The median absolute error of a source's runs by how many others of it were given."""
        mine, prior, known = self._unseen(source)
        found: dict[int, list[float]] = {count: [] for count in GIVEN if len(mine) >= count + SCORED}
        if not found:
            return {}
        most = max(found)
        others = [one for one in load_error_table().evidence if one.source != source]
        before = [
            StepTimeError.of(support_of(self.traits[at], others), load_error_table().time) for at in mine.tolist()
        ]
        for _ in range(DRAWS):
            order = generator.permutation(len(mine))
            for count in found:
                given, scored = np.isin(np.arange(len(mine)), order[:count]), order[most:]
                left = _left(prior, known, given)[scored]
                own = self._own_runs(mine, prior, known, given)
                self.scored += [
                    Scored(source, count, float(error), before[at], tuple(match_runs(self.traits[mine[at]], own)))
                    for at, error in zip(scored.tolist(), left, strict=True)
                ]
                found[count].append(float(np.median(np.abs(np.expm1(-left)))))
        return {count: float(np.median(each)) for count, each in found.items()}

    def _own_runs(self, mine: Ints, prior: Prior, known: Slopes, given: Flags) -> list[OwnRuns]:
        """What runs that were given show, each predicted from the others, as a learnt profile has it."""
        found: dict[Traits, list[float]] = defaultdict(list)
        for at in np.flatnonzero(given).tolist():
            rest = given.copy()
            rest[at] = False
            found[self.traits[mine[at]]].append(float(_left(prior, known, rest)[at]))
        return [
            OwnRuns(cluster="", traits=traits, layouts=len(e), error=float(np.sqrt(np.mean(np.square(e)))))
            for traits, e in found.items()
        ]


def _left(prior: Prior, known: Slopes, given: Flags) -> Floats:
    """Errors of all runs after some were learnt from."""
    values = prior.values
    if given.any():
        values = fit_values(prior, known, np.zeros(len(given)), given)
    return known.errors - known.slopes @ (values - prior.values)


def halves(scored: Sequence[Scored], learned: LearnedErrors) -> Floats:
    """Half of nine in ten errors, as logarithms, of runs that were scored."""
    return np.array([after(one.before, one.own, learned).high for one in scored])


def by_source(scored: Sequence[Scored]) -> Floats:
    """Weights under which sources, and numbers of runs given, count alike."""
    counts = Counter((one.source, one.given) for one in scored)
    return np.array([1 / counts[one.source, one.given] for one in scored])


def quantile_of(scored: Sequence[Scored], weight: float) -> float:
    """The spreads within which nine in ten errors lie where the spread of before counts as some layouts."""
    size = np.abs([one.error for one in scored]) / halves(scored, LearnedErrors(weight=weight, high=1.0))
    order, share = np.argsort(size), by_source(scored)
    reached = np.cumsum(share[order]) / share.sum()
    return float(size[order][np.searchsorted(reached, 0.9)])


def learned_errors(scored: Sequence[Scored]) -> LearnedErrors:
    """The weight under which intervals of nine in ten score best: narrow, and 20 times as dear beyond [Winkler]."""
    size, share = np.abs([one.error for one in scored]), by_source(scored)

    def score(errors: LearnedErrors) -> float:
        half = halves(scored, errors)
        return float(np.sum(share * (2 * half + 20 * np.maximum(size - half, 0.0))))

    tried = [LearnedErrors(weight=weight, high=quantile_of(scored, weight)) for weight in WEIGHTS]
    return min(tried, key=score)


def print_intervals(scored: Sequence[Scored]) -> None:
    """How often intervals hold, before and after, and how wide they are; the values that the table should have."""
    learned = load_error_table().learned
    usual = [one for one in scored if one.own and one.given == USUALLY]
    print(f"best values with {USUALLY} given: ", learned_errors(usual))
    for count in GIVEN[1:]:
        some = [one for one in scored if one.given == count and one.own]
        share, half = by_source(some), halves(some, learned)
        held = np.array(
            [abs(one.error) <= width for one, width in zip(some, half.tolist(), strict=True)], dtype=np.float64
        )
        was = np.array([one.before.low <= one.error <= one.before.high for one in some], dtype=np.float64)
        before = np.median([one.before.half_width for one in some])
        print(
            f"{count:3d} given: {np.average(held, weights=share):.1%} inside +-{np.median(np.sinh(half)):.1%}, in "
            f"the interval of before {np.average(was, weights=share):.1%} inside +-{before:.1%}"
        )


def _shared(key: str) -> str:
    return "fusion.attention_rate.others" if key.startswith("fusion.attention_rate") else key


def main() -> None:
    """Slopes, curves, print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rows", type=Path, help="file that keeps slopes between runs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.rows and arguments.rows.exists():
        runs = pickle.loads(arguments.rows.read_bytes())
    else:
        runs = runs_of([DATA / name for name in TABLES])
        if arguments.rows:
            arguments.rows.write_bytes(pickle.dumps(runs))
    every, generator = Everything(runs), np.random.default_rng(0)
    curves: dict[str, Mapping[int, float]] = {}
    least = {}
    print(f"{'source':44s} runs " + "".join(f"{count:8d}" for count in GIVEN) + "  others")
    for source in sorted(set(every.sources.tolist())):
        curve = curves[source] = every.curve(source, generator)
        if curve:
            figures = "".join(f"{curve[count]:8.1%}" if count in curve else " " * 8 for count in GIVEN)
            least[source] = every.least(source)
            print(f"{source[:44]:44s} {np.sum(every.sources == source):4d} {figures}{least[source][1]:8.1%}")
    result: dict[str, Any] = {"sources": curves, "all others given": least}
    for most in GIVEN[2:]:
        some = {source: curve for source, curve in curves.items() if most in curve}
        medians = {
            count: float(np.median([curve[count] for curve in some.values()])) for count in GIVEN if count <= most
        }
        worse = sum(curve[most] > curve[0] for curve in some.values())
        before, after = np.array([least[source] for source in some]).T
        result[f"of at least {most}"] = {"median": medians, "worse": worse, "sources": len(some)}
        print(
            f"{len(some)} sources with {most} and more to give: ",
            {c: f"{v:.1%}" for c, v in medians.items()},
            f"worse with {most}: {worse}; all others given {np.median(after):.1%}, worse: {np.sum(after > before)}",
        )
    print_intervals(every.scored)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

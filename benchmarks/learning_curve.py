"""How fast a few measured runs make predictions of an unseen source better.

Usage: python benchmarks/learning_curve.py [--rows FILE] [--json FILE]

Every source of the development tables is unseen once: the parameters of all stacks, devices and clusters are fitted
to the other sources (what nothing is left to tell of returns to what others of its kind are like), and simpar.learn
is given 0, 1, 3, 5 and 10 of its runs, drawn DRAWS times; the rest is scored. Each parameter is moved once for each
run, and fits are of what these slopes say: seconds instead of hours. --rows keeps the slopes for another run.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_runs import DATA, TABLES, UNMODELLED
from joblib import Parallel, delayed
from numpy.typing import NDArray

from simpar.learn.answer import NINE_OF_TEN
from simpar.learn.fit import Observed, Prior, Slopes, doubt, most_probable, slopes_of
from simpar.learn.parameters import Name, parameter, spread_of
from simpar.validate.cells import Row, Unmodelled, text
from simpar.validate.rates import has_rate, with_rates
from simpar.validate.rows import case, measured
from simpar.validate.table import read_table, suspect

GIVEN = (0, 1, 3, 5, 10)
DRAWS = 30
MOST_RUNS = 24  # of one source
MOST_RUNS_OF = {
    "ultrascale-playbook": 60,
    "Megatron-Bridge performance summary": 60,
    "NVIDIA dgxc-benchmarking READMEs": 60,
    "Zero Bubble PP": 20,
}
SCORED = 3  # runs that must be left to score
NOISE, FAR, PASSES = 0.07, 0.15, 12  # of the fit to the other sources

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """A measured run: what every parameter does to it around the shipped profiles."""

    source: str
    prior: Prior
    error: float
    slopes: Floats


def run_of(row: Row) -> Run | None:
    """One row as a run; None where it has no time that is modelled."""
    if suspect(row) or text(row, "notes").startswith("tier C") or text(row, "source") in UNMODELLED:
        return None
    try:
        found = measured(row)
        entry = case(row)
        if entry.open:
            return None  # what it leaves open is chosen by the numbers that are to be learnt
        if not found.step_time_s and has_rate(row):
            found = with_rates(found, row, entry)
        if not found.step_time_s:
            return None
        prior = Prior.of([entry])
        known = slopes_of([Observed(entry, found.step_time_s)], prior, prior.values)
    except Unmodelled:
        return None
    return Run(text(row, "source"), prior, float(known.errors[0]), known.slopes[0])


def runs_of(paths: Sequence[Path]) -> list[Run]:
    """Runs of all sources, thinned evenly as for fits."""
    rows = defaultdict(list)
    for path in paths:
        for row in read_table(path):
            rows[text(row, "source")].append(row)
    tasks = []
    for source, found in sorted(rows.items()):
        step = max(1.0, len(found) / MOST_RUNS_OF.get(source, MOST_RUNS))
        tasks += [found[int(i * step)] for i in range(int(len(found) / step))]
    made = Parallel(n_jobs=2, batch_size=8)(delayed(run_of)(row) for row in tasks)
    return [run for run in made if run is not None]


class Everything:
    """All runs over all parameters in one table."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.sources = np.array([run.source for run in runs])
        self.inside: dict[int, list[tuple[str, float]]] = defaultdict(list)
        values = {
            name: value for run in runs for name, value in zip(run.prior.names, run.prior.values, strict=True)
        }
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

    def curve(self, source: str, generator: np.random.Generator) -> dict[int, float]:
        """The median absolute error of a source's runs by how many others of it were given."""
        mine = np.flatnonzero(self.sources == source)
        used = np.flatnonzero(np.any(self.slopes[mine] != 0, axis=0))
        start = self.without(source)
        errors = self.errors[mine] - self.slopes[mine] @ (start - self.values)
        names = tuple(self.names[at] for at in used)
        low, high = np.array([(parameter(key).low, parameter(key).high) for _, _, key in names]).T
        prior = Prior(
            names, start[used], self.spread[used], np.minimum(low, start[used]), np.maximum(high, start[used])
        )
        known = Slopes(names, start[used], errors, self.slopes[np.ix_(mine, used)])
        found: dict[int, list[float]] = {count: [] for count in GIVEN if len(mine) >= count + SCORED}
        if not found:
            return {}
        most = max(found)
        for _ in range(DRAWS):
            order = generator.permutation(len(mine))
            for count in found:
                given, scored = np.isin(np.arange(len(mine)), order[:count]), order[most:]
                values = prior.values
                if count:
                    values = most_probable(prior, known, np.zeros(len(mine)), given)
                left = errors[scored] - known.slopes[scored] @ (values - prior.values)
                spread = doubt(prior, known, np.zeros(len(mine)), given)[scored]
                self.inside[count].append((source, float(np.mean(np.abs(left) <= NINE_OF_TEN * spread))))
                found[count].append(float(np.median(np.abs(np.expm1(-left)))))
        return {count: float(np.median(each)) for count, each in found.items()}


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
    print(f"{'source':44s} runs " + "".join(f"{count:8d}" for count in GIVEN))
    for source in sorted(set(every.sources.tolist())):
        curve = curves[source] = every.curve(source, generator)
        if curve:
            figures = "".join(f"{curve[count]:8.1%}" if count in curve else " " * 8 for count in GIVEN)
            print(f"{source[:44]:44s} {np.sum(every.sources == source):4d} {figures}")
    result: dict[str, Any] = {"sources": curves}
    for least in GIVEN[2:]:
        some = [curve for curve in curves.values() if least in curve]
        medians = {
            count: float(np.median([curve[count] for curve in some])) for count in GIVEN if count <= least
        }
        worse = sum(curve[least] > curve[0] for curve in some)
        result[f"of at least {least}"] = {"median": medians, "worse": worse, "sources": len(some)}
        print(
            f"{len(some)} sources with {least} and more to give: ",
            {c: f"{v:.1%}" for c, v in medians.items()},
            f"worse with {least}: {worse}",
        )
    shares = {
        count: float(
            np.mean(
                [
                    np.mean([share for name, share in found if name == source])
                    for source in {n for n, _ in found}
                ]
            )
        )
        for count, found in every.inside.items()
    }
    result["inside interval"] = shares
    print("inside the interval of nine in ten: ", {count: f"{share:.0%}" for count, share in shares.items()})
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

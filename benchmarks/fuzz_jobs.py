"""Answers of several processes against those of one: the random small problems of ``certificate.py``.

Usage: python benchmarks/fuzz_jobs.py [--first 0] [--last 20] [--jobs 2] [--backend local]

Everything that a search answers must be the same but for its seconds: candidates with their plans, times and reasons,
lists beside the winner, counts and certificate. Exit code 1 where something differs.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from certificate import Case, brute_force, drawn, tightened

import simpar
from simpar.planner.problem import Constraints
from simpar.workers import BACKENDS, Workers

MOST_PLANS = 60
"""Plans that a device is shrunk by, so that the fullest of them do not fit."""


def main() -> int:
    """Search every problem twice."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--backend", choices=BACKENDS, default=Workers.usual().backend)
    options = parser.parse_args()
    bad = 0
    for seed in range(options.first, options.last):
        sold = drawn(seed, MOST_PLANS)
        case = tightened(sold, brute_force(sold))
        one, several = (answer(case, jobs, options.backend) for jobs in (1, options.jobs))
        unlike = [key for key in one if one[key] != several.get(key)]
        bad += bool(unlike)
        if unlike:
            print(f"{', '.join(unlike)}: {case.describe()}", flush=True)
    print(f"{options.last - options.first} problems, {bad} answered differently by {options.jobs} processes")
    return int(bad > 0)


def answer(case: Case, jobs: int, backend: str) -> dict[str, Any]:
    """What a search says of a case, but for its seconds."""
    try:
        found = simpar.search(
            case.model, case.cluster, case.training, stack=case.stack, perturbation=case.perturbation, jobs=jobs,
            backend=backend,
            constraints=Constraints(case.headroom, case.axes, schedules=case.axes["schedule"], portable="any"),
        ).to_dict()  # fmt: skip
    except simpar.Infeasible as error:
        return {"infeasible": str(error)}
    del found["search_seconds"]
    return found


if __name__ == "__main__":
    sys.exit(main())

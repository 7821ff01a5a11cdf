"""How many hints of ``simpar simulate`` the framework of the stack cannot run, and whether each of them says so.

Usage:
    python benchmarks/hints.py [--jobs 100] [--seed 1] [--workers 2] [--json OUT.json]

Random jobs on stacks that an export target runs completely are simulated with hints. Each hint is then exported to
every such target of the stack: the framework can run it if one of them loses nothing that it does not lose of the asked
plan. Exit code 1 if a hint that cannot be run does not say so, or one that can be run says that it cannot.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from record import draw_plan

import simpar
from simpar.files import bundled
from simpar.frameworks import draft, load_target, targets_of
from simpar.neighbours import advise, from_flags
from simpar.report.result import Result
from simpar.workers import Workers

KINDS = ("runnable", "not runnable, said so", "not runnable, not said", "runnable, said not to be")
WRONG = KINDS[2:]
AT_ONCE = 16
"""Jobs that are drawn before it is counted how many were possible."""


def main() -> int:
    """Draw jobs until enough of them could be simulated, and count their hints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    stacks = [name for name in sorted(bundled("stacks")) if whole_targets(name)]
    jobs: list[list[dict[str, Any]]] = []
    for first in count(0, AT_ONCE):
        drawn = [(number, options.seed, stacks[number % len(stacks)]) for number in range(first, first + AT_ONCE)]
        jobs += [hints for hints in Workers(options.workers).map(hints_of, drawn) if hints is not None]
        if len(jobs) >= options.jobs:
            break
    hints = [hint for hints in jobs[: options.jobs] for hint in hints]
    counts = {kind: sum(hint["kind"] == kind for hint in hints) for kind in KINDS}
    print(f"{len(hints)} hints of {options.jobs} random jobs on {', '.join(stacks)}")
    for kind, number in counts.items():
        print(f"{number:5}  {number / max(len(hints), 1):5.1%}  {kind}")
    for hint in hints:
        if hint["kind"] in WRONG:
            print(f"{hint['kind']}: {hint['hint']} <- {json.dumps(hint['job'])}")
    if options.json:
        options.json.write_text(json.dumps({"counts": counts, "hints": hints}, indent=1) + "\n")
    return int(any(counts[kind] for kind in WRONG))


def whole_targets(stack: str) -> list[str]:
    """Export targets that run all that a stack does."""
    return [name for name in targets_of(stack) if load_target(name).runs_all]


def hints_of(draw: tuple[int, int, str]) -> list[dict[str, Any]] | None:
    """The hints of a random job about other layouts, each with its kind; None if the drawn job is impossible.

    A job is drawn by its number, a seed and its stack.
    """
    number, seed, stack = draw
    drawn, keys = draw_plan(number, seed, stack)
    try:
        plan = simpar.Plan.model_validate(keys)
        training = simpar.Training(seq_len=drawn["seq_len"], global_batch=drawn["global_batch"])
        inputs = {
            "model": simpar.Model(drawn["model"], seq_len=training.seq_len),
            "cluster": simpar.Cluster(drawn["hardware"], nodes=drawn["nodes"]),
            "training": training,
            "stack": stack,
        }
        result = simpar.simulate(**inputs, plan=plan)
    except (simpar.UserError, ValueError):
        return None
    before = lost_by_target(result, inputs)
    found = []
    told = [hint for hint in advise(result, {**inputs, "plan": plan}).why.hints if hint not in result.why.hints]
    for hint in (each for each in told if each.startswith("--")):  # the others say that there is none, and why
        changed = plan.with_values(**from_flags(hint.split(": ")[0]))
        after = lost_by_target(simpar.simulate(**inputs, plan=changed), inputs)
        can_run = any(after[name] <= before[name] for name in before)
        admits = "; not with " in hint
        kind = KINDS[3 if can_run and admits else 0 if can_run else 1 if admits else 2]
        found.append({"job": drawn | {"plan": keys}, "hint": hint, "kind": kind})
    return found


def lost_by_target(result: Result, inputs: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """What every target of the stack loses of the simulated plan, as its export says: fields with their values.

    Of layers it is the field alone: a cut follows from the mesh, and no change asks for one.
    """
    lost = {}
    for name in whole_targets(inputs["stack"]):
        try:
            exported = draft(result.plan, inputs["model"], inputs["training"], name, lossy=True)
            lost[name] = {(each.field, "" if each.field == "layers" else str(each.value)) for each in exported.lost}
        except simpar.UserError as error:
            lost[name] = {("", str(error))}
    return lost


if __name__ == "__main__":
    sys.exit(main())

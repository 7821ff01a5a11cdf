"""The layouts worth measuring before one of a search's candidates is chosen.

Candidates for a measurement are the layouts that the search shows, on its cluster, and the same layouts with fewer
replicas on fewer nodes, if they fit. What each measurement tells is computed in :mod:`simpar.uncertainty.experiments`.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import check_writable, write_atomic
from simpar.plan.choices.mesh import LABELLED
from simpar.plan.plan import Plan
from simpar.planner.answer.candidates import plan_of
from simpar.planner.certify.exact import exact, is_allowed
from simpar.planner.problem import BY_REGRET, Problem
from simpar.planner.result import Candidate, SearchResult
from simpar.profiles import about_learned, base_name
from simpar.report.certainty import layouts_measured_on
from simpar.report.layouts import known_layout, layout_of
from simpar.report.result import Result
from simpar.uncertainty.experiments import Decision
from simpar.uncertainty.joint import common_spread, joint_errors
from simpar.units import HOUR_S

SIZES = 3
"""How many of the smallest numbers of nodes are tried for a layout with fewer replicas."""
STEPS = 30
"""Steps of a run that suffice to time a step; the cost of a suggestion counts this many."""
COLUMNS = (
    "source", "model_name", "seq_len", "global_batch_seqs", "n_gpus", *LABELLED, "plan", "notes",
    "iteration_time_s", "peak_mem_gib",
)  # fmt: skip


@dataclass(frozen=True)
class Suggestion:
    """A layout to measure.

    ``plan`` is complete, with model, training and cluster. ``gain`` is the expected share of a step by which the
    finally chosen layout is faster once this one and those before it are measured. ``device_s`` is what STEPS steps
    take of all devices together. ``candidate`` is the rank of the candidate that it equals, or has fewer replicas of.
    """

    plan: Plan
    candidate: int
    nodes: int
    devices: int
    step_time_s: float
    fit_probability: float
    gain: float
    device_s: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "candidate": self.candidate,
            "nodes": self.nodes,
            "devices": self.devices,
            "step_time_s": self.step_time_s,
            "fit_probability": self.fit_probability,
            "expected_gain": round(self.gain, 5),
            "device_hours": self.device_s / HOUR_S,
            "steps": STEPS,
            "plan": self.plan.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class _Option:
    """A layout that may be measured: the rank of its candidate, and its simulated step."""

    candidate: int
    result: Result

    @property
    def devices(self) -> int:
        return int(self.result.setup.cluster["devices"])

    @property
    def device_s(self) -> float:
        return STEPS * self.result.step_time_s * self.devices


def suggestions(result: SearchResult, problem: Problem, most: int) -> list[Suggestion]:
    """At most ``most`` layouts worth measuring, in order; none if no possible measurement helps the choice.

    Layouts from which the problem's stack was learnt are not measured again, and a single candidate needs no choice.
    Raises UserError if nothing can be suggested for such a problem.
    """
    check(problem)
    if len(result.candidates) < 2:
        return []
    whole = [_Option(one.rank, _simulated(one.plan, problem, problem.cluster.nodes)) for one in result.candidates]
    options = {layout_of(one.result): one for one in (*whole, *_smaller(result.candidates, problem))}
    names = list(options)
    known = layouts_measured_on(problem.stack, problem.cluster.profile.name)
    spread = max(float(one.figures["layout_spread"]) for one in result.candidates)
    common = common_spread(result.best.figures["step_time_interval_s"], spread)
    errors = joint_errors({name: known_layout(one.result) for name, one in options.items()}, known, spread, common)
    new = [name for name in names if name not in {one.layout for one in known}]
    decision = Decision(
        step_s=np.array([one.result.step_time_s for one in whole]),
        errors=errors,
        options=[names.index(name) for name in new],
        costs=np.array([options[name].device_s for name in new]),
    )
    return [_suggestion(problem, options[new[at]], gain) for at, gain in decision.worth_measuring(most)]


def check(problem: Problem) -> None:
    """Raise UserError if no layout of a problem can be suggested."""
    if not problem.is_of_time:
        raise UserError(
            f"--suggest: is of the shortest step; allowed: --objective {BY_REGRET} or time, not {problem.objective}"
        )
    if problem.cluster.is_mixed:
        raise UserError(
            f"--suggest: hardware {problem.cluster.profile.name} has several kinds of nodes; what is learnt is of one"
        )


def _suggestion(problem: Problem, option: _Option, gain: float) -> Suggestion:
    result = option.result
    return Suggestion(
        plan=plan_of(problem, result),
        candidate=option.candidate,
        nodes=int(result.setup.cluster["nodes"]),
        devices=option.devices,
        step_time_s=result.step_time_s,
        fit_probability=result.certainty.fit_probability if result.certainty else 0.0,
        gain=gain,
        device_s=option.device_s,
    )


def _smaller(candidates: Sequence[Candidate], problem: Problem) -> Iterator[_Option]:
    """Candidates with fewer replicas on fewer nodes: the smallest that fit with the requested probability."""
    for one in candidates:
        options = (_tried(one, problem, nodes) for nodes in _fewer_nodes(one.plan, problem))
        yield from islice((option for option in options if option is not None), SIZES)


def _tried(one: Candidate, problem: Problem, nodes: int) -> _Option | None:
    try:
        result = _simulated(one.plan, problem, nodes)
    except UserError:
        return None  # its experts or replicas need all ranks
    allowed = is_allowed(problem, result, problem.constraints.fit_probability)
    return _Option(one.rank, result) if allowed else None


def _fewer_nodes(plan: Plan, problem: Problem) -> list[int]:
    """Numbers of nodes on which a layout has fewer replicas, with as many microbatches in each."""
    cluster, dp = problem.cluster, plan.mesh.replicas
    if plan.pipeline.stages or cluster.is_mixed:
        return []
    return [
        nodes
        for nodes in range(1, cluster.nodes)
        if cluster.nodes % nodes == 0
        and dp % (cluster.nodes // nodes) == 0
        and problem.training.global_batch % (cluster.nodes // nodes) == 0
    ]


def _simulated(plan: Plan, problem: Problem, nodes: int) -> Result:
    """The step of a layout on ``nodes`` nodes, with as many microbatches per replica. Raises UserError."""
    fewer = problem.cluster.nodes // nodes
    training = problem.training.model_copy(update={"global_batch": problem.training.global_batch // fewer})
    smaller = replace(problem, cluster=replace(problem.cluster, nodes=nodes), training=training)
    return exact(smaller, plan.with_values(dp=plan.mesh.replicas // fewer) if fewer > 1 else plan)


def learned_from(stack: str, hardware: str) -> tuple[tuple[str, ...], str, str]:
    """The tables from which a stack was learnt, and its stack and hardware before that, to learn anew with."""
    about = about_learned(stack, "stacks", "stack")
    if not about:
        return (), stack, hardware
    runs = tuple(name.strip() for name in str(about.get("source", "")).split(","))
    before = base_name(stack, "stacks", "stack"), base_name(hardware, "clusters", "hardware")
    return runs, before[0] or stack, before[1] or hardware


def write(chosen: Sequence[Suggestion], table: Path, model: str | None = None) -> list[Path]:
    """Write a table of suggestions to fill in with measurements, and a plan file beside it for each of them.

    ``model`` names the model if a plan does not. Returns the paths. Raises UserError if a file exists already: it may
    hold measurements.
    """
    plans = [table.with_name(f"{table.stem}-{at}.plan.json") for at in range(1, len(chosen) + 1)]
    refuse_existing(table)
    rows = io.StringIO()
    writer = csv.DictWriter(rows, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path, each in zip(plans, chosen, strict=True):
        plan = each.plan if model is None else each.plan.model_copy(update={"model": model})
        plan.save(path)
        training = plan.training or {}
        mesh = plan.mesh
        writer.writerow(
            {
                "source": "measured",
                "model_name": plan.model,
                "seq_len": training["seq_len"],
                "global_batch_seqs": training["global_batch"],
                "n_gpus": each.devices,
                **{axis: getattr(mesh, axis) for axis in LABELLED},
                "plan": path.name,
                "notes": f"predicted {each.step_time_s:.4g} s",
            }
        )
    write_atomic(table, rows.getvalue())
    return plans


def table_to_fill(name: str, field: str) -> Path:
    """The table that a field names, if suggestions can be written to it. Raises UserError."""
    table = Path(name)
    if table.suffix != ".csv":
        raise UserError(f"{field} {name}: allowed: a name that ends in .csv")
    refuse_existing(table)
    check_writable(table)
    return table


def refuse_existing(table: Path) -> None:
    """Raise UserError if the table exists already."""
    if table.exists():
        raise UserError(f"{table}: is there, and may hold measurements; allowed: a name that is free")

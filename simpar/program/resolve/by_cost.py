"""What plans leave to costs, decided: the second phase of deciding a plan, on its layout, before it is lowered."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.recompute import OPTIMAL
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.decider import Decider
from simpar.plan.choices.pipeline import CUSTOM, runs_slices
from simpar.plan.schedules import looks_at_costs
from simpar.program.job import TrainingJob
from simpar.program.resolve.checkpointing import Measure, choose_recomputation
from simpar.program.resolve.pass_costs import encoder_costs, pass_costs
from simpar.program.resolve.token_slices import choose_slices


@dataclass(frozen=True)
class CostedJob:
    """A job whose passes have durations on a cluster, and what simulates it (:data:`Measure`)."""

    job: TrainingJob
    cluster: Cluster
    measure: Measure


def _recomputation(known: CostedJob) -> Mapping[str, Any]:
    return {"recompute": choose_recomputation(known.job, known.cluster, known.measure)}


def _pass_costs(known: CostedJob, *, schedule: str, pp: int, stages: object) -> Mapping[str, Any]:
    """Durations of F, I and W that a greedy schedule is made for; open where the schedule does not depend on them."""
    if stages or pp == 1 or schedule == CUSTOM or not looks_at_costs(schedule):
        return {}
    return {"pass_costs": pass_costs(known.job, known.cluster)}


def _slices(known: CostedJob, *, schedule: str) -> Mapping[str, Any]:
    """Token slices that a schedule cuts sequences into; open where it runs whole ones."""
    return {"slices": choose_slices(known.job, known.cluster)} if runs_slices(schedule, None) else {}


BY_COST: tuple[Decider[CostedJob], ...] = (
    Decider(("recompute",), (), _recomputation, open_value=OPTIMAL),
    Decider(("pass_costs",), ("schedule", "pp", "stages"), _pass_costs),
    Decider(("slices",), ("schedule",), _slices),
)
"""In the order in which they decide. Costs read the whole layout; deciders need what says if there is a choice."""


def decide_by_cost(job: TrainingJob, cluster: Cluster, measure: Measure) -> TrainingJob:
    """The job whose layout states all that costs decide; what it states already stays. Raises UserError, Infeasible."""
    for decider in BY_COST:
        layout = job.layout
        if any(getattr(layout, name) == decider.open_value for name in decider.decides):
            needed = {name: getattr(layout, name) for name in decider.needs}
            values = decider.values(CostedJob(job, cluster, measure), **needed)
            job = replace(job, layout=replace(layout, **values))
    if job.layout.encoder_layers:  # no choice: durations say where an encoder's passes stand
        job = replace(job, layout=replace(job.layout, encoder_costs=encoder_costs(job, cluster)))
    return job

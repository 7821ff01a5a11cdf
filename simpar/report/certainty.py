"""How sure a result is: intervals of its step time and memory, the probability that it fits, and what supports them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from simpar.cost.stack import Stack
from simpar.hardware.cluster import Cluster
from simpar.program.blocks.rank_view import Job
from simpar.program.footprint import Footprint, on_fullest_device
from simpar.uncertainty.own_runs import MeasuredLayout, OwnRuns, after, like
from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import LONG, Traits, support_of
from simpar.uncertainty.table import shipped


class Certainty(BaseModel):
    """How sure a prediction is, from errors of measured runs that nothing was fitted to.

    Nine of ten measured steps lie in ``step_time_interval_s``, nine of ten reserved peaks in
    ``reserved_memory_interval_bytes``; ``fit_probability`` is that of fitting on every rank, and ``fit_causes`` says
    what part every cause has in what must stay free for it (they add up to 1; empty in files that did not say it).
    ``support`` counts the pairs of source and family of models that share everything with it; ``unsupported`` says
    what no run shows, in words. ``layout_spread`` is the spread (a mean absolute error) of the logarithm of a step by
    which layouts of one job differ. ``own_runs`` counts layouts like it that its profiles
    were learnt from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    step_time_interval_s: tuple[float, float]
    reserved_memory_interval_bytes: tuple[float, float]
    fit_probability: float
    fit_causes: dict[str, float] = {}
    support: int
    unsupported: tuple[str, ...] = ()
    layout_spread: float = 0.0
    own_runs: int = 0


def traits_of(job: Job, cluster: Cluster, device: str) -> Traits:
    """What of a job decides how well it is known, on one of its kinds of devices."""
    mesh, mixture = job.plan.mesh, job.graph.is_mixture
    return Traits(
        stack=job.stack.known_as,
        device=device,
        mixture=mixture,
        bits=min(job.plan.numerics.products.bits, 16),
        spread=mixture and mesh.ep * int(mesh.etp or 1) > cluster.domain_size,
        long=job.training.seq_len > LONG,
    )


def runs_on(stack: Stack, cluster: str) -> list[OwnRuns]:
    """What a stack was learnt from together with a cluster of this name: neither says much without the other."""
    return [own for own in stack.own_runs if own.cluster == cluster]


def measured_on(stack: Stack, cluster: str) -> list[MeasuredLayout]:
    """Layouts that a stack was learnt from together with a cluster of this name."""
    return [one for one in stack.measured if one.cluster == cluster]


def step_time_error(traits: Traits, own_runs: Sequence[OwnRuns] = ()) -> StepTimeError:
    """How far a step may be off, by published runs and by those that its profiles were learnt from."""
    table = shipped()
    known = StepTimeError.of(support_of(traits, table.evidence), table.time)
    return after(known, like(traits, own_runs), table.learned)


def certainty_of(job: Job, cluster: Cluster, held: Sequence[Footprint], step_time_s: float) -> Certainty:
    """How sure a simulated step is, by the errors of the table that is shipped.

    On several kinds of devices it is no surer than on the kind that is known the least.
    """
    own_runs = runs_on(job.stack, cluster.profile.name)
    everything = [traits_of(job, cluster, one.name) for one in cluster.devices]
    errors = [step_time_error(traits, own_runs) for traits in everything]
    error, traits = max(zip(errors, everything, strict=True), key=lambda one: one[0].spread)
    shown = [*shipped().evidence, *(own.evidence for own in own_runs)]
    support = support_of(traits, shown)
    fullest = max(on_fullest_device(held), key=lambda one: one.held_bytes)
    riskiest = min(held, key=lambda one: one.fit_probability)
    return Certainty(
        step_time_interval_s=error.interval_s(step_time_s),
        reserved_memory_interval_bytes=fullest.held_interval_bytes,
        fit_probability=riskiest.fit_probability,
        fit_causes=riskiest.fit_causes,
        support=support.all,
        unsupported=tuple(support.missing()),
        layout_spread=error.layout,
        own_runs=sum(own.layouts for own in like(traits, own_runs)),
    )

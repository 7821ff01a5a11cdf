"""How sure a result is: intervals of its step time and memory, the probability that it fits, and what supports them."""

from collections.abc import Callable, Sequence
from functools import cache
from math import exp, log

from pydantic import Field

from simpar.calls import Strict
from simpar.cost.collectives.parameters import reached_share
from simpar.cost.memory.allocator import REMAP_FACTORS, remap_s
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.hardware.device import Device
from simpar.hardware.intervals import interval_of
from simpar.program.footprint import Footprint, on_fullest_device
from simpar.program.job import TrainingJob
from simpar.stacks.stack import Stack
from simpar.uncertainty.own_runs import MeasuredLayout, OwnRuns, after, match_runs
from simpar.uncertainty.step_time import StepTimeError, UntoldTime
from simpar.uncertainty.support import LONG_SEQUENCE, Traits, support_of
from simpar.uncertainty.table import load_error_table


class Certainty(Strict):
    """How sure a prediction is, from errors of measured runs that nothing was fitted to.

    The 90 % intervals are ``step_time_interval_s`` and ``reserved_memory_interval_bytes``. ``fit_probability`` is the
    probability that every rank fits, and ``fit_causes`` gives the share of each cause in the memory that must stay free
    for it (the shares sum to 1; empty in older files). ``support`` counts the pairs of source and model family that
    share every trait with the job, of which ``ordinary_support`` are runs as most people do them and the others were
    tuned for a publication; ``support_sources`` names their sources, most runs first (empty in older files);
    ``unsupported`` lists in words the traits that no run shows. ``layout_spread`` is the spread (a mean absolute error)
    of the logarithm of the step between layouts of one job. ``own_runs`` counts similar layouts from which its profiles
    were learnt.
    """

    step_time_interval_s: tuple[float, float]
    reserved_memory_interval_bytes: tuple[float, float]
    fit_probability: float
    fit_causes: dict[str, float] = Field(default_factory=dict)
    support: int
    ordinary_support: int = 0
    support_sources: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()
    layout_spread: float = 0.0
    own_runs: int = 0


CLOCK = "sustained_clock"


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step: communication between domains (under way, exposed), and all that grows with kernels."""

    between_busy_s: float
    between_exposed_s: float
    kernels_s: float


def traits_of(job: TrainingJob, cluster: Cluster, device: str) -> Traits:
    """The traits of a job that decide how well its predictions are known, on one of its kinds of devices."""
    layout, mixture = job.layout, job.graph.is_mixture
    sends_copies = layout.token_dispatch == "per_expert" and int(layout.ep) * int(layout.etp or 1) > 1
    return Traits(
        stack=job.stack.known_as,
        device=device,
        mixture=mixture,
        bits=min(layout.products.bits, 16),
        spread=mixture and int(layout.ep) * int(layout.etp or 1) > cluster.domain_size,
        long=job.training.seq_len > LONG_SEQUENCE,
        sorted=mixture and job.stack.experts.sorts_on_host and sends_copies and layout.capacity_factor is None,
    )


def runs_on(stack: Stack, cluster: str) -> list[OwnRuns]:
    """The runs from which a stack was learnt together with a cluster of this name; neither says much alone."""
    return [own for own in stack.own_runs if own.cluster == cluster]


def layouts_measured_on(stack: Stack, cluster: str) -> list[MeasuredLayout]:
    """Layouts from which a stack was learnt together with a cluster of this name."""
    return [one for one in stack.measured if one.cluster == cluster]


def step_time_error(
    traits: Traits, step_time_s: float, own_runs: Sequence[OwnRuns] = (), untold: Sequence[UntoldTime] = ()
) -> StepTimeError:
    """The error distribution of a step, from published runs and from those its profiles were learnt from.

    ``untold`` are parts of it that no published run tells; runs that the profiles were learnt from do.
    """
    table = load_error_table()
    known = StepTimeError.of(support_of(traits, table.evidence), table.time, step_time_s)
    for part in untold:
        known = known.over(part)
    return after(known, match_runs(traits, own_runs), table.learned)


def certainty_of(
    job: TrainingJob, cluster: Cluster, held: Sequence[Footprint], step_time_s: float, parts: Callable[[], StepParts]
) -> Certainty:
    """How sure a simulated step is, by the shipped table of errors.

    On several kinds of devices, the least known kind decides. ``parts`` gives seconds of the step; it is asked for
    where no run tells the network or a device.
    """
    parts = cache(parts)
    own_runs = runs_on(job.stack, cluster.profile.name)
    everything = [traits_of(job, cluster, one.name) for one in cluster.devices]
    unmeasured, untold = _unmeasured_network(cluster), list[UntoldTime]()
    if unmeasured:
        between_s = (parts().between_busy_s, parts().between_exposed_s)
        busy, exposed = (min(seconds / step_time_s, 1.0) for seconds in between_s)
        untold.append(UntoldTime(busy, exposed, reached_share(cluster), load_error_table().time.network))
    if (habits := job.stack.memory.allocator).empty_cache_steps:
        share = min(float(remap_s(max(one.moving_bytes for one in held), habits)) / step_time_s, 1.0)
        untold.append(UntoldTime(share, share, 0.0, REMAP_FACTORS))
        unmeasured.append(
            f"no measured run empties its cache: that time is uncertain by a factor of {_factors(REMAP_FACTORS)}"
        )
    errors = []
    for traits, device in zip(everything, cluster.devices, strict=True):
        factors = None if match_runs(traits, own_runs) else _unmeasured_kernels(traits, device)
        share = min(parts().kernels_s / step_time_s, 1.0) if factors else 0.0
        kernels = [UntoldTime(share, share, 0.0, factors, is_common=True)] if factors else []
        errors.append((step_time_error(traits, step_time_s, own_runs, [*untold, *kernels]), traits, factors))
    error, traits, factors = max(errors, key=lambda one: one[0].spread)
    if factors:
        unmeasured.append(f"time of kernels on device {traits.device} is uncertain by a factor of {_factors(factors)}")
    shown = [*load_error_table().evidence, *(own.evidence for own in own_runs)]
    support = support_of(traits, shown)
    fullest = max(on_fullest_device(held), key=lambda one: one.held_bytes)
    riskiest = min(held, key=lambda one: one.fit_probability)
    return Certainty(
        step_time_interval_s=error.interval_s(step_time_s),
        reserved_memory_interval_bytes=fullest.held_interval_bytes,
        fit_probability=riskiest.fit_probability,
        fit_causes=riskiest.fit_causes,
        support=support.all,
        ordinary_support=support.ordinary,
        support_sources=support.sources,
        unsupported=(*support.missing(), *unmeasured),
        layout_spread=error.layout,
        own_runs=sum(own.layouts for own in match_runs(traits, own_runs)),
    )


def _unmeasured_network(cluster: Cluster) -> list[str]:
    """A network between nodes that no measured run has, in words."""
    out = cluster.profile.scale_out
    if out is None or out.kind != "ethernet" or cluster.world_size <= cluster.domain_size:
        return []
    joined = "no measured run is joined by TCP sockets, as these nodes are: time between them is of NCCL's tables, "
    factors = _factors(load_error_table().time.network)
    return [f"{joined}uncertain by a factor of {factors}, as other networks differ from these"]


def _unmeasured_kernels(traits: Traits, device: Device) -> tuple[float, float] | None:
    """Logarithms of the least and the most time of kernels over the predicted; None for a device that runs show.

    Those of its clock, where its profile says how sure that is; else of what boards of other devices differ by.
    """
    table = load_error_table()
    if any(one.traits.device == traits.device for one in table.evidence):
        return None
    clock, ends = device.kernels.get(CLOCK, 1.0), interval_of("devices", device.name, f"kernels.{CLOCK}")
    if ends:
        return log(clock / ends[1]), log(clock / ends[0])
    timed, untimed = table.time.kernels
    width = timed if any(not name.startswith(CLOCK) for name in device.kernels) else untimed
    return -width, width


def _factors(logarithms: tuple[float, float]) -> str:
    least, most = (exp(end) for end in logarithms)
    return f"{least:.2g} to {most:.2g}"

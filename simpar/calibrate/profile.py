"""Three profiles of a measured machine: the device of a rank, the cluster of its ranks, and the stack."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar.calibrate import fit
from simpar.calibrate.fit import FittedMachine, Quality, Samples, round_value
from simpar.calibrate.quiet import Quiet
from simpar.dataclass import dataclass
from simpar.files import write_atomic
from simpar.hardware.cluster import Cluster
from simpar.hardware.device import Device
from simpar.hardware.profile import ClusterProfile, Host, ScaleUp
from simpar.plan.plan import Plan
from simpar.profiles import as_written, yaml_text
from simpar.runtime.prepare import STACK
from simpar.simulation import simulate
from simpar.stacks.stack import Stack, load_stack
from simpar.units import GIB, MIB, US


@dataclass(frozen=True)
class KnownFacts:
    """Facts known without measuring: names of the profiles, bytes of memory of all ranks, and of the device."""

    name: str
    description: str
    memory_bytes: float
    device: Mapping[str, Any]


@dataclass(frozen=True)
class Profiles:
    """The result of a calibration with the quality of its fit and its samples; the device is inside the cluster."""

    cluster: ClusterProfile
    stack: Stack
    quality: tuple[Quality, ...]
    samples: Samples
    quiet: Quiet | None = None


def build(samples: Samples, known: KnownFacts, quiet: Quiet | None = None) -> Profiles:
    """Fit everything: kernels first, then groups, then whole steps; profiles say how ``quiet`` the machine was."""
    machine, quality = _kernels(samples, known)
    cluster = Cluster(_cluster(samples, known, machine.device), 1)
    if samples.request.ranks > 1:
        cluster, qualities = fit.collectives(samples, cluster)
        quality += qualities
        machine = fit.wrappers(samples, machine, cluster)
        if machine.device.kind == "cpu":
            cluster, qualities = _shared(samples, cluster)
            quality += qualities
    machine, qualities = fit.steps(samples, machine, lambda tried, number: step_s(samples, tried, number))
    quality += qualities
    text = _provenance(samples, quality) + (f"; {quiet.words}" if quiet else "")
    return Profiles(
        cluster.profile.model_copy(update={"provenance": text, "device": machine.device}),
        machine.stack.model_copy(update={"provenance": text}),
        tuple(quality),
        samples,
        quiet,
    )


def _kernels(samples: Samples, known: KnownFacts) -> tuple[FittedMachine, list[Quality]]:
    machine, quality = FittedMachine(_device(samples, known), _stack(samples, known), samples.request.dtype), []
    for part in (fit.products, fit.attention, fit.passes, fit.updates, fit.gradients):
        machine, qualities = part(samples, machine)
        quality += qualities
    return machine, quality


def _device(samples: Samples, known: KnownFacts) -> Device:
    """A device, without waves and tiles on a CPU; peaks are the best products measured."""
    best, share, latency_s = fit.bandwidth(samples)
    rates = [
        2.0 * m * n * k / each.seconds
        for each in samples.of("product")
        for m, n, k in [each.shape]
        if each.dtype == samples.request.dtype
    ]
    is_cpu = samples.request.machine.device == "cpu"
    whole = {"gemm_wave_overlap": 1.0, "gemm_small_tile_loss": 0.0} if is_cpu else {}
    return Device(
        name=known.name,
        kind="cpu" if is_cpu else "gpu",
        peak_flop_per_s={samples.request.dtype: round_value(max(rates))},
        memory_bytes=known.device.get("memory_bytes", known.memory_bytes / samples.request.ranks),
        memory_bandwidth=round_value(best),
        num_sms=known.device.get("num_sms", 1),
        l2_bytes=known.device.get("l2_bytes", 0.0),
        kernels={
            **whole, "memory_efficiency": round_value(share), "kernel_latency_us": round_value(latency_s / US),
            "gemm_wgrad_loss": 0.0,
        },
        sources=(known.description,),
    )  # fmt: skip


def _stack(samples: Samples, known: KnownFacts) -> Stack:
    """The runtime's own habits. On a CPU the host is the device, so issue times are part of the kernels' times."""
    stack = load_stack(STACK)
    issue = samples.of("stream", "issue")
    is_cpu = samples.request.machine.device == "cpu"
    # operators are timed without gradient sums; on a CPU these are part of the factor on whole steps
    numerics = stack.numerics.model_copy(update={"sum_bytes": 0.0})
    launch = stack.launch.model_copy(
        update={"host_time_per_kernel_s": 0.0 if is_cpu else round_value(issue[0].seconds)}
    )
    update: dict[str, Any] = {"name": known.name, "launch": launch, "numerics": numerics}
    update["sources"] = (known.description,)
    if is_cpu:
        update["overlap"] = stack.overlap.model_copy(update={"compute_slowdown_while_comm": 1.0})
        nothing = {"context_bytes": 0.0, "communicator_bytes": 0.0, "workspace_bytes": 0.0}
        allocator = stack.memory.allocator.model_copy(update=nothing)
        update["memory"] = stack.memory.model_copy(update={"allocator": allocator})
    return stack.model_copy(update=update)


def _cluster(samples: Samples, known: KnownFacts, device: Device) -> ClusterProfile:
    """The ranks of this machine and their interconnect, whose bandwidth is twice the best that any message reached."""
    messages = samples.of("collective")
    best = max((each.shape[1] / each.seconds for each in messages), default=device.memory_bandwidth / 2)
    is_cpu = device.kind == "cpu"
    return ClusterProfile(
        name=known.name,
        device=device,
        devices_per_node=samples.request.ranks,
        scale_up=ScaleUp(kind="shared_memory" if is_cpu else "nvswitch", bandwidth=round_value(2 * best), latency=US),
        host=Host(
            memory_bytes=known.memory_bytes,
            memory_bandwidth=device.memory_bandwidth,
            pcie_bandwidth=device.memory_bandwidth,
        ),
        sources=(known.description,),
    )


def _shared(samples: Samples, cluster: Cluster) -> tuple[Cluster, list[Quality]]:
    """The cores that ranks share, and how much of them collectives take."""
    most, quality = fit.capacity(samples)
    large = [each for each in samples.of("collective") if each.shape[1] >= MIB]
    load = round_value(sum(each.load for each in large) / len(large)) if large else 0.0
    host = cluster.profile.host.model_copy(update={"compute_capacity": most, "collective_load": load})
    return replace(cluster, profile=cluster.profile.model_copy(update={"host": host})), quality


def step_s(samples: Samples, machine: FittedMachine, number: int) -> float:
    """Predicted seconds of a step of the request on one rank."""
    wanted = samples.request.steps[number]
    alone = Samples(samples.request.model_copy(update={"ranks": 1}), ())
    cluster = Cluster(_cluster(alone, KnownFacts(machine.device.name, "", GIB, {}), machine.device), 1)
    plan = Plan.model_validate(
        {"dp": 1, "micro_batch": wanted.batch // wanted.microbatches, "precision": samples.request.dtype}
    )
    result = simulate(wanted.graph(), cluster, plan, wanted.training, stack=machine.stack)
    return result.speed.step_time_s


def _provenance(samples: Samples, quality: Sequence[Quality]) -> str:
    """What was measured, and the errors of the fits."""
    request = samples.request
    parts = "; ".join(f"{each.part} {each.median:.1%} median, {each.p90:.1%} p90 of {each.count}" for each in quality)
    return (
        f"measured by simpar calibrate: {len(samples.every)} samples on {request.ranks} rank(s) of "
        f"{request.machine.threads} thread(s); absolute error of the fits: {parts}"
    )


def write(profiles: Profiles, path: Path) -> tuple[Path, Path]:
    """Write the cluster with its device to a path and the stack beside it; returns both paths. Raises UserError."""
    beside = path.with_suffix(f".stack{path.suffix}")
    for where, model in ((path, profiles.cluster), (beside, profiles.stack)):
        write_atomic(where, yaml_text(as_written(model)))
    return path, beside

"""Predictions of cases: lowered as in ``simulate``, swept without contention and without the report.

Without contention the time is a lower bound, but thousands of rows take about a minute; where it matters (sends and
gradient reduction on one NIC) the difference is below a percent of the step. Contention is included on PCIe nodes,
where all groups share the same ports, and where devices are processes on the same cores.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from simpar import files
from simpar.architectures.flops import hardware_flop_per_token, model_flop_per_token
from simpar.cost.collectives.measured import calibrate_cluster
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.part import part_of_node
from simpar.hardware.profile import ClusterProfile
from simpar.plan.plan import Plan
from simpar.profiles import share_of_nics
from simpar.program.footprint import footprints
from simpar.program.ir.program import Timing
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered
from simpar.program.perturbation import Perturbation
from simpar.report.certainty import Certainty, certainty_of
from simpar.report.context import SummaryInputs
from simpar.report.result import Result
from simpar.report.summarise import step_parts, summarise
from simpar.simulation import lower_job, make_job
from simpar.stacks.stack import Stack, load_stack
from simpar.units import TERA
from simpar.validation.cells import Row, Unmodelled, measurement, read_word
from simpar.validation.devices import load_named_profile
from simpar.validation.rows import Case, Measurements, PeakCounts

SHARED = ("pcie", "shared_memory")
"""Fabrics of nodes on which all groups, or all devices, share the bandwidth."""
_Part = TypeVar("_Part", bound=BaseModel)


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds per step, and bytes that the framework's allocator reports on the rank whose log is shown.

    That rank is the fullest, or rank 0 (``Case.first_rank_reports``); ``fits`` holds for all ranks. ``certainty`` says
    how sure they are; its memory interval is for ``peak_reserved_bytes``. It is None for single kernels and
    collectives.
    """

    step_time_s: float
    static_memory_bytes: float
    peak_allocated_bytes: float
    peak_reserved_bytes: float
    fits: bool
    certainty: Certainty | None = None
    peak_device_bytes: float = 0.0

    def peak_bytes(self, counts: PeakCounts) -> float:
        """The peak of tensors, of reserved memory, or of the memory that the device shows as used."""
        known = {
            "allocated": self.peak_allocated_bytes,
            "reserved": self.peak_reserved_bytes,
            "device": self.peak_device_bytes,
        }
        return known[counts]


@dataclass(frozen=True)
class ParameterOverrides:
    """Parameters that a fit tries instead of the profiles' values: of devices, stacks and clusters, by dotted key."""

    devices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    stacks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    clusters: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


NO_TUNING = ParameterOverrides()


def predict(case: Case, tuning: ParameterOverrides = NO_TUNING) -> Prediction:
    """Predict one case. Raises Unmodelled if the plan is not possible on this model and cluster."""
    cluster = cluster_of(case, tuning)
    lowered, timing = time_ops(case, cluster, tuning)
    held = footprints(lowered, timing, cluster)
    step_time_s = _step_time_s(lowered, timing)
    first = int(np.argmin(lowered.quotient.representative_rank))
    shown = (held[first],) if case.first_rank_reports else held
    fullest = max(shown, key=lambda one: one.reserved_bytes)
    interval = {"reserved_memory_interval_bytes": fullest.reserved_interval_bytes}
    return Prediction(
        step_time_s=step_time_s,
        static_memory_bytes=max(float(one.static.total_bytes) for one in shown),
        peak_allocated_bytes=max(one.allocated_bytes for one in shown),
        peak_reserved_bytes=fullest.reserved_bytes,
        fits=max(one.needed_bytes for one in held) <= cluster.device.memory_bytes,
        certainty=certainty_of(
            lowered.job, cluster, held, step_time_s, lambda: step_parts(inputs_of(lowered, timing, cluster))
        ).model_copy(update=interval),
        peak_device_bytes=max(one.held_bytes for one in shown),
    )


def predict_time_s(case: Case, tuning: ParameterOverrides = NO_TUNING) -> float:
    """Only the step time of one case, in seconds. Raises Unmodelled."""
    return _step_time_s(*time_ops(case, cluster_of(case, tuning), tuning))


def result_of(case: Case, tuning: ParameterOverrides = NO_TUNING) -> Result:
    """The full result of a case's step, as :func:`predict` predicts it. Raises Unmodelled."""
    cluster = cluster_of(case, tuning)
    return summarise(inputs_of(*time_ops(case, cluster, tuning), cluster), with_timeline=False)


def inputs_of(lowered: Lowered, timing: Timing, cluster: Cluster) -> SummaryInputs:
    """What is summarised of a case."""
    return SummaryInputs(lowered, timing, cluster, "sweep", "full", Perturbation())


def time_ops(case: Case, cluster: Cluster, tuning: ParameterOverrides = NO_TUNING) -> tuple[Lowered, Timing]:
    """The Program of a case and the times of its ops. Raises Unmodelled."""
    with _in_words():
        job = job_of(case, cluster, tuning)
        lowered = lower_job(job, cluster, contention=cluster.profile.scale_up.kind in SHARED, apart=False)
    engine = choose_engine("auto", lowered.program)
    return lowered, engine(lowered.program)


def job_of(case: Case, cluster: Cluster, tuning: ParameterOverrides = NO_TUNING) -> TrainingJob:
    """The job of a case. Raises Unmodelled if it is not possible."""
    stack = change_stack(case.stack, {**tuning.stacks.get(case.stack, {}), **case.stack_changes})
    with _in_words():
        plan = files.parse(Plan, dict(case.plan), source="row")
        return _tuned(make_job(case.graph, cluster, plan, case.training, stack), tuning)


@contextmanager
def _in_words() -> Iterator[None]:
    """Turn errors about impossible plans into Unmodelled with one line."""
    try:
        yield
    except UserError as error:
        raise Unmodelled(str(error).splitlines()[0].removeprefix("plan: ")) from None


def _step_time_s(lowered: Lowered, timing: Timing) -> float:
    return float(lowered.job.stack.step_s(timing.makespan_ns))


def _tuned(job: TrainingJob, tuning: ParameterOverrides) -> TrainingJob:
    device = job.kernels.device
    if device.name not in tuning.devices:
        return job
    kernels = {**device.kernels, **tuning.devices[device.name]}
    changed = device.model_copy(update={"kernels": kernels})
    return replace(job, kernels=replace(job.kernels, device=changed))


def cluster_of(case: Case, tuning: ParameterOverrides = NO_TUNING) -> Cluster:
    """The cluster of a case, in the state that the case's own fabric measurements show."""
    profile = load_named_profile(case.hardware)
    for key, value in tuning.clusters.get(case.hardware, {}).items():
        profile = replace_field(profile, key.split("."), value)
    if case.devices_per_node != profile.devices_per_node:
        profile = _resized(profile, case.devices_per_node)
    for key, own in case.hardware_changes.items():
        profile = replace_field(profile, key.split("."), own)
    nodes = case.num_devices // case.devices_per_node
    try:
        cluster = make_cluster(_in_segments(profile, nodes), nodes)
    except UserError as error:
        raise Unmodelled(str(error)) from None
    return calibrate_cluster(cluster, case.fabric) if case.fabric else cluster


def _resized(profile: ClusterProfile, per_node: int) -> ClusterProfile:
    """Part of a node, or a larger node, with NICs in proportion to the devices."""
    if per_node < profile.devices_per_node:
        return part_of_node(profile, per_node)
    out = profile.scale_out
    if out is not None:
        nics = share_of_nics(per_node, profile.devices_per_node, out.nics_per_node)
        out = out.model_copy(update={"nics_per_node": nics})
    return profile.model_copy(update={"devices_per_node": per_node, "scale_out": out})


def _in_segments(profile: ClusterProfile, nodes: int) -> ClusterProfile:
    """Racks that a job uses equally: schedulers place it in segments that divide its nodes."""
    per_domain = profile.domain_size // profile.devices_per_node
    if nodes <= per_domain or nodes % per_domain == 0:
        return profile
    share = next(count for count in range(per_domain, 0, -1) if nodes % count == 0)
    scale_up = profile.scale_up.model_copy(update={"domain": share * profile.devices_per_node})
    out = profile.scale_out
    if out is not None and out.nodes_per_leaf == per_domain:
        out = out.model_copy(update={"nodes_per_leaf": share})
    return profile.model_copy(update={"scale_up": scale_up, "scale_out": out})


def change_stack(name: str, changes: Mapping[str, Any]) -> Stack:
    """A stack with single fields replaced by dotted key."""
    stack = load_stack(name)
    for key, value in changes.items():
        stack = replace_field(stack, key.split("."), value)
    return stack


def replace_field(part: _Part, path: Sequence[str], value: object) -> _Part:
    """A section with the field at the end of a path replaced."""
    name, *rest = path
    kept = getattr(part, name, None)
    if isinstance(kept, Mapping):
        return part.model_copy(update={name: {**kept, rest[0]: value}})
    return part.model_copy(update={name: replace_field(kept, rest, value) if rest and kept is not None else value})


# Step times from published rates, if a row has nothing better; they depend on what the source counts as FLOP.
COUNTS = ("model", "causal", "hardware")


def has_rate(row: Row) -> bool:
    """Whether a row gives tokens per second, FLOP/s or a share of the peak."""
    return any(measurement(row, name) for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"))


def with_rates(measured: Measurements, row: Row, case: Case) -> Measurements:
    """The measurements with the step time that a row's rate implies, and that of another tool's predicted rate."""
    tokens = measurement(row, "tokens_per_s_per_gpu")
    if tokens:
        return replace(measured, step_time_s=case.training.tokens_per_step / case.num_devices / tokens)
    rate = (measurement(row, "tflops_per_gpu") or 0.0) * TERA or (
        measurement(row, "mfu_pct") or 0.0
    ) / 100 * peak_flop_per_s(case)
    flop = _flop_per_token(row, case) * case.training.tokens_per_step / case.num_devices
    peer = measurement(row, "peer_pred_tflops_per_gpu")
    return replace(measured, step_time_s=flop / rate, peer_step_time_s=flop / (peer * TERA) if peer else None)


def peak_flop_per_s(case: Case) -> float:
    """The dense peak of one device at the precision of a case."""
    precision = str(case.plan["precision"])
    return KernelModel(cluster_of(case).device).peak("bf16" if precision == "fp16" else precision)


def _flop_per_token(row: Row, case: Case) -> float:
    counts = read_word(row, "flop_count", {name: name for name in COUNTS}, "model")
    if counts == "hardware":
        return hardware_flop_per_token(case.graph, case.training.seq_len, str(case.plan["recompute"]))
    convention = "causal" if counts == "causal" else "full"
    return model_flop_per_token(case.graph, case.training.seq_len, convention)

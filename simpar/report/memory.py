"""Memory of a simulated step: the report by stage, and the curve over time of every class of ranks."""

import numpy as np

from simpar.cost.memory.terms import ALWAYS, BETWEEN, PASSES, UPDATE
from simpar.program.footprint import Footprint, HostUse, host_use, on_fullest_device
from simpar.program.ir.program import MEMORY_CATEGORIES, Label
from simpar.program.lower import Lowered
from simpar.report.context import SummaryInputs
from simpar.report.parts import HostReport, MemoryReport, StageMemory
from simpar.report.timeline import MemoryCurve
from simpar.units import NS_PER_S, unique

BETWEEN_STEPS, IN_UPDATE = "the gather of updated parameters", "the optimizer's update"


def _constant_parts(one: Footprint) -> dict[str, float]:
    """Bytes of the parts of a class's memory that stay constant during a step."""
    static = one.static
    return {
        "parameters": float(static.bytes_of("parameters", ALWAYS, PASSES)),
        "gradients": float(static.bytes_of("gradients", ALWAYS, PASSES) + static.bytes_of("transient")),
        "optimizer_states": float(static.bytes_of("optimizer_states")),
        "overhead": one.overhead_bytes,
    }


def stage_memory(context: SummaryInputs, held: tuple[Footprint, ...]) -> list[StageMemory]:
    """The memory of every pipeline stage, for its class with the fullest devices."""
    fullest: dict[int, tuple[float, int, dict[str, float]]] = {}
    for class_id, one in enumerate(held):
        parts = _parts(one)
        full = sum(parts.values()) / one.capacity_bytes
        if one.stage not in fullest or full > fullest[one.stage][0]:
            fullest[one.stage] = full, class_id, parts
    kinds = context.cluster.device_of(context.lowered.quotient.representative_rank).tolist()
    return [
        StageMemory(
            stage=stage,
            device=context.cluster.devices[kinds[class_id]].name,
            capacity_bytes=held[class_id].capacity_bytes,
            **{f"{part}_bytes": size for part, size in parts.items()},
            peak_bytes=sum(parts.values()),
            peak_time_s=_peak_time_ns(context, class_id, held[class_id]) / NS_PER_S,
            peak_op=_peak_name(context.lowered, held[class_id]),
        )
        for stage, (_, class_id, parts) in sorted(fullest.items())
    ]


def _parts(one: Footprint) -> dict[str, float]:
    """What a class holds at its peak, by part."""
    moving = dict(zip(MEMORY_CATEGORIES, one.use.at_peak.tolist(), strict=True))
    beside = moving["transient"] + float(one.static.bytes_of("transient", PASSES))
    result = {**_constant_parts(one), "activations": moving["activations"], "transient": beside}
    if one.peaks_between:
        result |= {"activations": 0.0, "transient": float(one.static.bytes_of("transient", _ends_in(one)))}
        result["parameters"] = float(one.static.bytes_of("parameters"))
        result["gradients"] -= float(one.static.bytes_of("gradients", PASSES))
    return result


def memory_curve(context: SummaryInputs, class_id: int, one: Footprint) -> MemoryCurve:
    """The memory of a class over the step: passes unit by unit, then the update and what follows it."""
    time_ns, held = context.moving_memory(class_id)
    begin, end = _update_ns(context, class_id)
    static, ends = one.static, np.array([[begin], [end]])
    instants = unique(np.append(time_ns, ends))
    moving = held[np.searchsorted(time_ns, instants, side="right") - 1].astype(np.float64)
    behind, after = instants >= begin, instants >= end
    columns = {name: np.full(len(instants), value) for name, value in _constant_parts(one).items()}
    columns |= {name: moving[:, MEMORY_CATEGORIES.index(name)] for name in ("activations", "transient")}
    for name in ("parameters", "gradients"):
        columns[name] -= behind * float(static.bytes_of(name, PASSES))
    columns["transient"] += ~behind * float(static.bytes_of("transient", PASSES))
    columns["transient"] += (behind & ~after) * float(static.bytes_of("transient", UPDATE))
    columns["transient"] += after * float(static.bytes_of("transient", BETWEEN))
    return MemoryCurve(instants / NS_PER_S, columns)


def _update_ns(context: SummaryInputs, class_id: int) -> tuple[int, int]:
    """When the optimizer's update of a class begins and ends; the end of all its ops where it has none."""
    ops, timing = context.lowered.program.ops, context.timing
    mine = np.flatnonzero(ops.class_id == class_id)
    is_update = np.array([label.kind == "optimizer" for label in context.lowered.program.labels])
    update = mine[is_update[ops.label[mine]]]
    if not len(update):
        update = mine[[np.argmax(timing.finish_ns[mine])]]
        return (int(timing.finish_ns[update[0]]),) * 2
    return int(timing.start_ns[update].min()), int(timing.finish_ns[update].max())


def _peak_time_ns(context: SummaryInputs, class_id: int, one: Footprint) -> int:
    """When the memory of a class peaks first: inside an op, in the update or behind it."""
    if one.peaks_between:
        return _update_ns(context, class_id)[0 if one.static.ends_in_update else 1]
    return context.moving_peak_ns(class_id)


def _ends_in(one: Footprint) -> str:
    """When a class holds the most behind its passes."""
    return UPDATE if one.static.ends_in_update else BETWEEN


def _peak_name(lowered: Lowered, one: Footprint) -> str:
    """What runs when the memory of a class peaks."""
    if not one.peaks_between:
        return _op_name(lowered, one.use.peak_op)
    return IN_UPDATE if one.static.ends_in_update else BETWEEN_STEPS


def _op_name(lowered: Lowered, op: int) -> str:
    if op < 0:
        return "the whole step"
    ops = lowered.program.ops
    label = lowered.program.labels[int(ops.label[op])]
    microbatch = int(ops.microbatch[op])
    words = _words(label)
    return f"{words} of microbatch {microbatch}" if microbatch >= 0 else words


def _words(label: Label) -> str:
    """Kind and name; where blocks begin and end, only the name of the pass."""
    kind, name = label.kind.replace("_", " "), label.name
    if label.kind == "join":
        return name.replace("_", " ")
    return kind if name == label.kind else f"{kind} {name}"


def memory_report(context: SummaryInputs, stages: list[StageMemory], held: tuple[Footprint, ...]) -> MemoryReport:
    """The memory report; peaks are those on the fullest kind of device."""
    beside = on_fullest_device(held)
    capacity = beside[0].capacity_bytes
    host = _host(host_use(context.lowered, context.cluster))
    fits = all(one.needed_bytes <= one.capacity_bytes for one in held)
    return MemoryReport(
        peak_memory_bytes=max(one.overhead_bytes + one.allocated_bytes for one in beside),
        peak_reserved_bytes=max(one.held_bytes for one in beside),
        static_memory_bytes=max(float(one.static.total_bytes) for one in beside),
        capacity_bytes=capacity,
        fits=fits and (host is None or host.fits),
        stages=tuple(stages),
        host=host,
    )


def _host(use: HostUse | None) -> HostReport | None:
    if use is None:
        return None
    node, drives = use.node, use.nvme_capacity_bytes
    return HostReport(
        optimizer_states=node.optimizer_bytes,
        gradients=node.gradients_bytes,
        parameters=node.parameters_bytes,
        activations=node.activations_bytes,
        used=node.memory_bytes,
        capacity=use.capacity_bytes,
        nvme=node.nvme_bytes,
        nvme_capacity=drives if np.isfinite(drives) else None,
        fits=use.fits,
    )

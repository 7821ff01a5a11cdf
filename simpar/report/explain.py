"""What binds, in words: the critical path, the largest losses, the memory peak, and what to try next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.program.program import Program, Timing
from simpar.report.result import MOST_NAMED, Cooperation, HostReport, Result, StageMemory, Waited
from simpar.units import NS_PER_S, format_bytes, format_seconds

MEMORY_PARTS = ("parameters", "gradients", "optimizer_states", "activations", "transient", "overhead")
WORDS = {
    "exposed_tp": "exposed tensor-parallel communication",
    "exposed_pp": "exposed pipeline sends",
    "exposed_dp": "exposed data-parallel communication",
    "exposed_cp": "exposed context-parallel communication",
    "exposed_ep": "exposed expert-parallel communication",
    "bubble": "pipeline bubble",
    "waiting": "waiting for other ranks",
    "optimizer": "optimizer",
    "host": "kernel launches on the host",
    "offload": "offload transfers",
    "jitter": "waiting for ranks that jitter",
}
WORTH_NAMING = 0.01  # share of the step below which it is not said for whom a rank waits
WORTH_A_HINT = 0.05  # share of the step below which a loss is not worth a suggestion
ROOMY = 0.3  # share of the capacity above which unused memory is worth trading for time


def critical_path(binding: NDArray[np.int64], timing: Timing) -> NDArray[np.int64]:
    """Ops of one longest chain, first to last, int64[n].

    Walks back from the op that finishes last, always through the ``binding`` predecessor, which finished last
    (:func:`simpar.report.attribution.binding_predecessors`); ops of no duration stay in the chain.
    """
    if not len(timing.finish_ns):
        return np.zeros(0, dtype=np.int64)
    last = binding.tolist()
    chain = [int(np.argmax(timing.finish_ns))]
    while (before := last[chain[-1]]) >= 0:
        chain.append(before)
    return np.array(chain[::-1], dtype=np.int64)


def critical_path_s(program: Program, timing: Timing, binding: NDArray[np.int64]) -> dict[str, float]:
    """Seconds of every kind of op on the critical path, largest first; "wait" is what no op on it covers."""
    chain = critical_path(binding, timing)
    start, finish = timing.start_ns[chain], timing.finish_ns[chain]
    clock = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum.accumulate(finish)])[: len(chain)]
    each = finish - np.maximum(start, np.minimum(clock, finish))
    kinds = dict.fromkeys(program.labels[label].kind for label in program.ops.label[chain].tolist())
    number = {kind: at for at, kind in enumerate(kinds)}
    kind_of_label = np.array([number.get(label.kind, -1) for label in program.labels], dtype=np.int64)
    spent = np.zeros(len(number), dtype=np.int64)
    np.add.at(spent, kind_of_label[program.ops.label[chain]], each)
    waited = int(np.maximum(start - clock, 0).sum())
    order = sorted(zip(["wait", *kinds], [waited, *spent.tolist()], strict=True), key=lambda item: -item[1])
    return {kind: time / NS_PER_S for kind, time in order if time}


def explained(result: Result, *, critical: Mapping[str, float] | None = None) -> Result:
    """The same result with its explanation; ``critical`` is what :func:`critical_path_s` found."""
    said = {
        "binds": tuple(_binds(result)), "hints": tuple(_hints(result)), "critical_path_s": dict(critical or {}),
    }  # fmt: skip
    return replace(result, why=result.why.model_copy(update=said))


def _binds(result: Result) -> Iterator[str]:
    step = result.step_time_s
    parts = result.time_breakdown_s.model_dump()
    losses = sorted(((parts[name], words) for name, words in WORDS.items()), reverse=True)
    sentence = f"compute takes {parts['compute'] / step:.1%} of the step"
    worst = [
        f"{words} {format_seconds(value)} ({value / step:.1%})"
        for value, words in losses
        if value >= 0.01 * step
    ]
    yield f"{sentence}; lost to {', '.join(worst[:3])}" if worst else f"{sentence}; nothing else reaches 1 %"
    yield from _waiting_sentences(result)
    yield _memory_sentence(result)
    if result.speed.useful_share < 1.0:
        useful = result.speed.useful_share
        yield (
            f"{1 - useful:.1%} of the tokens are padding: {useful * result.tokens_per_s:,.0f} of use a second; packed "
            "sequences have none"
        )
    if memory_host := result.memory.host:
        yield _host_sentence(memory_host)
    if result.cooperation is not None:
        yield _cooperation_sentence(result.cooperation)


def _waiting_sentences(result: Result) -> Iterator[str]:
    """For whom the rank waits, and what slow ranks cost."""
    if slow := result.slow_ranks:
        named = ", ".join(
            f"rank {rank} ({by:g} times)" for rank, by in list(slow.factors.items())[:MOST_NAMED]
        )
        more = len(slow.factors) - MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        without, gain = slow.step_time_without_s, result.step_time_s - slow.step_time_without_s
        yield (
            f"slow: {named}; without {'it' if len(slow.factors) == 1 else 'them'} the step takes "
            f"{format_seconds(without)} instead of {format_seconds(result.step_time_s)} (simulated), "
            f"{gain / result.step_time_s:.1%} less"
        )
    listed = [part for part in result.waiting if part.seconds >= WORTH_NAMING * result.step_time_s]
    if listed:
        yield "waits " + ", ".join(
            f"{format_seconds(part.seconds)} for {waited_for(part)}" for part in listed[:3]
        )


def waited_for(part: Waited) -> str:
    """Whom a rank waits for, in words."""
    many = "s" if part.num_ranks > 1 else ""
    ranks = f"rank{many} {', '.join(map(str, part.ranks[:3]))}" + (" ..." if part.num_ranks > 3 else "")
    if part.cause == "slow rank":
        return f"{ranks}, {part.factor:g} times slower" if part.ranks else "slow ranks"
    if part.cause == "unequal work":
        return f"{ranks} of stage {part.stage}, with more to do" if part.ranks else "ranks with more to do"
    kind = f"{part.kind} " if part.kind else ""
    return f"{kind}collectives of other groups" + (f" ({ranks})" if part.ranks else "")


def _cooperation_sentence(met: Cooperation) -> str:
    """Which link or server limits the exchange, and what staleness costs."""
    words = (
        f"{met.replicas} replicas under {met.scheme}: {format_seconds(met.local_step_s)} of own work a step"
    )
    words += f", {format_seconds(met.exchange_s)} of messages, {format_seconds(met.waiting_s)} of waiting"
    if met.busy:
        name = max(met.busy, key=lambda link: met.busy[link])
        words += f"; the {name} is busy {met.busy[name]:.0%} of the time"
    if met.staleness is not None:
        words += f"; gradients are {met.staleness.mean:.3g} updates old on average, at most {met.staleness.maximum}"
    return words


def _host_sentence(host: HostReport) -> str:
    """How full the memory of a node and its drives are."""
    words = (
        f"the host of a node keeps {format_bytes(host.used)} of {format_bytes(host.capacity)} for its devices"
    )
    if host.nvme:
        room = "" if host.nvme_capacity is None else f" of {format_bytes(host.nvme_capacity)}"
        words += f", its drives {format_bytes(host.nvme)}{room}"
    return words if host.fits else f"{words}: it does not fit"


def fullest_stage(result: Result) -> StageMemory:
    """The stage with the highest peak, as a share of what its devices hold."""
    return max(result.memory.stages, key=lambda stage: stage.peak / stage.capacity)


def _memory_sentence(result: Result) -> str:
    memory, stage = result.memory, fullest_stage(result)
    parts = {name: getattr(stage, name) for name in MEMORY_PARTS}
    largest = max(parts, key=lambda name: parts[name])
    room = abs(memory.headroom_bytes)
    fits = memory.fits or (memory.host is not None and not memory.host.fits and memory.headroom_bytes >= 0)
    state = f"{format_bytes(room)} are left" if fits else f"{format_bytes(room)} too much: it does not fit"
    words = largest.replace("_", " ")
    reserved, capacity = format_bytes(memory.peak_reserved_bytes), format_bytes(memory.capacity_bytes)
    mixed = len({one.device for one in memory.stages}) > 1
    where = (
        f"is tightest on stage {stage.stage} ({stage.device})" if mixed else f"peaks on stage {stage.stage}"
    )
    return (
        f"memory {where} at {format_seconds(stage.peak_time_s)} in {stage.peak_op}: "
        f"{format_bytes(stage.peak)}, most of it {words} ({format_bytes(parts[largest])}); "
        f"reserved {reserved} of {capacity}, {state}"
    )


def _hints(result: Result) -> Iterator[str]:
    if not result.fits:
        yield from _memory_hints(result)
    for name, advise in TIME_ADVICE.items():
        if getattr(result.time_breakdown_s, name) >= WORTH_A_HINT * result.step_time_s:
            yield from advise(result)
    if result.fits and result.memory.headroom_bytes > ROOMY * result.memory.capacity_bytes:
        yield from _spend_memory(result)


def _memory_hints(result: Result) -> Iterator[str]:
    stage, plan = fullest_stage(result), _Choices(result.setup.plan)
    if plan.zero == 0 and plan.dp > 1:
        saves = f"saves {format_bytes(stage.optimizer_states * (1 - 1 / plan.dp))}"
        saves = (
            f"part of {format_bytes(stage.optimizer_states)}, those of experts over fewer ranks"
            if plan.ep > 1
            else saves
        )
        yield f"--zero 1 shards optimizer states over {plan.dp} ranks: {saves}"
    if plan.recompute != "full" and stage.activations > 0.2 * stage.peak:
        wanted = "selective" if plan.recompute == "none" else "full"
        yield f"--recompute {wanted} drops part of {format_bytes(stage.activations)} of activations"
    if plan.micro_batch > 1:
        yield f"--micro-batch {plan.micro_batch // 2} halves activations and workspaces"
    states = stage.parameters + stage.gradients + stage.optimizer_states
    if states > 0.5 * stage.peak:
        yield f"model states take {format_bytes(states)}: a larger --tp or --pp, or --zero 3, divides them"


def _bubble_hints(result: Result) -> Iterator[str]:
    plan = _Choices(result.setup.plan)
    if plan.pp == 1:
        return
    if plan.micro_batch > 1:
        yield f"--micro-batch {plan.micro_batch // 2} doubles the microbatches and shrinks the bubble"
    if plan.vpp == 1 and plan.num_microbatches(result.setup.training) % plan.pp == 0:
        yield "--schedule interleaved --vpp 2 halves the bubble, at the price of more sends"
    yield f"a smaller --pp than {plan.pp} needs fewer microbatches to fill the pipeline"


def _tensor_hints(result: Result) -> Iterator[str]:
    plan = _Choices(result.setup.plan)
    cluster = result.setup.cluster
    per_node = int(cluster.get("devices", plan.tp)) // int(cluster.get("nodes", 1))
    if plan.tp > per_node:
        yield f"tp {plan.tp} leaves the node ({per_node} devices): --tp {per_node} keeps it on the fast links"
    else:
        yield f"--tp {max(1, plan.tp // 2)} halves each tensor-parallel group (memory grows)"


def _data_hints(result: Result) -> Iterator[str]:
    plan = _Choices(result.setup.plan)
    if plan.zero == 3:
        yield "--hsdp keeps parameter gathers in small groups; --zero 2 gathers once a step (memory grows)"
    else:
        yield "a larger --global-batch spreads one gradient reduction over more compute"


def _context_hints(result: Result) -> Iterator[str]:
    plan = _Choices(result.setup.plan)
    if plan.cp_method == "ring":
        yield f"a ring hides behind more tokens a rank: --cp {plan.cp // 2}, or ulysses inside a node (plan.ulysses)"
    else:
        yield "--set plan.cp_method=ring sends keys and values while attention runs"


def _expert_hints(result: Result) -> Iterator[str]:
    plan, cluster = _Choices(result.setup.plan), result.setup.cluster
    per_node = int(cluster.get("devices", plan.ep)) // int(cluster.get("nodes", 1))
    if not plan.ep_overlap:
        yield "--set plan.ep_overlap=true runs the exchange of one microbatch beside the compute of another"
    if plan.ep > per_node:
        yield f"--ep {per_node} keeps tokens inside a node (memory grows)"


def _host_hints(_: Result) -> Iterator[str]:
    yield "kernels are too short for the host: try a larger --micro-batch, a smaller --tp, a compiled --stack"


def _spend_memory(result: Result) -> Iterator[str]:
    plan, room = _Choices(result.setup.plan), format_bytes(result.memory.headroom_bytes)
    if plan.recompute != "none":
        yield f"{room} are unused: --recompute none (or selective) trades them for time"
    else:
        smaller = " or a smaller --tp" if plan.tp > 1 else ""
        yield f"{room} are unused: a larger --micro-batch{smaller} may use them"


TIME_ADVICE: dict[str, Callable[[Result], Iterator[str]]] = {
    "bubble": _bubble_hints,
    "exposed_tp": _tensor_hints,
    "exposed_dp": _data_hints,
    "exposed_cp": _context_hints,
    "exposed_ep": _expert_hints,
    "host": _host_hints,
}


class _Choices:
    """The few choices that hints talk about, read from the plan as it is echoed in a result."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        mesh = plan.get("mesh", {})
        self.tp, self.pp, self.dp, self.cp = (int(mesh.get(axis) or 1) for axis in ("tp", "pp", "dp", "cp"))
        self.ep = int(mesh.get("ep") or 1)
        self.ep_overlap = bool(plan.get("experts", {}).get("ep_overlap"))
        self.cp_method = str(plan.get("context_parallel", {}).get("cp_method") or "ring")
        self.vpp = int(plan.get("pipeline", {}).get("vpp") or 1)
        self.micro_batch = int(plan.get("micro_batch") or 1)
        self.zero = int(plan.get("data_parallel", {}).get("zero") or 0)
        self.recompute = str(plan.get("memory", {}).get("recompute", "none"))

    def num_microbatches(self, training: Mapping[str, Any]) -> int:
        """Microbatches of one pipeline in a step."""
        return int(training.get("global_batch", 1)) // (self.dp * self.micro_batch)

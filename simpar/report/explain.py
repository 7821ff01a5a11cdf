"""Limiting factors in words: the critical path, the largest losses, the ranks waited for, the memory peak."""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from simpar.dataclass import but
from simpar.program.ir.program import Program, Timing
from simpar.report.chains import chain_to
from simpar.report.parts import Cooperation, HostReport, StageMemory
from simpar.report.result import Result
from simpar.report.waits import WORTH_A_HINT, describe_waits, slow_hints
from simpar.units import NS_PER_S, Floats, Indices, Ints, format_bytes, format_seconds

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
SERVER_UPDATES = "updates on the parameter servers"
WORTH_NAMING = 0.01  # smaller shares of the step are not attributed to the rank waited for


def critical_path(binding: Indices, timing: Timing) -> Ints:
    """Ops of one longest chain, first to last, int64[n].

    Walks back from the op that finishes last, always through the ``binding`` predecessor, which finished last
    (:func:`simpar.report.chains.binding_predecessors`); ops of no duration stay in the chain.
    """
    if not len(timing.finish_ns):
        return np.zeros(0, dtype=np.int64)
    return chain_to(binding, int(np.argmax(timing.finish_ns)))


def critical_path_s(
    program: Program, timing: Timing, binding: Indices, inside: Callable[[Ints], Mapping[str, Floats]] | None = None
) -> dict[str, float]:
    """Seconds of every kind of op on the critical path, largest first; "wait" is time that no op covers.

    ``inside`` gives, for some ops, the shares of their time in which their kernels wait for something inside the op, by
    its kind: communication of their blocks, launches on the host.
    """
    chain = critical_path(binding, timing)
    start, finish = timing.start_ns[chain], timing.finish_ns[chain]
    clock = np.concatenate([np.zeros(1, dtype=np.int64), np.maximum.accumulate(finish)])[: len(chain)]
    each = finish - np.maximum(start, np.minimum(clock, finish))
    spent: dict[str, int] = {"wait": int(np.maximum(start - clock, 0).sum())}
    left = each.copy()
    for kind, share in (inside(chain) if inside else {}).items():
        waits = np.rint(each * share).astype(np.int64)
        spent[kind], left = int(waits.sum()), left - waits
    label = program.ops.label[chain]
    by_label = np.zeros(len(program.labels), dtype=np.int64)
    np.add.at(by_label, label, left)
    used, first = np.unique(label, return_index=True)
    for one in used[np.argsort(first)].tolist():
        kind = program.labels[one].kind
        spent[kind] = spent.get(kind, 0) + int(by_label[one])
    order = sorted(spent.items(), key=lambda item: -item[1])
    return {kind: time / NS_PER_S for kind, time in order if time}


def add_explanation(result: Result, *, critical: Mapping[str, float] | None = None) -> Result:
    """The same result with its explanation; ``critical`` is what :func:`critical_path_s` found."""
    said = {
        "binds": tuple(_binds(result)),
        "hints": (*slow_hints(result.slow_ranks, result.step_time_s), *_server_hints(result)),
        "critical_path_s": dict(critical or {}),
    }
    return but(result, why=result.why.model_copy(update=said))


def where_time_goes(step_s: float, parts: Mapping[str, float]) -> str:
    """How much of a step is compute, and what most of the rest is lost to; ``parts`` are the account's, in seconds.

    Parts by names of WORDS, and updates of parameter servers, which no account has, as SERVER_UPDATES.
    """
    named = [(parts[name], words) for name, words in WORDS.items()]
    losses = sorted([*named, (parts.get(SERVER_UPDATES, 0.0), SERVER_UPDATES)], reverse=True)
    sentence = f"compute takes {parts['compute'] / step_s:.1%} of the step"
    worst = [f"{words} {format_seconds(lost)} ({lost / step_s:.1%})" for lost, words in losses if lost >= 0.01 * step_s]
    return f"{sentence}; lost to {', '.join(worst[:3])}" if worst else f"{sentence}; nothing else reaches 1 %"


def _binds(result: Result) -> Iterator[str]:
    parts = result.time_breakdown_s.model_dump()
    if result.cooperation is not None:  # what servers do is no matter of the network
        updates_s = result.cooperation.updates_s
        parts |= {SERVER_UPDATES: updates_s, "exposed_dp": parts["exposed_dp"] - updates_s}
    yield where_time_goes(result.step_time_s, parts)
    yield from _waiting_sentences(result)
    if result.why.emulated:
        yield result.why.emulated
    if load := result.why.expert_load:
        yield (
            f"the fullest of {load.ranks} expert ranks has {load.fullest:.2f} times the mean load"
            + (" in this draw" if load.sampled else f", give or take {load.deviation:.2f} by layer")
        )
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
    """The ranks that the critical rank waits for."""
    listed = [part for part in result.waiting if part.seconds >= WORTH_NAMING * result.step_time_s]
    if listed:
        yield "waits " + ", ".join(f"{format_seconds(part.seconds)} for {describe_waits(part)}" for part in listed[:3])


def _server_hints(result: Result) -> Iterator[str]:
    """The simulated step with twice the parameter servers; nothing if it is hardly shorter."""
    met, step_s = result.cooperation, result.step_time_s
    if met is None or met.twice_servers_s is None or met.twice_servers_s > (1 - WORTH_A_HINT) * step_s:
        return
    gain = f"{format_seconds(met.twice_servers_s)} instead of {format_seconds(step_s)}"
    many = 2 * (met.servers or 1)
    yield f"--set plan.servers={many}, twice as many: {gain} ({met.twice_servers_s / step_s - 1:+.1%})"


def _cooperation_sentence(met: Cooperation) -> str:
    """Which link or server limits the exchange, and the cost of staleness."""
    words = f"{met.replicas} replicas under {met.scheme}: {format_seconds(met.local_step_s)} of own work a step"
    words += f", {format_seconds(met.exchange_s)} of messages, {format_seconds(met.waiting_s)} of waiting"
    if met.busy:
        name = max(met.busy, key=lambda link: met.busy[link])
        words += f"; the {name} is busy {met.busy[name]:.0%} of the time"
    if met.updates_s:
        words += f"; {format_seconds(met.updates_s)} of the messages are updates on the servers, left by any network"
    if met.staleness is not None:
        words += f"; gradients are {met.staleness.mean:.3g} updates old on average, at most {met.staleness.maximum}"
    return words


def _host_sentence(host: HostReport) -> str:
    """How full the host memory of a node and its drives are."""
    words = f"the host of a node keeps {format_bytes(host.used)} of {format_bytes(host.capacity)} for its devices"
    if host.nvme:
        room = "" if host.nvme_capacity is None else f" of {format_bytes(host.nvme_capacity)}"
        words += f", its drives {format_bytes(host.nvme)}{room}"
    return words if host.fits else f"{words}: it does not fit"


def find_fullest_stage(result: Result) -> StageMemory:
    """The stage with the highest peak relative to the capacity of its devices."""
    return max(result.memory.stages, key=lambda stage: stage.peak_bytes / stage.capacity_bytes)


def _memory_sentence(result: Result) -> str:
    memory, stage = result.memory, find_fullest_stage(result)
    parts = stage.parts_bytes
    largest = max(parts, key=lambda name: parts[name])
    room = abs(memory.headroom_bytes)
    fits = memory.fits or (memory.host is not None and not memory.host.fits and memory.headroom_bytes >= 0)
    state = f"{format_bytes(room)} are left" if fits else f"{format_bytes(room)} too much"
    words = largest.replace("_", " ")
    reserved, capacity = format_bytes(memory.peak_reserved_bytes), format_bytes(memory.capacity_bytes)
    mixed = len({one.device for one in memory.stages}) > 1
    where = f"is tightest on stage {stage.stage} ({stage.device})" if mixed else f"peaks on stage {stage.stage}"
    return (
        f"memory {where} at {format_seconds(stage.peak_time_s)} in {stage.peak_op}: "
        f"{format_bytes(stage.peak_bytes)}, most of it {words} ({format_bytes(parts[largest])}); "
        f"reserved {reserved} of {capacity}, {state}"
    )

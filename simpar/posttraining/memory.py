"""Memory of both sides of a step while each works, and of the host in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from simpar.posttraining.answer import SideMemory
from simpar.posttraining.pools import TRAINING, History, Interval
from simpar.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    from simpar.posttraining.simulate import PostTrainingSetting


def sides(setting: PostTrainingSetting) -> dict[str, SideMemory]:
    """By side: generation, training, and the host where something waits there. Raises UserError as limits do."""
    result = {"generation": _generation(setting), "training": _training(setting)}
    host = _host(setting)
    return result if host is None else {**result, "host": host}


def apart(setting: PostTrainingSetting) -> dict[str, SideMemory]:
    """The fullest device of every pool of other models' own, by the names of these."""
    return {
        name: SideMemory(
            parts_bytes={"models": each.peak_bytes},
            capacity_bytes=each.capacity_bytes,
            fits=each.peak_bytes <= each.capacity_bytes,
        )
        for name, each in zip(setting.beside, setting.trained.apart, strict=True)
    }


def why_unfit(setting: PostTrainingSetting) -> str:
    """Which side does not fit, in words; "" if both do. Raises UserError where no sequence fits."""
    for name, side in {**sides(setting), **apart(setting)}.items():
        if not side.fits:
            return (
                f"{name} needs {format_bytes(side.total_bytes)} of {format_bytes(side.capacity_bytes)} and does not fit"
            )
    return ""


RESERVED = "reserved for generation"
"""The curve of what an engine keeps from others."""
Curve = tuple[tuple[float, float], ...]
"""(Seconds, bytes): straight lines between them."""


def curves(setting: PostTrainingSetting, history: History) -> dict[str, Curve]:
    """Bytes over time of a device that trains, and of one of the replica that fills its cache most.

    Where both are the same device, what one side frees the other takes. Of the cache, generation has the part in use,
    up to what its sequences have when the next one ends; what the engine reserves is a curve of its own. All of them
    last until the last step has its weights.
    """
    fullest = fullest_replica(history)
    turns, end_s = _whole_turns(history), history.steps[-1].weights_ns / NS_PER_S
    return {
        "training": _until(end_s, _trained_over_time(setting, turns)),
        "generation": _until(end_s, _served_over_time(setting, history, fullest)),
        RESERVED: _until(end_s, _reserved_over_time(setting, history, fullest)),
    }


def _until(end_s: float, curve: Curve) -> Curve:
    """A curve with its last value until the end."""
    last_s, last = curve[-1]
    return (*curve, (end_s, last)) if last_s < end_s else curve


def fullest_replica(history: History) -> int:
    """The first of the replicas that fill most blocks of their cache."""
    counts = history.counts
    return max(range(len(counts)), key=lambda at: (counts[at].peak_blocks, -at))


def _whole_turns(history: History) -> list[Interval]:
    """What training devices do but for weights; passes last until updates begin, for which others are waited for."""
    turns = [each for each in history.intervals if each.stream == TRAINING and each.kind != "weights"]
    begin = {each.step: each.start_ns for each in turns if each.kind == "train"}
    return [replace(each, finish_ns=begin[each.step]) if each.kind == "score" else each for each in turns]


def _trained_over_time(setting: PostTrainingSetting, turns: list[Interval]) -> Curve:
    """States between updates unless they wait in the host's memory; the peak while a batch is scored and trained on."""
    states = setting.trained.states_bytes
    between = 0.0 if setting.section.takes_turns and setting.section.weights.offload else states
    inside = {"switch": states, "score": setting.trained.peak_bytes, "train": setting.trained.peak_bytes}
    return ((0.0, between), *_stepped(turns, inside, between))


def _served_over_time(setting: PostTrainingSetting, history: History, at: int) -> Curve:
    """Weights, workspace and the cache in use; nothing while an engine on training devices sleeps."""
    served, section = setting.served, setting.section
    base = served.weights_bytes + served.workspace_bytes
    block = served.block_bytes / section.rollout.attention_ranks
    points = [(time_ns / NS_PER_S, base + blocks * block) for time_ns, blocks in history.cache[at]]
    points += _asleep(setting, history, at, base)
    return ((0.0, base), *sorted(points, key=lambda point: point[0]))


def _reserved_over_time(setting: PostTrainingSetting, history: History, at: int) -> Curve:
    """Weights, workspace and the whole cache, in use or not; nothing while an engine sleeps."""
    whole = sum(_parts_served(setting).values())
    return ((0.0, whole), *_asleep(setting, history, at, whole))


def _asleep(setting: PostTrainingSetting, history: History, at: int, awake: float) -> list[tuple[float, float]]:
    """A curve of what an engine frees, if it sleeps, while a replica's devices do something else than to generate."""
    away = [each for each in _whole_turns(history) if each.joins > at]
    still = 0.0 if setting.section.weights.sleep else awake
    return _stepped(away, dict.fromkeys(("switch", "score", "train"), still), awake)


def _stepped(spans: list[Interval], inside: Mapping[str, float], between: float) -> list[tuple[float, float]]:
    """A curve that has a value by kind inside of spans, which follow each other, and another one between them."""
    points: list[tuple[float, float]] = []
    for each, after in zip_longest(spans, spans[1:]):
        start_s, finish_s = each.start_ns / NS_PER_S, each.finish_ns / NS_PER_S
        if not points or points[-1][0] < start_s:
            points.append((start_s, between))
        points += [(start_s, inside[each.kind]), (finish_s, inside[each.kind])]
        if after is None or after.start_ns > each.finish_ns:
            points.append((finish_s, between))
    return points


def _generation(setting: PostTrainingSetting) -> SideMemory:
    """The fullest device of a replica."""
    served, parts = setting.served, _parts_served(setting)
    kept, most = setting.kept_bytes, served.room_bytes
    if kept:
        parts["training states"] = kept
        most = served.kernels.device.memory_bytes
    return SideMemory(parts_bytes=parts, capacity_bytes=most, fits=served.room_bytes + kept <= most)


def _parts_served(setting: PostTrainingSetting) -> dict[str, float]:
    """What an engine reserves on a device of a replica, by kind."""
    served, limits = setting.served, setting.limits
    cache = limits.blocks / setting.section.rollout.attention_ranks * served.block_bytes
    return {"weights": served.weights_bytes, "cache": cache, "workspace": served.workspace_bytes}


def _training(setting: PostTrainingSetting) -> SideMemory:
    """The fullest device that trains."""
    trained = setting.trained
    parts = {"training": trained.peak_bytes}
    if setting.asleep_bytes:
        parts["rollout engine"] = setting.asleep_bytes
    capacity = trained.usual.memory.capacity_bytes
    fits = trained.usual.fits and sum(parts.values()) <= capacity
    return SideMemory(parts_bytes=parts, capacity_bytes=capacity, fits=fits)


def _host(setting: PostTrainingSetting) -> SideMemory | None:
    """What a node's host keeps while its devices generate; None where nothing is moved there."""
    if not setting.section.takes_turns or not setting.section.weights.offload:
        return None
    profile = setting.trained.cluster.profile
    held = setting.trained.states_bytes * profile.devices_per_node
    capacity = profile.host.memory_bytes
    return SideMemory(parts_bytes={"training states": held}, capacity_bytes=capacity, fits=held <= capacity)

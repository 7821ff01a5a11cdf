"""Memory of both sides of a step while each works, and of the host in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.posttraining.answer import SideMemory
from simpar.units import format_bytes

if TYPE_CHECKING:
    from simpar.posttraining.simulate import PostTrainingSetting


def sides(setting: PostTrainingSetting) -> dict[str, SideMemory]:
    """By side: generation, training, and the host where something waits there. Raises UserError as limits do."""
    result = {"generation": _generation(setting), "training": _training(setting)}
    host = _host(setting)
    return result if host is None else {**result, "host": host}


def why_unfit(setting: PostTrainingSetting) -> str:
    """Which side does not fit, in words; "" if both do. Raises UserError where no sequence fits."""
    for name, side in sides(setting).items():
        if not side.fits:
            return (
                f"{name} needs {format_bytes(side.total_bytes)} of {format_bytes(side.capacity_bytes)} and does not fit"
            )
    return ""


def _generation(setting: PostTrainingSetting) -> SideMemory:
    """The fullest device of a replica."""
    served, limits = setting.served, setting.limits
    cache = limits.blocks / setting.section.rollout.attention_ranks * limits.block * served.token_bytes
    parts = {"weights": served.weights_bytes, "cache": cache, "workspace": served.workspace_bytes}
    if setting.kept_bytes:
        parts["training states"] = setting.kept_bytes
    return SideMemory(
        parts_bytes=parts, capacity_bytes=served.room_bytes, fits=sum(parts.values()) <= served.room_bytes
    )


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

"""Where the memory of a real run went: torch's memory snapshot, by kind, at the most that was allocated.

Format: what ``torch.cuda.memory._dump_snapshot`` pickles, as torch/cuda/_memory_viz.py and
torch/csrc/cuda/memory_snapshot.cpp (pytorch/pytorch) have it: ``segments`` with their ``blocks``, and ``device_traces``
with the allocations and frees that were recorded (``torch.cuda.memory._record_memory_history``). Frames have
``filename``, ``name`` and ``line``, the innermost first; backward passes run in threads without Python frames.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.diagnosis.plain_pickle import load_plain, read_bytes
from simpar.errors import UserError

WHAT = "memory snapshot of torch"
MOST = 2**62
"""More bytes than any machine has."""
ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")
UNKNOWN, BACKWARD = "without frames", "backward pass"
_KINDS = tuple(
    (kind, re.compile(pattern, re.MULTILINE))
    for kind, pattern in (
        (
            "optimizer_states",
            (
                r"optim\S*\.py:\S*(?:_init_group|init_state|initialize_optimizer_states|build_model_and_main_param)|"
                r"zero/\S+\.py:\S*(?:_create_fp32_partitions|initialize_optimizer_states)"
            ),
        ),
        ("transient", r"torch/optim/|optim\S*\.py:\S*step|clip_grad\S*\.py:"),
        ("transient", r"all_gather|unshard|fetch_sub_module"),
        (
            "gradients",
            (
                r"AccumulateGrad|foreach_reduce|param_and_grad_buffer\.py|_post_backward_hook|"
                r"average_tensor|reduce_independent_p_g_buckets"
            ),
        ),
        ("activations", r"checkpoint\.py:\S*(?:recompute_fn|unpack_hook|backward)"),
        (BACKWARD, r"autograd::Engine|_engine_run_backward|:backward$"),
        ("parameters", r"nn/parameter\.py|module\.py:(?:_apply|to_empty)$|from_pretrained|load_state_dict|nn/init\.py"),
        ("activations", r":(?:forward|_call_impl|training_step|compute_loss)$"),
        ("parameters", r"\.py:(?:__init__|reset_parameters|_init_weights)$"),
    )
)
"""Kinds of memory by a frame ``filename:name``, in the order in which they are tried; the first that any frame has."""


@dataclass(frozen=True)
class SnapshotRun:
    """The memory of one device, in bytes.

    ``peak_bytes`` is the most that was allocated while it was recorded, ``parts_bytes`` what it consisted of, and
    ``places_bytes`` the same by the code that allocated it, largest first; ``at_peak`` is false where nothing was
    recorded: all are then of the moment of the snapshot, as ``allocated_bytes`` and ``reserved_bytes`` are. Of what is
    reserved, ``free_bytes`` are free inside segments, ``largest_free_bytes`` in one piece, and blocks are
    ``rounded_bytes`` larger than the tensors in them.
    """

    path: str
    device: int
    peak_bytes: float
    at_peak: bool
    parts_bytes: Mapping[str, float]
    allocated_bytes: float
    reserved_bytes: float
    free_bytes: float
    largest_free_bytes: float
    rounded_bytes: float
    places_bytes: Mapping[str, float]
    out_of_memory: bool

    @property
    def unused(self) -> tuple[tuple[str, float], ...]:
        """Parts of reserved memory in which no tensor is."""
        return (
            ("free inside segments", self.free_bytes),
            ("of it in one piece at most", self.largest_free_bytes),
            ("rounding of blocks", self.rounded_bytes),
        )


def read_snapshot(path: str | Path) -> SnapshotRun:
    """The device with most memory in a snapshot. Raises UserError for any other file."""
    data = load_plain(read_bytes(path, WHAT), path, WHAT)
    segments = data.get("segments") if isinstance(data, dict) else data  # torch.cuda.memory_snapshot() is the list
    if not isinstance(segments, list):
        raise UserError(f"{path}: has no segments: not a {WHAT}")
    try:
        return _read(str(path), segments, data.get("device_traces") or [] if isinstance(data, dict) else [])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)[:200]
        raise UserError(f"{path}: is malformed ({reason}): not a {WHAT}") from None


def _read(
    path: str, segments: Sequence[Mapping[str, Any]], traces: Sequence[Sequence[Mapping[str, Any]]]
) -> SnapshotRun:
    sizes: dict[int, int] = defaultdict(int)
    for segment in segments:
        size = _whole(segment["total_size"], "total_size")
        if sum(_whole(block["size"], "size") for block in segment["blocks"]) > size:
            raise ValueError(f"blocks are larger than their segment of {size} bytes")
        sizes[_whole(segment.get("device", 0), "device")] += size
    if not sizes:
        raise UserError(f"{path}: has no segment: nothing was allocated when it was taken")
    device = max(sizes, key=lambda each: sizes[each])
    mine = [segment for segment in segments if segment.get("device", 0) == device]
    blocks = [block for segment in mine for block in segment["blocks"]]
    held = [(block["size"], _frames(block), int(block.get("address", 0))) for block in blocks if _is_held(block)]
    trace = traces[device] if device < len(traces) else []
    alive, peak = _at_peak(held, trace)
    parts, places = defaultdict[str, float](float), defaultdict[str, float](float)
    for size, frames in alive:
        kind = kind_of_frames(frames)
        parts[kind] += size
        places[f"{kind}: {_place(frames)}"] += size
    free = [block["size"] for block in blocks if not _is_held(block)]
    rounded = sum(
        each["size"] - _whole(each.get("requested_size", each["size"]), "requested_size")
        for each in blocks
        if _is_held(each)
    )
    allocated = sum(size for size, _, _ in held)
    return SnapshotRun(
        path, device, float(peak), bool(trace), _largest(parts), float(allocated), float(sizes[device]),
        float(sum(free)), float(max(free, default=0)), float(rounded),
        _largest(places), any(entry["action"] == "oom" for entry in trace),
    )  # fmt: skip


def _whole(value: Any, what: str) -> int:
    """A number of bytes, or of a device. Raises ValueError for what none has."""
    if type(value) is not int or not 0 <= value < MOST:
        raise ValueError(f"{what} = {str(value)[:40]}")
    return value


def _largest(sizes: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def _is_held(block: Mapping[str, Any]) -> bool:
    return block["state"] in ACTIVE


def _frames(entry: Mapping[str, Any]) -> str:
    """The frames of a block or an event, one ``filename:name`` a line; snapshots of torch 2.0 have a history."""
    frames = entry.get("frames") or next((each.get("frames") for each in entry.get("history") or ()), None) or ()
    return "\n".join(f"{frame['filename']}:{frame['name']}" for frame in frames)


def _at_peak(
    held: Sequence[tuple[int, str, int]], trace: Sequence[Mapping[str, Any]]
) -> tuple[list[tuple[int, str]], int]:
    """(What was allocated when most was, its bytes): the recorded events are undone from the snapshot back."""
    now = sum(size for size, _, _ in held)
    peak, at, total = now, len(trace), now
    for index in range(len(trace) - 1, -1, -1):
        event = trace[index]
        total += {"alloc": -1, "free_completed": 1}.get(event["action"], 0) * _whole(event.get("size", 0), "size")
        if total > peak:
            peak, at = total, index
    alive = {address: (size, frames) for size, frames, address in held}
    for event in reversed(trace[at:]):
        if event["action"] == "alloc":
            alive.pop(int(event["addr"]), None)
        elif event["action"] == "free_completed":
            alive[int(event["addr"])] = (int(event["size"]), "")
    for event in trace[:at]:  # where it was allocated is told by the last allocation there
        if event["action"] == "alloc" and int(event["addr"]) in alive:
            size, frames = alive[int(event["addr"])]
            alive[int(event["addr"])] = (size, _frames(event) or frames)
    return [*alive.values()], peak


def kind_of_frames(frames: str) -> str:
    """The kind of memory that was allocated at some frames: a part of predicted memory, or what they leave open."""
    if not frames:
        return UNKNOWN
    return next((kind for kind, pattern in _KINDS if pattern.search(frames)), "other")


def _place(frames: str) -> str:
    """The innermost frame of Python that is not torch's."""
    lines = [line for line in frames.split("\n") if ".py:" in line]
    own = [line for line in lines if "/torch/" not in line] or lines
    return "/".join(own[0].rsplit("/", 2)[-2:]) if own else "no Python"

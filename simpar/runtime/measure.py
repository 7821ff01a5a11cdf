"""Measurements of a rank: time of every step and of its phases, peak memory, and a Kineto trace on request."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from simpar.dataclass import dataclass
from simpar.units import KIB, MS

ALLOCATIONS = 100_000  # the number of latest allocations in a snapshot


@dataclass
class Clock:
    """Seconds of the phases of the current step. On CUDA, phases are measured by events, without waiting for them."""

    device: Any
    marks: list[tuple[str, Any, Any]] = field(default_factory=list)

    def now(self) -> float:
        """Seconds, after everything that was issued is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time inside this context to a phase."""
        start = self._mark()
        with record_function(name):
            yield
        self.marks.append((name, start, self._mark()))

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, with its time added to a phase."""

        def call(*arguments: Any, **options: Any) -> Any:
            with self.phase(name):
                return function(*arguments, **options)

        return call

    def take(self) -> dict[str, float]:
        """Seconds by phase since the last call; on CUDA after :meth:`now`."""
        result: dict[str, float] = defaultdict(float)
        for name, start, end in self.marks:
            result[name] += start.elapsed_time(end) * MS if self.device.type == "cuda" else end - start
        self.marks.clear()
        return dict(result)


@dataclass(frozen=True)
class Memory:
    """Peak bytes of one rank, as the simulator's memory account counts them.

    On a CUDA device these are the caching allocator's and, in addition, what the device's context, its kernels and
    communicators hold (all used device memory outside the allocator, including other processes'). On a CPU it is the
    resident set of the process beyond ``base_bytes``, its size before the model was built.
    """

    device: Any
    base_bytes: int

    @staticmethod
    def start(device: Any) -> Memory:
        """Begin to measure."""
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return Memory(device, 0)
        return Memory(device, _resident_peak_bytes())

    def peak(self) -> dict[str, float]:
        """Bytes of tensors and reserved bytes at the peak, both including the memory outside the allocator."""
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            beside = max(total - free - torch.cuda.memory_reserved(self.device), 0)
            return {
                "peak_memory_bytes": float(torch.cuda.max_memory_allocated(self.device) + beside),
                "peak_reserved_bytes": float(torch.cuda.max_memory_reserved(self.device) + beside),
                "beside_allocator_bytes": float(beside),
            }
        grown = float(_resident_peak_bytes() - self.base_bytes)
        return {"peak_memory_bytes": grown, "peak_reserved_bytes": grown, "beside_allocator_bytes": 0.0}


def _resident_peak_bytes() -> int:
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * KIB


@contextmanager
def recording_memory(path: Path | None) -> Iterator[None]:
    """Record all allocations on CUDA in a file for pytorch.org/memory_viz, also after a failure."""
    if path is None:
        yield
        return
    torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(path))
        torch.cuda.memory._record_memory_history(enabled=None)


@contextmanager
def tracing(path: Path | None, *, wait: int, steps: int) -> Iterator[Callable[[], None]]:
    """Record a Kineto trace of ``steps`` steps after ``wait`` steps; call the yielded function after every step."""
    if path is None or steps == 0:
        yield lambda: None
        return
    from torch.profiler import ProfilerActivity, profile, schedule

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    plan = schedule(wait=max(wait - 1, 0), warmup=1 if wait else 0, active=steps, repeat=1)
    with profile(
        activities=activities, schedule=plan, on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path))
    ) as profiler:
        yield profiler.step

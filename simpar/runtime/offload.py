"""Offload to the host: optimizer states with their update, gradients on their way there, and activations.

Copies between a CUDA device and the host run concurrently with its kernels: out of the device on a separate stream,
into pinned memory, which the host reads only after an event says that the copy is complete. If the device is the host
itself, the same copies are made, so that the code path is the same.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor

from simpar.dataclass import dataclass

DEPTH = 8
"""The most gradients under way before the oldest is waited for, which limits pinned memory."""


@dataclass(frozen=True)
class Copy:
    """A tensor on its way to the host; ``ready`` is None once it has arrived."""

    tensor: Tensor
    ready: Any = None

    def arrived(self) -> Tensor:
        """The tensor, as soon as the host may read it."""
        if self.ready is not None:
            self.ready.synchronize()
        return self.tensor


@dataclass
class Outbound:
    """The way out of a device: a stream beside the computing one, if the device has streams."""

    stream: Any = None

    def send(self, tensor: Tensor) -> Copy:
        """Begin to copy a plain tensor to the host."""
        if tensor.device.type != "cuda":
            return Copy(tensor.detach().clone(memory_format=torch.contiguous_format))
        if self.stream is None:
            self.stream = torch.cuda.Stream(tensor.device)
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self.stream):
            there.copy_(tensor, non_blocking=True)
            ready = self.stream.record_event()
        tensor.record_stream(self.stream)
        return Copy(there, ready)


class Arrivals:
    """Gradients that leave the device as they are produced and are summed on the host, in fp32 or wider."""

    def __init__(self) -> None:
        self.outbound = Outbound()
        self.under_way: deque[tuple[Any, Copy]] = deque()
        self.sums: dict[Any, Tensor] = {}

    def collect(self, parameter: Any, gradient: Tensor) -> None:
        """Send a gradient of a parameter; earlier ones are summed meanwhile."""
        self.under_way.append((parameter, self.outbound.send(gradient)))
        self._land(DEPTH)

    def take(self, parameters: Iterable[Any]) -> dict[Any, Tensor]:
        """The sums of everything collected since the last call; zero if nothing came."""
        self._land(0)
        sums, self.sums = self.sums, {}
        for each in parameters:
            if each not in sums:
                sums[each] = torch.zeros(each.shape, dtype=_wide(each.dtype))
        return sums

    def _land(self, left: int) -> None:
        while len(self.under_way) > left:
            parameter, copy = self.under_way.popleft()
            arrived = copy.arrived()
            if parameter in self.sums:
                self.sums[parameter].add_(arrived)
            else:
                self.sums[parameter] = arrived.to(_wide(arrived.dtype))


def _wide(dtype: Any) -> Any:
    return torch.promote_types(dtype, torch.float32)


class OnHost(torch.optim.Optimizer):
    """An optimizer of class ``kind`` whose states and update are on the host [ZeRO-Offload, arXiv 2101.06840].

    A step takes gradients from the device, or those that ``give`` left on the host, updates a copy of the parameters
    there, and writes it back. If ``delayed``, it writes back the update of the previous step and runs its own update in
    a thread, concurrently with the passes of the next step (section 5.3 of the paper).
    """

    def __init__(self, params: Any, *, kind: Any, delayed: bool = False, **options: Any) -> None:
        super().__init__(params, options)
        self.copies = {each: _pinned(each) for group in self.param_groups for each in group["params"]}
        self.inner = kind(
            [{**group, "params": [self.copies[each] for each in group["params"]]} for group in self.param_groups],
            **options,
        )
        self.delayed, self.outbound = delayed, Outbound()
        self.given: dict[Any, Tensor] = {}
        self._running: Future[None] | None = None
        self._written: Any = None
        self._thread = ThreadPoolExecutor(1, "update") if delayed else None
        for each, copy in self.copies.items():
            self.state[each] = self.inner.state[copy]

    def give(self, gradients: dict[Any, Tensor]) -> None:
        """Take gradients of the next step that are on the host already, by parameter; others use their ``grad``."""
        self.given = gradients

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update on the host and write back; if delayed, write back and start the update."""
        assert closure is None, "gradients are there already"
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({name: value for name, value in group.items() if name != "params"})
        self.settle()
        if self.delayed:
            self.write_back()
        self._take_gradients()
        if self._written is not None:  # an earlier update would change what is being copied
            self._written.synchronize()
        if self._thread is not None:
            self._running = self._thread.submit(self.inner.step)
        else:
            self.inner.step()
            self.write_back()

    def _take_gradients(self) -> None:
        given, self.given = self.given, {}
        sent = {
            each: self.outbound.send(each.grad) for each in self.copies if each not in given and each.grad is not None
        }
        for each, copy in self.copies.items():
            gradient = given[each] if each in given else sent[each].arrived() if each in sent else None
            copy.grad = None if gradient is None else gradient.to(copy.dtype)

    def settle(self) -> None:
        """Wait for the update in the thread. Raises its error."""
        if self._running is not None:
            running, self._running = self._running, None
            running.result()

    @torch.no_grad()
    def write_back(self) -> None:
        """Write the copies into the parameters; on CUDA in the order of the computing stream."""
        for each, copy in self.copies.items():
            each.copy_(copy, non_blocking=True)
            if each.device.type == "cuda":
                self._written = torch.cuda.current_stream(each.device).record_event(self._written)

    @torch.no_grad()
    def read_again(self) -> None:
        """Copy the parameters again, after they were loaded."""
        for each, copy in self.copies.items():
            copy.copy_(each)


def _pinned(parameter: Any) -> nn.Parameter:
    there = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=parameter.device.type == "cuda")
    return nn.Parameter(there.copy_(parameter.detach()))


def share_on_host(elements: Sequence[int], ratio: float) -> list[bool]:
    """Which tensors, of ``elements`` each, are updated on the host so that they hold about ``ratio`` of them all.

    Tensors are taken whole and spread evenly: among those up to any index, the share on the host is within half a
    tensor of ``ratio``.
    """
    away: list[bool] = []
    there = seen = 0
    for count in elements:
        seen += count
        away.append(there + count / 2 <= ratio * seen)
        there += count * away[-1]
    return away


@dataclass
class Share:
    """Chooses the saved tensors to move to the host, such that they hold about ``ratio`` of the bytes."""

    ratio: float
    seen_bytes: float = 0.0
    there_bytes: float = 0.0
    outbound: Outbound = field(default_factory=Outbound)

    def takes(self, size_bytes: int) -> bool:
        """Whether the next tensor moves to the host."""
        self.seen_bytes += size_bytes
        goes = self.there_bytes + size_bytes / 2 <= self.ratio * self.seen_bytes
        self.there_bytes += size_bytes * goes
        return goes


@dataclass(frozen=True)
class OffloadedTensor:
    """A saved tensor on the host, the device it came from, and its mesh if it is a shard."""

    copy: Copy
    device: Any
    spec: Any = None

    def back(self) -> Tensor:
        """The tensor on its device again."""
        if self.copy.ready is not None:
            torch.cuda.current_stream(self.device).wait_event(self.copy.ready)
        local = self.copy.tensor.to(self.device, non_blocking=True)
        return local if self.spec is None else DTensor(local, self.spec, requires_grad=False)


class SavedOnHost(torch.autograd.graph.saved_tensors_hooks):
    """A context in which autograd keeps a share of a module's saved tensors on the host.

    Parameters are not moved: they stay on the device anyway.
    """

    def __init__(self, module: nn.Module, share: Share) -> None:
        def pack(tensor: Tensor) -> Any:
            with torch.no_grad():
                local = _plain(tensor)
                at = _address(local)
                if any(_address(_plain(each)) == at for each in module.parameters()):
                    return tensor
                if not share.takes(local.numel() * local.element_size()):
                    return tensor
                spec = tensor._spec if isinstance(tensor, DTensor) else None
                return OffloadedTensor(share.outbound.send(local), local.device, spec)

        def unpack(packed: Any) -> Tensor:
            return packed.back() if isinstance(packed, OffloadedTensor) else packed

        super().__init__(pack, unpack)


def save_on_host(units: Sequence[nn.Module], ratio: float) -> None:
    """Keep about ``ratio`` of the bytes of the saved activations of ``units`` on the host."""
    share = Share(ratio)
    for unit in units:
        unit.forward = partial(_saving, unit, unit.forward, share)


def _saving(unit: nn.Module, forward: Callable[..., Any], share: Share, *inputs: Any) -> Any:
    with SavedOnHost(unit, share):
        return forward(*inputs)


def _plain(tensor: Tensor) -> Tensor:
    """The local part of a tensor, materialised."""
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.wait() if isinstance(local, AsyncCollectiveTensor) else local


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())

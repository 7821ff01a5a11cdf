"""What a pass through a block is made of: kernels and collectives in order, with their dependencies.

A phase belongs to one plan, or to a batch of plans that differ in sizes only: then durations and sizes are arrays, and
the order of steps is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from simpar.dataclass import but, dataclass
from simpar.units import Numbers, floats

COMPUTE = "compute"
TENSOR = "tp"
CONTEXT = "cp"
EXPERT = "ep"
BLOCK_STREAMS = (COMPUTE, TENSOR, CONTEXT, EXPERT)
"""Streams that the passes of a block use, all idle between two blocks."""


@dataclass(frozen=True)
class CollectiveUse:
    """One call of a collective: which process group, which operation, bytes of the whole tensor, how often.

    A count below one is this use's part of a call that several share. Sizes and counts are arrays for a batch of plans
    or for many ranks.
    """

    group: str
    op: str
    size_bytes: Numbers
    count: Numbers = 1

    @cached_property
    def moved_bytes(self) -> int:
        """Whole bytes of all calls."""
        return round(float(self.count) * float(self.size_bytes))


@dataclass(frozen=True)
class BlockStep:
    """A kernel (``duration_s`` on the device) or a collective of one block; ``after`` are earlier positions.

    ``sms`` is the share of the device's multiprocessors that a collective holds while kernels run beside it. ``layer``
    is given where the step belongs to another layer than its segment.
    """

    name: str
    kind: str
    stream: str
    duration_s: Numbers = 0.0
    collective: CollectiveUse | None = None
    after: tuple[int, ...] = ()
    layer: int | None = None
    sms: float = 0.0

    @staticmethod
    def kernel(name: str, kind: str, duration_s: Numbers) -> BlockStep:
        """A kernel on the compute stream."""
        return BlockStep(name, kind, COMPUTE, floats(duration_s))

    @staticmethod
    def moving(name: str, use: CollectiveUse, stream: str = TENSOR) -> BlockStep:
        """A collective on the stream of its kind."""
        return BlockStep(name, stream, stream, collective=use)

    def behind(self, after: tuple[int, ...]) -> BlockStep:
        """The same step with other positions to wait for; called so often that :func:`replace` would be too slow."""
        return but(self, after=after)

    def recomputed(self) -> BlockStep:
        """The same step of a forward that runs again."""
        return but(self, kind="recompute") if self.kind == "forward" else self

    def of(self, index: int) -> BlockStep:
        """The step of one plan of a batch."""
        use = self.collective
        one = replace(use, size_bytes=_one(use.size_bytes, index)) if use else None
        return replace(self, duration_s=_one(self.duration_s, index), collective=one)


@dataclass
class StepList:
    """Steps under construction; the next serial step waits for everything in ``frontier``.

    Steps in ``beside`` run next to the coming serial step, and the steps behind that wait for them too. ``host_s`` is
    the host's time beyond launches; where ``in_turn``, the device idles while the host launches. ``shared`` is that of
    :class:`Phase`.
    """

    steps: list[BlockStep] = field(default_factory=list)
    frontier: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    host_s: Numbers = 0.0
    in_turn: bool = False
    shared: bool = False

    @property
    def num_collectives(self) -> int:
        """Collectives among the steps, each call counted."""
        return sum(int(step.collective.count) for step in self.steps if step.collective)

    def add(self, step: BlockStep, *, after: tuple[int, ...] | None = None, join: bool = True) -> int:
        """Append a step after ``after`` (default: the frontier); ``join`` makes it the new frontier."""
        self.steps.append(step.behind(self.frontier if after is None else after))
        index = len(self.steps) - 1
        if join:
            self.frontier, self.beside = (index, *self.beside), ()
        return index

    def add_beside(self, step: BlockStep) -> None:
        """Append a step that the next serial step does not wait for, but all after it do."""
        self.beside = (*self.beside, self.add(step, join=False))


@dataclass(frozen=True)
class Phase:
    """Steps of one pass through a block and ``issue_s``, the host's time to launch all its kernels.

    ``shared``: kernels run beside its exchanges of tokens.
    """

    steps: tuple[BlockStep, ...]
    issue_s: Numbers = 0.0
    shared: bool = False

    @property
    def collectives(self) -> list[CollectiveUse]:
        """The collectives among its steps."""
        return [step.collective for step in self.steps if step.collective is not None]

    def of(self, index: int) -> Phase:
        """The phase of one plan of a batch."""
        return replace(self, steps=tuple(step.of(index) for step in self.steps), issue_s=_one(self.issue_s, index))

    @cached_property
    def recomputed(self) -> Phase:
        """The same forward, run again."""
        return replace(self, steps=tuple(step.recomputed() for step in self.steps))

    def then(self, other: Phase) -> Phase:
        """Both phases in turn: the opening steps of ``other`` wait for the last steps here."""
        if not self.steps:
            return self.launched_with(other, other.steps)
        ends, offset = terminals(self.steps), len(self.steps)
        moved = [step.behind(tuple(at + offset for at in step.after) or ends) for step in other.steps]
        return self.launched_with(other, (*self.steps, *moved))

    def launched_with(self, other: Phase, steps: tuple[BlockStep, ...]) -> Phase:
        """Both phases as ``steps``, launched by one host."""
        return Phase(steps, self.issue_s + other.issue_s, self.shared or other.shared)


def _one(value: Numbers, index: int) -> float:
    """The number of one plan of a batch, or the single number that all have."""
    return float(np.broadcast_to(value, np.shape(value) or (index + 1,))[index])


def terminals(steps: Sequence[BlockStep]) -> tuple[int, ...]:
    """Positions of the steps that no other waits for: together they end the pass."""
    waited = {index for step in steps for index in step.after}
    return tuple(index for index in range(len(steps)) if index not in waited)

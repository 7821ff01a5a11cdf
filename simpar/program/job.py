"""A training job: everything that is decided before it is lowered."""

from __future__ import annotations

from dataclasses import replace

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack


@dataclass(frozen=True)
class TrainingJob:
    """Everything that is decided before lowering: model, shape, layout, stack and kernel model.

    ``others`` are the kernel models of a mixed cluster's devices of other kinds than the first.
    """

    graph: ModelGraph
    training: Training
    layout: Layout
    stack: Stack
    kernels: KernelModel
    others: tuple[KernelModel, ...] = ()

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a step on every data-parallel rank."""
        return self.layout.num_microbatches(self.training.global_batch)

    @property
    def accumulates(self) -> bool:
        """Whether a step has several microbatches."""
        return self.num_microbatches > 1

    def on(self, device: int) -> TrainingJob:
        """The job as run on the kind of device with that index (0: the first)."""
        return replace(self, kernels=self.others[device - 1], others=()) if device else self

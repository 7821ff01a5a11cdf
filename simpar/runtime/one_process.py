"""torch.nn.DataParallel as a teaching baseline: one process, all replicas, everything through the first device.

Every forward scatters the batch, copies all parameters to the replicas, runs one after the other, and gathers their
logits on the first device; the backward sums the replicas' gradients there. torch's own version runs on CUDA devices
only, this one also on CPUs, where all replicas share memory.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from simpar.plan.plan import Plan


class ReplicatedModule(nn.Module):
    """A module whose batch is split over ``replicas`` copies of it."""

    def __init__(self, module: nn.Module, replicas: int, device: Any) -> None:
        super().__init__()
        self.module = module
        indices = range(replicas)
        self.devices = [torch.device("cuda", i) if device.type == "cuda" else device for i in indices]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Tokens int64[batch, seq] to logits [batch, seq, vocab] on the first device; a tuple if the module has one."""
        parts = zip(*(each.chunk(len(self.devices)) for each in inputs), strict=True)
        scattered = [[each.to(at) for each in part] for part, at in zip(parts, self.devices, strict=True)]
        # in turn, because a call swaps the module's parameters; kernels of different devices still overlap
        outputs = [self._replica(*part) for part in scattered]
        if isinstance(outputs[0], tuple):
            return tuple(self._gathered(each) for each in zip(*outputs, strict=True))
        return self._gathered(outputs)

    def _gathered(self, outputs: Sequence[Tensor]) -> Tensor:
        return torch.cat([output.to(self.devices[0]) for output in outputs])

    def _replica(self, *inputs: Tensor) -> Tensor:
        """One replica's forward with copies of the parameters, through which autograd reaches the originals."""
        at = inputs[0].device
        copies = {name: parameter.to(at, copy=True) for name, parameter in self.module.named_parameters()}
        return functional_call(self.module, copies, inputs)


def as_one_rank(plan: Plan) -> Plan:
    """The plan as the single process sees it: all replicas' microbatches together."""
    replicas = plan.mesh.replicas
    mesh = plan.mesh.model_copy(update={"dp": 1})
    return plan.model_copy(update={"mesh": mesh, "micro_batch": plan.micro_batch * replicas})

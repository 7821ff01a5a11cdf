"""The fields of a plan that decide sizes on a rank, for one plan or for many as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.plan.plan import Plan
from simpar.units import Ints, Numbers

Flag = bool | NDArray[np.bool_]
"""A truth value, or an array of them; columns of one layout broadcast against each other."""


@dataclass(frozen=True)
class Layouts:
    """Columns of layouts: numbers, or arrays that broadcast; ``etp`` 0 stands for the default.

    ``late``: whether gradients are reduced behind the last backward, so that whole gradients are kept until then.
    """

    tp: Numbers
    dp: Numbers
    pp: Numbers = 1
    cp: Numbers = 1
    vpp: Numbers = 1
    micro_batch: Numbers = 1
    zero: Numbers = 0
    hsdp: Numbers = 1
    sequence_parallel: Flag = False
    ep: Numbers = 1
    etp: Numbers = 0
    late: Flag = False

    @staticmethod
    def of(plan: Plan) -> Layouts:
        """The columns of one resolved plan."""
        mesh, data = plan.mesh, plan.data_parallel
        return Layouts(
            tp=mesh.tp,
            dp=mesh.replicas,
            pp=mesh.pp,
            cp=mesh.cp,
            vpp=plan.pipeline.vpp,
            micro_batch=plan.micro_batch,
            zero=data.zero,
            hsdp=data.hsdp,
            sequence_parallel=bool(plan.tensor_parallel.sequence_parallel),
            ep=mesh.ep,
            etp=0 if mesh.etp is None else mesh.etp,
            late=data.overlap_grad_reduce is False,
        )

    @property
    def width(self) -> Ints:
        """Ranks that sum gradients of everything but experts: dp x cp."""
        width: Ints = np.asarray(self.dp) * np.asarray(self.cp)
        return width

    @property
    def expert_tensor_parallel(self) -> Ints:
        """Ranks that share an expert: as given, else 1 with ep > 1, else tp."""
        usual = np.where(np.asarray(self.ep) > 1, 1, self.tp)
        return np.where(np.asarray(self.etp) > 0, self.etp, usual)

    @property
    def expert_copies(self) -> Ints:
        """Ranks that hold the same experts."""
        return np.asarray(self.tp * self.width // (self.ep * self.expert_tensor_parallel))

    @property
    def shards(self) -> Ints:
        """Ranks that share one copy of the sharded states."""
        return np.where(np.asarray(self.zero) > 0, self.width // self.hsdp, 1)

    @property
    def expert_shards(self) -> Ints:
        """Ranks that share one copy of an expert's sharded states: fewer, because other ranks hold other experts."""
        return np.where(np.asarray(self.zero) > 0, np.maximum(self.expert_copies // self.hsdp, 1), 1)

    @property
    def communicators(self) -> Ints:
        """Number of kinds of groups in which a rank communicates."""
        sizes = (self.tp, self.dp, self.pp, self.cp, self.ep)
        several = sum((np.asarray(size) > 1).astype(np.int64) for size in sizes)
        return np.asarray(several + ((np.asarray(self.ep) > 1) & (self.expert_copies > 1)))

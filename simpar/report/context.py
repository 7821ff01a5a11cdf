"""What a summary of a simulated step is made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.program.blocks.rank_view import Job
from simpar.program.footprint import Footprint
from simpar.program.ir.program import Timing
from simpar.program.lower import Lowered
from simpar.program.perturbation import Perturbation
from simpar.report.accounting import Accounts, account
from simpar.report.parts import JitterReport
from simpar.units import Indices


@dataclass(frozen=True)
class Context:
    """What a summary is made from.

    ``nominal_ns`` is the step without slow ranks, where there are any; ``asked`` the plan before it was resolved;
    ``held`` what every class holds, where that is known already; ``last_ops`` int32[num_classes] what ends the step of
    every class, where replicas step on their own.
    """

    lowered: Lowered
    timing: Timing
    cluster: Cluster
    engine: str
    convention: str
    perturbation: Perturbation
    jitter: JitterReport | None = None
    nominal_ns: int | None = None
    asked: Plan | None = None
    held: tuple[Footprint, ...] = ()
    last_ops: Indices | None = None

    @property
    def job(self) -> Job:
        """The job behind the Program."""
        return self.lowered.job

    @cached_property
    def accounts(self) -> Accounts:
        """Where the step of every class went."""
        slow = self.perturbation.slow_ranks
        return account(self.lowered, self.timing, slow, self.nominal_ns, self.last_ops)

"""The inputs of a summary of a simulated step."""

from functools import cached_property

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.program.footprint import Footprint
from simpar.program.ir.program import Timing
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered
from simpar.program.perturbation import Perturbation
from simpar.report.accounting import Accounts, account
from simpar.report.parts import JitterReport
from simpar.units import Indices


@dataclass(frozen=True)
class SummaryInputs:
    """The inputs of a summary.

    ``nominal_ns`` is the step without slow ranks, if there are any; ``asked`` the plan before it was resolved; ``held``
    the memory footprint of every class, if it is known already; ``last_ops`` int32[num_classes] the op that ends the
    step of every class, if replicas step on their own. ``assumed`` is what was assumed of the plan, in words.
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
    assumed: str = ""

    @property
    def job(self) -> TrainingJob:
        """The job behind the Program."""
        return self.lowered.job

    @cached_property
    def accounts(self) -> Accounts:
        """Where the step of every class went."""
        slow = self.perturbation.slow_ranks
        return account(self.lowered, self.timing, slow, self.nominal_ns, self.last_ops)

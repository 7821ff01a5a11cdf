"""The inputs of a summary of a simulated step."""

from functools import cached_property

from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.program.footprint import Footprint, footprints
from simpar.program.ir.program import Timing
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered
from simpar.program.memory_inside import Opened, find_peak_ns, memory_over_time
from simpar.program.perturbation import Perturbation
from simpar.report.accounting import Accounts, account
from simpar.report.parts import JitterReport
from simpar.units import Indices, Ints


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

    @cached_property
    def footprints(self) -> tuple[Footprint, ...]:
        """The memory footprint of every class."""
        return self.held or footprints(self.lowered, self.timing, self.cluster)

    @cached_property
    def _moving(self) -> dict[int, tuple[Ints, Ints]]:
        return {}

    @cached_property
    def _opened(self) -> Opened:
        return {}

    def moving_memory(self, class_id: int) -> tuple[Ints, Ints]:
        """What comes and goes on a class over time, as :func:`simpar.program.memory_inside.memory_over_time` has it."""
        if class_id not in self._moving:
            use = self.footprints[class_id].use
            self._moving[class_id] = memory_over_time(self.lowered, self.timing, class_id, use, self._opened)
        return self._moving[class_id]

    def moving_peak_ns(self, class_id: int) -> int:
        """When what comes and goes on a class is highest first: :meth:`moving_memory` without its categories."""
        return find_peak_ns(self.lowered, self.timing, class_id, self.footprints[class_id].use, self._opened)

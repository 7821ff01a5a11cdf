"""The parts of a result: what users read of a step, its memory, its speed. All values are SI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from simpar.report.certainty import Certainty
from simpar.report.waits import ExpertLoad, SlowRanks, Waited


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class JitterReport(_Part):
    """Step times in s where the kernels of every rank jitter on their own: mean of all seeds, and how they spread.

    ``nominal_s`` is the step without jitter, ``ci95_s`` half the 95 % confidence interval of the mean; None, as
    ``deviation_s``, with one seed. ``units`` are ranks in lockstep, each with a timeline of its own. Without
    ``contention`` collectives had their links to themselves for what jitter adds.
    """

    sigma: float
    seeds: int
    nominal_s: float
    mean_s: float
    deviation_s: float | None = None
    ci95_s: float | None = None
    quantiles_s: dict[str, float]
    units: int
    ops: int
    engine: str
    contention: bool = True


class Speed(_Part):
    """How fast: one optimizer step in s, rates, model FLOP of the whole job per step, utilisations in 0..1.

    ``mfu`` counts model FLOP and ``hfu`` also what is recomputed, both over the dense peak of the precision;
    ``flops_convention`` says how causal attention counts ("full" or "causal"). ``useful_share`` of the tokens are no
    padding. With ``jitter`` the step time is a mean. ``recompute_s``, a part of the compute, is what
    the critical rank runs forward again.
    """

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    model_flops_per_step: float
    mfu: float
    hfu: float
    tflops_per_device: float
    flops_convention: str = "full"
    useful_share: float = 1.0
    jitter: JitterReport | None = None
    recompute_s: float = 0.0


class TimeBreakdown(_Part):
    """Where the step of the critical rank goes, in s; the parts sum to the step time.

    ``compute``: kernels of forward, backward and recomputation; ``exposed_*``: the rank's communication while nothing
    is computed; ``bubble``: waiting for other stages that the schedule causes; ``waiting``: for a slow rank, ranks with
    more work, collectives of other groups, other replicas; ``jitter``: what waiting for the slowest adds.
    """

    compute: float = 0.0
    exposed_tp: float = 0.0
    exposed_pp: float = 0.0
    exposed_dp: float = 0.0
    exposed_cp: float = 0.0
    exposed_ep: float = 0.0
    bubble: float = 0.0
    waiting: float = 0.0
    optimizer: float = 0.0
    host: float = 0.0
    offload: float = 0.0
    jitter: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of the parts, in s."""
        return float(sum(self.model_dump().values()))


class Communication(_Part):
    """One kind of communication on the critical rank: bytes of the whole buffers, seconds busy and exposed.

    Busy is the time in which at least one collective or message of the kind is under way that the rank takes part in,
    from when its last participant has arrived; exposed, never more, is the part of it that the rank's kernels wait for.
    """

    bytes_per_rank: float
    busy_s: float
    exposed_s: float
    algorithm: str


class StageMemory(_Part):
    """Memory of one pipeline stage at its peak, in bytes: the six parts sum to ``peak``.

    ``peak_time_s`` is when the peak is reached and ``peak_op`` the op that starts there; ``capacity`` is what one
    of its devices holds.
    """

    stage: int
    device: str
    capacity: float
    parameters: float
    gradients: float
    optimizer_states: float
    activations: float
    transient: float
    overhead: float
    peak: float
    peak_time_s: float
    peak_op: str


class HostReport(_Part):
    """What the ranks of the fullest node keep on their host, in bytes; the four parts sum to ``used``.

    ``nvme`` lies on the drives, of which a capacity is None where the profile has no facts.
    """

    optimizer_states: float
    gradients: float
    parameters: float
    activations: float
    used: float
    capacity: float
    nvme: float = 0.0
    nvme_capacity: float | None = None
    fits: bool


class MemoryReport(_Part):
    """Memory of the fullest rank in bytes, and of every pipeline stage.

    ``peak_memory_bytes`` is what the allocator hands out, ``peak_reserved_bytes`` what it holds, the device
    must hold ``capacity_bytes``; ``headroom_bytes`` is what is left (negative: it does not fit). ``host`` is said
    where something is offloaded, and must fit too.
    """

    peak_memory_bytes: float
    peak_reserved_bytes: float
    static_memory_bytes: float
    capacity_bytes: float
    fits: bool
    stages: tuple[StageMemory, ...]
    host: HostReport | None = None

    @property
    def headroom_bytes(self) -> float:
        """Capacity minus the reserved peak, in bytes."""
        return self.capacity_bytes - self.peak_reserved_bytes

    def capacity_of(self, stage: int) -> float:
        """Bytes that a device of a pipeline stage holds."""
        return next((one.capacity for one in self.stages if one.stage == stage), self.capacity_bytes)


class Setup(_Part):
    """Enough to reproduce the run: resolved inputs, the engine that ran with its seed, and what folding did.

    ``asked`` is the plan as it was asked for, with what it left to the stack left open.
    """

    plan: dict[str, Any]
    asked: dict[str, Any] = {}
    training: dict[str, Any]
    model: dict[str, Any]
    cluster: dict[str, Any]
    engine: dict[str, Any]
    perturbation: dict[str, Any] = {}
    fold: dict[str, Any]
    simpar_version: str


class Trial(_Part):
    """A neighbouring layout, simulated: the change as flags, and what it came to (s, share of peak, bytes).

    ``fit_probability`` is that of fitting on every rank. Where the layout cannot be, ``refused`` says why and the
    figures are None.
    """

    change: str
    step_time_s: float | None = None
    mfu: float | None = None
    peak_reserved_bytes: float | None = None
    fits: bool = False
    fit_probability: float | None = None
    refused: str = ""


class Staleness(_Part):
    """How old parameters are when a gradient meets them: updates of others in between.

    ``shares[k]`` is the share of updates with staleness k; ``clock_gap`` the most local steps that a replica ran
    ahead of the slowest.
    """

    mean: float
    maximum: int
    p50: float
    p90: float
    p99: float
    clock_gap: int
    shares: tuple[float, ...]


class Efficiency(_Part):
    """Progress a sample, by a stated model: 1 is synchronous training with the same batch a replica.

    ``effective_tokens_per_s`` is throughput times ``efficiency``; ``noise_scale_tokens`` the batch below which
    gradients are mostly noise.
    """

    model: str
    noise_scale_tokens: float
    efficiency: float
    effective_tokens_per_s: float


class Cooperation(_Part):
    """How replicas that step on their own meet: means over replicas and local steps, in s and bytes.

    A local step takes ``local_step_s`` of own work (waits between its ranks too), ``exchange_s`` of messages and
    ``waiting_s`` for other replicas. ``busy`` is the share of time that links and servers are used.
    ``server_memory_bytes`` is a server's states.
    """

    scheme: str
    replicas: int
    servers: int | None = None
    sync_every: int | None = None
    local_step_s: float
    exchange_s: float
    waiting_s: float
    exchanged_bytes: float
    server_memory_bytes: float | None = None
    busy: dict[str, float] = {}
    staleness: Staleness | None = None
    statistics: Efficiency | None = None


class Why(_Part):
    """The explanation: limiting factors (``binds``), what to try, seconds of each kind of op on the critical path.

    ``trials`` are neighbouring layouts, best first, where they were simulated (:mod:`simpar.neighbours`). ``waiting``
    says for whom the critical rank waits, longest first, and sums to that part of the step; ``slow_ranks`` what the
    step is without them; ``expert_load`` how unevenly tokens spread over expert ranks. ``certainty`` says how sure the
    figures are, None in files of versions that did not say it; the JSON has it beside them.
    """

    binds: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    critical_path_s: dict[str, float] = {}
    trials: tuple[Trial, ...] = ()
    waiting: tuple[Waited, ...] = ()
    slow_ranks: SlowRanks | None = None
    expert_load: ExpertLoad | None = None
    certainty: Certainty | None = None

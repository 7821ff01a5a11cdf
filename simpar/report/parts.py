"""The parts of a result: step, memory and speed, as users read them. All values are in SI units."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field

from simpar.calls import Strict
from simpar.report.certainty import Certainty
from simpar.report.timeline import MEMORY_PARTS
from simpar.report.waits import ExpertLoad, SlowRanks, Waited


class JitterReport(Strict):
    """Step times in s if the kernels of every rank jitter independently: the mean over seeds and their spread.

    ``nominal_s`` is the step without jitter, ``ci95_s`` half the 95 % confidence interval of the mean (None for one
    seed, as is ``deviation_s``). ``units`` are groups of ranks in lockstep, each with its own timeline. Without
    ``contention``, the time that jitter adds was simulated with uncontended links.
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


class Speed(Strict):
    """Speed: one optimizer step in s, rates, model FLOP of the whole job per step, and utilisations in 0..1.

    ``mfu`` counts model FLOP, ``hfu`` also recomputation, both over the dense peak of the precision.
    ``flops_convention`` says how causal attention counts ("full" or "causal"). ``useful_share`` is the share of tokens
    that are not padding, ``masked_share`` that of the full count of FLOP that masked pairs of tokens have. With
    ``jitter`` the step time is a mean. ``recompute_s``, a part of the compute, is the time of the critical rank's
    recomputed forwards.
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
    masked_share: float = 0.0
    jitter: JitterReport | None = None
    recompute_s: float = 0.0


class TimeBreakdown(Strict):
    """Where the step of the critical rank goes, in s; the parts sum to the step time.

    ``compute``: kernels of forward, backward and recomputation. ``exposed_*``: the rank's communication while it
    computes nothing. ``bubble``: waiting for other stages that the schedule causes. ``waiting``: for a slow rank, ranks
    with more work, collectives of other groups, other replicas. ``jitter``: the added wait for the slowest rank.
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


class Communication(Strict):
    """One kind of communication on the critical rank: bytes of the whole buffers, seconds busy and exposed.

    ``sent_bytes_per_rank`` is what the rank sends, as nccl-tests counts it: of a ring all-reduce over N ranks
    2 (N-1)/N of the buffer, of a gather, a reduce-scatter or an exchange (N-1)/N (None in older files).

    Busy is the time during which a collective or message of the kind that the rank takes part in is under way, counted
    from the arrival of its last participant. Exposed is the part of it during which the rank's kernels wait.
    """

    bytes_per_rank: float
    busy_s: float
    exposed_s: float
    algorithm: str
    sent_bytes_per_rank: float | None = None


class StageMemory(Strict):
    """Memory of one pipeline stage at its peak: the six parts of ``parts_bytes`` sum to ``peak_bytes``.

    ``peak_time_s`` is when the peak is reached and ``peak_op`` the op that starts there; ``capacity_bytes`` is the
    memory of one of its devices. In files the names of sizes are without "_bytes".
    """

    model_config = ConfigDict(alias_generator=lambda name: name.removesuffix("_bytes"), populate_by_name=True)

    stage: int
    device: str
    capacity_bytes: float
    parameters_bytes: float
    gradients_bytes: float
    optimizer_states_bytes: float
    activations_bytes: float
    transient_bytes: float
    overhead_bytes: float
    peak_bytes: float
    peak_time_s: float
    peak_op: str

    @property
    def parts_bytes(self) -> dict[str, float]:
        """Bytes of every part of MEMORY_PARTS, in that order."""
        return {part: getattr(self, f"{part}_bytes") for part in MEMORY_PARTS}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if f"{name}_bytes" not in type(self).model_fields:
                return super().__getattr__(name)
            warnings.warn(f"{name} is called {name}_bytes now", DeprecationWarning, stacklevel=2)
            return getattr(self, f"{name}_bytes")


class HostReport(Strict):
    """Host memory of the ranks of the fullest node, in bytes; the four parts sum to ``used``.

    ``nvme`` is on drives, whose capacity is None if the profile does not give it.
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


class MemoryReport(Strict):
    """Memory of the fullest rank in bytes, and of every pipeline stage.

    ``peak_memory_bytes`` is what the allocator hands out, ``peak_reserved_bytes`` what it reserves, ``capacity_bytes``
    the memory of the device, and ``headroom_bytes`` what is left (negative: it does not fit). ``host`` is given if
    something is offloaded; it must fit too.
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
        """The memory of a device of a pipeline stage, in bytes."""
        return next((one.capacity_bytes for one in self.stages if one.stage == stage), self.capacity_bytes)


class Setup(Strict):
    """Enough to reproduce the run: resolved inputs, the engine that ran with its seed, and facts about folding.

    ``asked`` is the plan as it was asked for, without the choices that it left to the stack. ``num_microbatches`` is
    how many a pipeline runs in a step: without one, the steps of gradient accumulation (None in older files).
    """

    plan: dict[str, Any]
    asked: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any]
    num_microbatches: int | None = None
    model: dict[str, Any]
    cluster: dict[str, Any]
    engine: dict[str, Any]
    perturbation: dict[str, Any] = Field(default_factory=dict)
    fold: dict[str, Any]
    simpar_version: str


class Trial(Strict):
    """A neighbouring layout, simulated: the change as flags, and its figures (s, share of peak, bytes).

    ``fit_probability`` is the probability that every rank fits. If the layout is not possible, ``refused`` says why and
    the figures are None. ``not_with`` says why the framework of the stack cannot run it, though it is possible.
    """

    change: str
    step_time_s: float | None = None
    mfu: float | None = None
    peak_reserved_bytes: float | None = None
    fits: bool = False
    fit_probability: float | None = None
    refused: str = ""
    not_with: str = ""


class Staleness(Strict):
    """The age of parameters when a gradient is applied: updates by others in between.

    ``shares[k]`` is the share of updates with staleness k; ``clock_gap`` the most local steps by which a replica was
    ahead of the slowest.
    """

    mean: float
    maximum: int
    p50: float
    p90: float
    p99: float
    clock_gap: int
    shares: tuple[float, ...]


class Efficiency(Strict):
    """Progress per sample by a stated model: 1 is synchronous training with the same batch per replica.

    ``effective_tokens_per_s`` is throughput times ``efficiency``; ``noise_scale_tokens`` is the batch below which
    gradients are mostly noise.
    """

    model: str
    noise_scale_tokens: float
    efficiency: float
    effective_tokens_per_s: float


class ServerLimit(Strict):
    """How far parameter servers limit a step: ``updates_s`` is what their own updates take of its messages, in s.

    A network that costs nothing leaves them. ``twice_servers_s`` is the step with twice as many servers (None on one
    machine, whose memory all of them share).
    """

    updates_s: float = 0.0
    twice_servers_s: float | None = None


class Cooperation(ServerLimit):
    """How replicas that step on their own synchronise: means over replicas and local steps, in s and bytes.

    A local step takes ``local_step_s`` of its own work (including waits between its ranks), ``exchange_s`` of messages
    and ``waiting_s`` for other replicas. ``busy`` is the share of time in which links and servers are used.
    ``server_memory_bytes`` are the states on one server.
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
    busy: dict[str, float] = Field(default_factory=dict)
    staleness: Staleness | None = None
    statistics: Efficiency | None = None


class Why(Strict):
    """The explanation: limiting factors (``binds``), hints, and seconds of each kind of op on the critical path.

    ``trials`` are neighbouring layouts, best first, if they were simulated (:mod:`simpar.neighbours`). ``waiting``
    lists the ranks that the critical rank waits for, longest first, and sums to that part of the step. ``slow_ranks``
    has the step without slow ranks; ``expert_load`` says how unevenly tokens spread over expert ranks; ``emulated``
    that devices have no units for the precision. ``stacks`` are the same plan under other software stacks, if none was
    asked for. ``certainty`` says how sure the figures are (None in older files); in
    the JSON it is a key of the result itself.
    """

    binds: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    critical_path_s: dict[str, float] = Field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    stacks: tuple[Trial, ...] = ()
    waiting: tuple[Waited, ...] = ()
    slow_ranks: SlowRanks | None = None
    expert_load: ExpertLoad | None = None
    emulated: str | None = None
    certainty: Certainty | None = None

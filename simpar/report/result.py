"""The result of a simulation: what users read, plot, save and compare. All values are SI."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

import simpar.report.timeline as timelines
from simpar import formats
from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.report.bill import Bill, WholeRun
from simpar.report.certainty import Certainty
from simpar.report.timeline import Overview, Timeline
from simpar.report.waits import ExpertLoad, SlowRanks, Waited
from simpar.scenario import Published

if TYPE_CHECKING:
    import pandas as pd


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


@dataclass(frozen=True, repr=False)
class Result:
    """What one simulated step came to.

    ``timeline`` is the full record and stays in memory; ``overview`` is its compact form, kept in the JSON.
    Values are SI: seconds, bytes, FLOP, USD, joule, fractions of one.

    >>> import simpar
    >>> result = simpar.simulate(**simpar.load_scenario("gpt2-laptop").inputs())
    >>> sorted(result.to_frame().columns)[:3], Result.from_json(result.to_json()).mfu == result.mfu
    (['activations', 'capacity', 'device'], True)
    """

    speed: Speed
    bubble_fraction: float
    time_breakdown_s: TimeBreakdown
    communication: Mapping[str, Communication]
    memory: MemoryReport
    bill: Bill
    setup: Setup
    why: Why = field(default_factory=Why)
    published: Published | None = None
    cooperation: Cooperation | None = None
    overview: Overview | None = None
    timeline: Timeline | None = field(default=None, repr=False, compare=False)

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.speed.step_time_s

    @property
    def bubble_text(self) -> str:
        """The bubble fraction and of what it is one: the breakdown's is of one rank and its whole step."""
        return f"{self.bubble_fraction:.1%} (mean over ranks, of the window of passes)"

    @property
    def certainty(self) -> Certainty | None:
        """How sure the step time and the memory are."""
        return self.why.certainty

    @property
    def whole_run(self) -> WholeRun | None:
        """What the run comes to, where the training says its tokens."""
        return self.bill.whole_run

    @property
    def waiting(self) -> tuple[Waited, ...]:
        """For whom the critical rank waits, longest first."""
        return self.why.waiting

    @property
    def slow_ranks(self) -> SlowRanks | None:
        """Ranks slower than others and the step without them, None where there are none."""
        return self.why.slow_ranks

    @property
    def jitter(self) -> JitterReport | None:
        """How the step time spreads, where ranks jitter."""
        return self.speed.jitter

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the whole job per second."""
        return self.speed.tokens_per_s

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation, 0..1."""
        return self.speed.mfu

    @property
    def peak_memory_bytes(self) -> float:
        """Peak bytes of the fullest rank."""
        return self.memory.peak_memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the reserved peak is below the device's capacity on every rank."""
        return self.memory.fits

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data with the keys that :mod:`simpar.report` promises, SI units."""
        data: dict[str, Any] = self.speed.model_dump()
        data["bubble_fraction"] = self.bubble_fraction
        data["time_breakdown_s"] = self.time_breakdown_s.model_dump()
        data["communication"] = {kind: entry.model_dump() for kind, entry in self.communication.items()}
        memory = self.memory.model_dump()
        data["memory"] = list(memory.pop("stages"))
        data |= memory | {"headroom_bytes": self.memory.headroom_bytes}
        data |= {} if self.certainty is None else self.certainty.model_dump(mode="json")
        data |= (
            self.bill.model_dump() | self.setup.model_dump() | {formats.RESULT.key: formats.RESULT.version}
        )
        data["why"] = self.why.model_dump(mode="json", exclude={"certainty"})
        data["cooperation"] = None if self.cooperation is None else self.cooperation.model_dump()
        data["published"] = None if self.published is None else self.published.model_dump()
        data["timeline"] = None if self.overview is None else timelines.to_json(self.overview)
        return data

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, source: str = "result") -> Result:
        """Read what :meth:`to_dict` gives. Raises UserError where ``source`` is not such a result."""
        formats.RESULT.check(data, source)
        try:
            return _read(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UserError(
                f"{source}: {where}: {first['msg'].lower()}; not a result of `simpar simulate`"
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{source}: {error}: missing or malformed; not a result of `simpar simulate`"
            ) from None

    @staticmethod
    def from_json(text: str, *, source: str = "result") -> Result:
        """Read what :meth:`to_json` gives. Raises UserError."""
        return Result.from_dict(_object(text, source), source=source)

    @staticmethod
    def load(path: str | Path) -> Result:
        """Read a result file. Raises UserError."""
        return Result.from_dict(read_object(path), source=str(path))

    def save(self, path: str | Path) -> None:
        """Write the JSON, whole or not at all."""
        write_atomic(path, self.to_json() + "\n")

    def with_published(self, published: Published | None) -> Result:
        """The same result beside a published figure."""
        return replace(self, published=published)

    def to_frame(self, table: str = "stages") -> pd.DataFrame:
        """Memory by stage, or "time", "communication", "figures", "trials" (:mod:`simpar.report.frames`), in SI."""
        from simpar.report.frames import frame_of

        return frame_of(self, table)

    def plot_timeline(self, path: str | Path) -> None:
        """Write the timeline as .png, .svg or .html. Raises UserError for another suffix."""
        from simpar.report.plots import save_plot

        save_plot(self, "timeline", path)

    def plot_memory(self, path: str | Path) -> None:
        """Write memory over time as .png, .svg or .html. Raises UserError for another suffix."""
        from simpar.report.plots import save_plot

        save_plot(self, "memory", path)

    def __repr__(self) -> str:
        from simpar.report.words import short

        return short(self)

    def _repr_html_(self) -> str:
        from simpar.report.notebook import to_html

        return to_html(self)


def read_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file that simpar wrote, of any size. Raises UserError."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text (UTF-8)") from None
    return _object(text, str(path))


def _object(text: str, source: str) -> dict[str, Any]:
    def refused(word: str) -> float:
        raise UserError(f"{source}: {word}: numbers must be finite")

    try:
        data = json.loads(text, parse_constant=refused)
    except json.JSONDecodeError as error:
        fault = f"not JSON: {error.msg}" if text.strip() else "is empty"
        raise UserError(
            f"{source}:{error.lineno}: {fault}; wants what `simpar simulate --json` wrote"
        ) from None
    except (RecursionError, ValueError):
        raise UserError(f"{source}: nested too deeply or a number too long") from None
    if not isinstance(data, dict):
        raise UserError(f"{source}: a {type(data).__name__}: a result is a JSON object")
    return data


def _read(data: Mapping[str, Any]) -> Result:
    memory = _pick(MemoryReport, data) | {"stages": data["memory"]}
    published, view, met = (data.get(key) for key in ("published", "timeline", "cooperation"))
    certainty = _pick(Certainty, data) if "fit_probability" in data else None
    return Result(
        speed=Speed.model_validate(_pick(Speed, data)),
        bubble_fraction=float(data["bubble_fraction"]),
        time_breakdown_s=TimeBreakdown.model_validate(data["time_breakdown_s"]),
        communication={
            kind: Communication.model_validate(row) for kind, row in data["communication"].items()
        },
        memory=MemoryReport.model_validate(memory),
        bill=Bill.model_validate(_pick(Bill, data)),
        setup=Setup.model_validate(_pick(Setup, data)),
        why=Why.model_validate({**data.get("why", {}), "certainty": certainty}),
        cooperation=None if met is None else Cooperation.model_validate(met),
        published=None if published is None else Published.model_validate(published),
        overview=None if view is None else timelines.from_json(view),
    )


def _pick(part: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in part.model_fields if name in data}

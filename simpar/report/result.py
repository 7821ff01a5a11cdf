"""The result of a simulation, which users read, plot, save and compare. All values are in SI units."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

import simpar.report.timeline as timelines
from simpar import formats
from simpar.dataclass import but, dataclass
from simpar.errors import UserError
from simpar.files import as_text, write_atomic
from simpar.json_text import line_of_value
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.regular_files import check_is_file
from simpar.report.bill import Bill, WholeRun
from simpar.report.certainty import Certainty
from simpar.report.later import WhenAsked, values_of
from simpar.report.parts import Communication, Cooperation, JitterReport, MemoryReport, Setup, Speed, TimeBreakdown, Why
from simpar.report.timeline import Overview, Timeline
from simpar.report.waits import SlowRanks, Waited
from simpar.scenario import Published

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Result:
    """The result of one simulated step.

    ``timeline`` is the full record and stays in memory; ``overview`` is its compact form, kept in the JSON. Both are
    made when they are first read. Values are SI: seconds, bytes, FLOP, USD, joule, fractions of one.

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
    def plan(self) -> Plan:
        """The plan that was simulated: everything that it left open is decided."""
        return Plan.model_validate(self.setup.plan)

    @property
    def layout(self) -> Layout:
        """How that plan splits the step: its numbers with every quantity that follows from them.

        >>> import simpar
        >>> plan = {"zero": 3, "hsdp": 2}
        >>> simpar.simulate("gpt2", "dgx-h100", plan, {"seq_len": 1024, "global_batch": 8}).layout.shards
        4
        """
        return Layout.of(self.plan)

    @property
    def asked_plan(self) -> Plan:
        """The plan that was asked for, with what it leaves open; the decided one if the result does not have it."""
        return Plan.model_validate(self.setup.asked or self.setup.plan)

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.speed.step_time_s

    @property
    def bubble_text(self) -> str:
        """The bubble fraction with its reference: the breakdown's bubble is of one rank and its whole step."""
        return f"{self.bubble_fraction:.1%} (mean over ranks, from first to last pass)"

    @property
    def certainty(self) -> Certainty | None:
        """How sure the step time and the memory are."""
        return self.why.certainty

    @property
    def whole_run(self) -> WholeRun | None:
        """The time and cost of the whole run, if the training has a number of tokens."""
        return self.bill.whole_run

    @property
    def waiting(self) -> tuple[Waited, ...]:
        """The ranks that the critical rank waits for, longest first."""
        return self.why.waiting

    @property
    def rank_shown(self) -> str:
        """Whose step is broken down, in words."""
        return "rank that waits least" + (" of those at full speed" if self.slow_ranks else "")

    @property
    def slow_ranks(self) -> SlowRanks | None:
        """Slow ranks and the step without them; None if there are none."""
        return self.why.slow_ranks

    @property
    def jitter(self) -> JitterReport | None:
        """The spread of the step time, if ranks jitter."""
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
        memory = self.memory.model_dump(by_alias=True)
        data["memory"] = list(memory.pop("stages"))
        data |= memory | {"headroom_bytes": self.memory.headroom_bytes}
        data |= {} if self.certainty is None else self.certainty.model_dump(mode="json")
        data |= self.bill.model_dump() | self.setup.model_dump() | {formats.RESULT.key: formats.RESULT.version}
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
        """Read the data of :meth:`to_dict`. Raises UserError if ``source`` is not such a result."""
        formats.RESULT.check(data, source)
        try:
            return _read(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise UserError(f"{source}: {where}: {first['msg'].lower()}; not a result of `simpar simulate`") from None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{source}: {error}: missing or malformed; not a result of `simpar simulate`") from None

    @staticmethod
    def from_json(path: str | Path, *, source: str = "result") -> Result:
        """Read a result file, or the text of :meth:`to_json`, which ``source`` names in errors. Raises UserError."""
        if isinstance(path, str) and path.lstrip()[:1] in ("{", "[", ""):
            return Result.from_dict(_object(path, source), source=source)
        return Result.load(path)

    @staticmethod
    def load(path: str | Path) -> Result:
        """Read a result file. Raises UserError if it cannot be read or is not a result."""
        return Result.from_dict(read_object(path), source=str(path))

    def save(self, path: str | Path) -> None:
        """Write the JSON atomically."""
        write_atomic(path, self.to_json() + "\n")

    def with_published(self, published: Published | None) -> Result:
        """The same result beside a published figure."""
        return but(self, published=published)

    def to_frame(self, table: str = "stages") -> pd.DataFrame:
        """A table in SI units: memory by stage, or "time", "communication", "figures", "trials".

        See :mod:`simpar.report.frames`. Raises UserError for an unknown table.
        """
        from simpar.report.frames import frame_of

        return frame_of(self, table)

    def plot_timeline(self, path: str | Path) -> None:
        """Write the timeline as .png, .svg, .pdf or .html. Raises UserError for another suffix."""
        self._plot("timeline", path)

    def plot_memory(self, path: str | Path) -> None:
        """Write memory over time as .png, .svg, .pdf or .html. Raises UserError for another suffix."""
        self._plot("memory", path)

    def plot_breakdown(self, path: str | Path) -> None:
        """Write where the step goes as .png, .svg, .pdf or .html. Raises UserError for another suffix."""
        self._plot("breakdown", path)

    def plot_flame(self, path: str | Path) -> None:
        """Write memory at the peak by layer as .png, .svg, .pdf or .html. Raises UserError for another suffix."""
        self._plot("flame", path)

    def plot_roofline(self, path: str | Path) -> None:
        """Write the rates of kernels as .png, .svg, .pdf or .html. Raises UserError for another suffix."""
        self._plot("roofline", path)

    def _plot(self, kind: str, path: str | Path) -> None:
        from simpar.report.plots import save_plot

        save_plot(self, kind, path)

    def __repr__(self) -> str:
        from simpar.report.words import describe_briefly

        return describe_briefly(self)

    def _repr_html_(self) -> str:
        from simpar.report.notebook import to_html

        return to_html(self)

    def __getstate__(self) -> dict[str, Any]:
        return values_of(self)


Result.overview, Result.timeline = (WhenAsked(name) for name in ("overview", "timeline"))  # type: ignore[assignment]


def read_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file that simpar wrote, of any size. Raises UserError if there is none."""
    check_is_file(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return _object(as_text(content, path), str(path))


def _object(text: str, source: str) -> dict[str, Any]:
    def refused(word: str) -> float:
        raise UserError(f"{source}:{line_of_value(text, word)}: {word}: numbers must be finite")

    try:
        data = json.loads(text, parse_constant=refused)
    except json.JSONDecodeError as error:
        fault = f"not JSON: {error.msg}" if text.strip() else "is empty"
        raise UserError(f"{source}:{error.lineno}: {fault}; wants what `simpar simulate --json` wrote") from None
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
        communication={kind: Communication.model_validate(row) for kind, row in data["communication"].items()},
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

"""The result of a search: ranked candidates with their reasons, and how sure it is that nothing better exists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from simpar import formats
from simpar.dataclass import dataclass
from simpar.deprecated import renamed_method
from simpar.errors import Infeasible, UserError
from simpar.files import location_of, wording, write_atomic
from simpar.plain import dotted, printable
from simpar.plan.plan import Plan
from simpar.units import format_seconds

if TYPE_CHECKING:
    import pandas as pd


GAINS_BY_MEETING = "gains_by_meeting"
"""The figure of a candidate that is faster than with less recomputation only by how messages meet on shared links."""


@dataclass(frozen=True)
class Counts:
    """Numbers of plans in the space, that fit in memory, were bounded, swept without contention, and simulated."""

    space_size: int = 0
    feasible: int = 0
    bounded: int = 0
    swept: int = 0
    simulated: int = 0


@dataclass(frozen=True, repr=False)
class Candidate:
    """A plan with its simulated figures (SI units); ``why`` says in words what it wins or loses by."""

    rank: int
    plan: Plan
    step_time_s: float
    mfu: float
    peak_memory_bytes: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    why: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data: the promised keys first, then the other figures."""
        head = {
            "rank": self.rank, "step_time_s": self.step_time_s, "mfu": self.mfu,
            "peak_memory_bytes": self.peak_memory_bytes,
        }  # fmt: skip
        return head | {"plan": self.plan.model_dump(mode="json"), "why": list(self.why)} | dict(self.figures)

    def __repr__(self) -> str:
        from simpar.report.words import layout

        step = format_seconds(self.step_time_s)
        return f"<Candidate {self.rank}: {layout(self.plan.model_dump(mode='json'))}; {step}, MFU {self.mfu:.1%}>"


@dataclass(frozen=True, repr=False)
class SearchResult:
    """Candidates, best first, and the certificate.

    ``certified_optimal`` says that no plan of the space can beat the best as predicted (with objective "regret", the
    ``shortest``). Otherwise ``gap`` is the share of the objective by which an unseen plan still might. ``details`` has
    problem, naive choices, Pareto front and more. ``not_shown`` are further candidates that were compared. Steps are in
    s, memory in bytes, shares in 0..1 (:class:`Candidate`).
    """

    candidates: tuple[Candidate, ...]
    counts: Counts
    objective: str
    certified_optimal: bool
    gap: float
    search_seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)
    not_shown: tuple[Candidate, ...] = ()

    @property
    def best(self) -> Candidate:
        """The first candidate. Raises Infeasible if there is none."""
        if not self.candidates:
            raise Infeasible("the search found no plan")
        return self.candidates[0]

    @property
    def shortest(self) -> Candidate:
        """The candidate with the shortest predicted step, to which the certificate of a search for time applies."""
        return min((*self.candidates, *self.not_shown), key=lambda one: one.step_time_s)

    @property
    def tied(self) -> tuple[Candidate, ...]:
        """Candidates that cannot be told apart; empty if the best is clear."""
        return tuple(one for one in (*self.candidates, *self.not_shown) if one.figures.get("tied"))

    def __repr__(self) -> str:
        from simpar.planner.tables import describe_briefly

        return describe_briefly(self)

    def _repr_html_(self) -> str:
        from simpar.planner.tables import to_html

        return to_html(self)

    def to_frame(self) -> pd.DataFrame:
        """A row per candidate, best first, indexed by rank: figures in SI units and a column per axis."""
        import pandas as pd

        from simpar.planner.tables import rows

        return pd.DataFrame(rows(self)).set_index("rank")

    @staticmethod
    def load(path: str | Path) -> SearchResult:
        """Load what :meth:`save` or ``simpar search --json`` wrote. Raises UserError for any other file."""
        from simpar.report.result import read_object

        return SearchResult.from_dict(read_object(path), source=str(path))

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, source: str = "search") -> SearchResult:
        """A result from plain data. Raises UserError if it is not one, or of another version."""
        formats.SEARCH.check(data, source)
        counts = {each.name: data.get(each.name) for each in fields(Counts)}
        nested = _split(SearchResult, data, "details") | {"counts": counts}
        for name in (*counts, formats.SEARCH.key):
            nested["details"].pop(name, None)
        if isinstance(nested.get("candidates"), list):
            nested["candidates"] = [
                _split(Candidate, {"why": None, **one}, "figures") if isinstance(one, Mapping) else one
                for one in nested["candidates"]
            ]
        try:
            return _adapter().validate_python(nested)
        except ValidationError as error:
            first = error.errors()[0]
            where, value = dotted(location_of(first)), printable(repr(first["input"])[:60])
            said = where if first["type"] == "missing" else f"{where} = {value}"
            raise UserError(f"{source}: {said}: {wording(first)}; not a whole search") from None

    def with_details(self, more: Mapping[str, object]) -> SearchResult:
        """The same result with more details."""
        return replace(self, details={**self.details, **more})

    saying = renamed_method("saying", "with_details")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as ``simpar search --json`` writes it."""
        return {
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            **asdict(self.counts),
            "certified_optimal": self.certified_optimal,
            "gap": self.gap,
            "search_seconds": self.search_seconds,
            "objective": self.objective,
            formats.SEARCH.key: formats.SEARCH.version,
            **self.details,
        }

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=1)

    def save(self, path: str | Path) -> None:
        """Write the JSON atomically."""
        write_atomic(Path(path), self.to_json() + "\n")


@cache
def _adapter() -> TypeAdapter[SearchResult]:
    return TypeAdapter(SearchResult)


def _split(kind: type[Any], data: Mapping[str, Any], rest: str) -> dict[str, Any]:
    """Plain data of a dataclass with the keys that are no fields in the field ``rest``."""
    names = {each.name for each in fields(kind)} - {rest}
    own = {key: value for key, value in data.items() if key in names}
    return own | {rest: {key: value for key, value in data.items() if key not in names}}

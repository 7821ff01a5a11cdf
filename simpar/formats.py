"""Files that simpar writes and reads again: the key that holds their version, and which versions are read.

``docs/files.md`` says when a version changes and how long an older one is read.
"""

from collections.abc import Mapping
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError


@dataclass(frozen=True)
class Format:
    """One kind of file: the ``key`` that names it and holds its ``version``, and the command that writes it.

    ``what`` describes its content; ``shown_by`` is the command that shows it ({} stands for the file), "" for none.
    Kinds that share a key differ in a further key, ``mark``. A kind that ``is_scenario`` states a layout and its
    cluster, and is accepted wherever a scenario is.
    """

    key: str
    version: int
    written_by: str
    what: str
    shown_by: str = ""
    mark: str = ""
    is_scenario: bool = True

    def check(self, data: Mapping[str, Any], source: str) -> None:
        """Raises UserError, naming ``source``, where the data are of another kind or version."""
        kind = kind_of(data)
        if kind is not None and kind is not self and (self.key not in data or self.key == kind.key):
            raise UserError(f"{kind.told(source)}; wants {self.what} (`{self.written_by}`)")
        if self.key not in data:
            raise UserError(f"{source}: has no {self.key}; wants what `{self.written_by}` writes")
        if data[self.key] != self.version or isinstance(data[self.key], bool):
            raise UserError(
                f"{source}: {self.key} = {data[self.key]!r}: allowed: {self.version}, "
                f"as `{self.written_by}` of this release writes it"
            )

    def told(self, source: str) -> str:
        """What the file ``source`` is, and the command that shows it."""
        shown = f"which `{self.shown_by.format(source)}` shows" if self.shown_by else "which no command reads"
        return f"{source}: is {self.what} (`{self.written_by}`), {shown}"


RESULT = Format("schema_version", 1, "simpar simulate --json", "a result", "simpar report {}")
SEARCH = Format("search_schema_version", 1, "simpar search --json", "a search", "simpar report {} --summary")
GRID = Format(
    "grid_schema_version", 1, "simpar search --over --json", "a grid of searches", "simpar report {}",
    is_scenario=False,
)  # fmt: skip
HOW_MANY = Format(
    "budget_schema_version", 1, "simpar search --objective days --json", "an answer by numbers of nodes",
    "simpar report {} --summary",
)  # fmt: skip
CHECK = Format("check_schema_version", 1, "simpar check --json", "a checked launch", "simpar simulate {}")
SWEEP = Format(
    "schema_version", 1, "simpar simulate --over --json", "a grid of simulations", "simpar report {}", mark="sweep",
    is_scenario=False,
)  # fmt: skip
EXPLANATION = Format("schema_version", 1, "simpar explain --json", "an explained run", mark="logged", is_scenario=False)
"""simpar itself does not read files of this kind back."""
PLAN = Format("version", 1, "simpar search -o", "a plan")
"""Hand-written plans may leave the version out; :class:`simpar.plan.plan.Record` checks it itself, as a text."""

POST_TRAINING = Format(
    "post_training_schema_version", 1, "simpar simulate --rl --json", "a simulated step of reinforcement learning",
    is_scenario=False,
)  # fmt: skip
POST_TRAINING_SEARCH = Format(
    "post_training_search_schema_version", 1, "simpar search --rl --json",
    "a search for a step of reinforcement learning", is_scenario=False,
)  # fmt: skip
ANSWERS = (RESULT, SEARCH, GRID, HOW_MANY, CHECK, POST_TRAINING, POST_TRAINING_SEARCH)


def kind_of(data: Mapping[str, Any]) -> Format | None:
    """The kind of answer that data are, by their keys; None for anything else."""
    named = [each for each in (SWEEP, EXPLANATION, *ANSWERS) if {each.key, each.mark or each.key} <= data.keys()]
    return named[0] if named else None


def is_simulated(data: Mapping[str, Any]) -> bool:
    """Whether data are the answer for one simulated plan: a result or a checked launch."""
    return not {RESULT.key, CHECK.key}.isdisjoint(data)


def check_answer(data: Mapping[str, Any], source: str) -> None:
    """Raises UserError where data are an answer without a scenario, or of a version that is not supported."""
    kind = kind_of(data)
    if kind is not None and not kind.is_scenario:
        kind.check(data, source)
        raise UserError(f"{kind.told(source)}; wants a scenario, a plan, a result or a search")
    for each in ANSWERS:
        if each.key in data:
            each.check(data, source)

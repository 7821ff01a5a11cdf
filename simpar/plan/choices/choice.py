"""What a choice of a plan declares about itself. Whatever lists choices is a query of these declarations.

A file of this folder holds a section of the plan, and in ``CHOICES`` one :class:`Choice` for every field of it: how it
is written, which flag sets it, what follows from it, and how searches vary it. :mod:`simpar.plan.choices` collects
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.choices.target import Workload
from simpar.stacks.stack import Stack
from simpar.units import Flags

if TYPE_CHECKING:
    from simpar.plan.plan import Plan

Change = dict[str, Any]
"""New values of a plan by flat key, or by section and field; None leaves a choice open."""
MEMORY, BLOCKS, SHAPE, REPLICAS = "memory", "blocks", "shape", "replicas"
"""What a choice may decide, by which searches know which rows share a computation.

MEMORY: whether a plan fits. BLOCKS: kernels and collectives of the passes of a block. SHAPE: how stages are cut and
ordered. REPLICAS: what ranks with the same parameters send each other, and when.
"""
OPS, TRAFFIC, KERNELS, TABLE, SIZES, AMONG = "ops", "traffic", "kernels", "table", "sizes", "among"
"""What else a choice may decide, by which searches order what they do.

OPS: how many ops a pass has, and how many ranks differ. TRAFFIC: what ranks send, which bounds by kernels alone say
nothing about. KERNELS: what such bounds rank. TABLE: the action table, for a number of microbatches. SIZES: of the
kernels and collectives of a block nothing but their sizes, and whether there are several ranks, so that many values are
costed at once, as an array. AMONG: among which ranks collectives run, and which collectives these are.
"""
LAYOUT, JOB = "layout", "job"
"""What a value may be made for: LAYOUT, the degrees and the schedule of a plan; JOB, its model, shape and devices."""


class Restrictions(Protocol):
    """What a search was told to restrict."""

    @property
    def fixed(self) -> Mapping[str, Any]:
        """Values of axes that were asked for."""

    @property
    def schedules(self) -> tuple[str, ...] | None:
        """Pipeline schedules that were asked for."""


class Varied(Protocol):
    """Ranks that differ from the cluster's profile."""

    @property
    def slow_ranks(self) -> Mapping[int, float]:
        """Factors on kernel times, by rank."""

    @property
    def jitter_sigma(self) -> float:
        """Deviation of the logarithm of kernel times."""


class Question(Protocol):
    """What a search is asked: a model, a cluster, a step, the software, and what it was told to restrict."""

    @property
    def graph(self) -> ModelGraph:
        """The model."""

    @property
    def cluster(self) -> Cluster:
        """The cluster."""

    @property
    def training(self) -> Training:
        """Sequence length and global batch."""

    @property
    def stack(self) -> Stack:
        """The training software."""

    @property
    def base(self) -> Any:
        """The plan that gives what is not searched."""

    @property
    def constraints(self) -> Restrictions:
        """What was asked for."""

    @property
    def perturbation(self) -> Varied:
        """Ranks that differ."""

    @property
    def export_target(self) -> str | None:
        """The export target that plans must be expressible for, if one was asked for."""


class Columns(Protocol):
    """Rows of a space of plans as columns, as far as its axes are joined yet; masks are bool[count]."""

    count: int
    domain: dict[str, tuple[Any, ...]]

    @property
    def problem(self) -> Question:
        """What is searched."""

    @property
    def code(self) -> Mapping[str, Any]:
        """For every joined axis, each row's index in the domain: int[count]."""

    def __getitem__(self, name: str) -> Any:
        """Values of an axis, or of a quantity derived from several, such as dp: [count]."""

    def one_of(self, name: str, *values: Any) -> Flags:
        """Rows whose value on an axis is one of ``values``."""


def select_all(rows: Columns) -> Flags:
    """All rows."""
    return np.ones(rows.count, dtype=bool)


def has_value(rows: Columns, name: str, *values: Any) -> Flags:
    """Rows whose value of a choice (or the plan's, if it is not searched) is one of ``values``."""
    if name in rows.domain:
        return rows.one_of(name, *values)
    return np.full(rows.count, rows.problem.base.get(name) in values)


def make_effects(*what: str) -> frozenset[str]:
    """A set of what a choice decides, from the constants of this module."""
    return frozenset(what)


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors of a number up to ``most``, in ascending order."""
    return [n for n in range(1, min(number, most or number) + 1) if number % n == 0]


@dataclass(frozen=True)
class Axis:
    """How every search varies a choice, and what the choice ``decides``.

    ``domain`` are the values to try; ``keep`` masks the rows in which a value is legal and does not merely rename the
    plan of another row. Axes are joined ``after`` one another, so that a rule sees the axes before its own; None comes
    first. ``possible`` are all values that a plan may have, if the domain has only some of them; ``omits`` says what
    else ``keep`` leaves out that a plan may have. ``untuned`` are the values that people start from, where that is not
    any value. ``name`` is that of the choice.
    """

    decides: frozenset[str]
    domain: Callable[[Question], Sequence[Any]]
    keep: Callable[[Columns], Flags]
    after: str | None = None
    possible: Callable[[Question], Sequence[Any]] | None = None
    omits: str = ""
    untuned: Callable[[Question], Sequence[Any]] | None = None
    name: str = ""


@dataclass(frozen=True)
class Rules:
    """Rules of :mod:`simpar.layout.check`, by name, and the choices that decide whether a plan keeps them."""

    names: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True)
class OptionalAxis:
    """How searches vary a choice that has the plan's value unless several are asked for.

    Such choices change training, or would multiply the space of every search. Values are tried in rows where they
    ``matter``; they must be ``legal`` there and keep all ``rules``. Other rows have the default of a plan.
    ``companions`` are values of other choices that its values require. ``label`` is the template by which a list of
    candidates names a value: empty for its key and the value, None if it is not named because the layout or the stack
    says it. ``is_decided``: the stack decides it, and it is named only if it was asked for.
    """

    decides: frozenset[str]
    matters: Callable[[Columns], Flags] = select_all
    legal: Callable[[Columns], Flags] = select_all
    rules: tuple[Rules, ...] = ()
    companions: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = ""
    is_decided: bool = False
    after: str | None = None
    name: str = ""


AnyAxis = Axis | OptionalAxis


@dataclass(frozen=True)
class Flag:
    """The flag of the command line that sets a choice: its type, its help text, and its spelling if not the key's.

    ``given``: the plan says it for all layouts of a search, so that no array has many values of it.
    """

    kind: type
    help: str
    spelling: str = ""
    given: bool = False


@dataclass(frozen=True)
class Size:
    """A choice that is a degree or a count: it is halved and doubled.

    Values divide ``divides``, such as the number of devices, if that is given, and are at most ``most`` in menus.
    """

    most: Callable[[Plan, Workload], int]
    divides: Callable[[Workload], int] | None = None


@dataclass(frozen=True)
class Moves:
    """How a choice takes a plan to the plans next to it (:mod:`simpar.layout.moves` generates these).

    Values: ``near`` are those to try one at a time where another value means anything, ``around`` those of a joint
    space around a plan (a ``size`` has its half and its double there), ``menu`` all values on a model and devices. Each
    may turn out to be illegal. The plan has what its stack decides.

    Changes: ``change`` gives the keys that a value is written with, and after that the same with keys that make it
    legal more often (by default the value alone); ``room`` makes room for values of other choices; ``replacements``
    stand in for a value that a framework does not have, the nearest first. ``saves`` ranks values by the memory they
    save.

    ``after`` names the choice whose changes are tried before: of several changes with one effect the first is kept.
    ``led_by`` is a choice whose change may bring one of this along. ``for_measured``: tried only for a measured run,
    which may have been started with switches that its stack does not have by default. ``name`` is that of the choice.
    """

    near: Callable[[Plan, Workload], Iterable[Any]] | None = None
    around: tuple[Any, ...] = ()
    size: Size | None = None
    menu: Callable[[Plan, Workload], Iterable[Any]] | None = None
    change: Callable[[Plan, Any], Iterable[Change]] | None = None
    room: Callable[[Plan], Change] | None = None
    replacements: Callable[[Plan], Iterable[Change]] | None = None
    saves: Callable[[Any], float] | None = None
    after: str | None = None
    led_by: str = ""
    for_measured: bool = False
    name: str = ""


def double_and_half(size: int) -> tuple[int, ...]:
    """The sizes next to one."""
    return (2 * size, size // 2) if size > 1 else (2,)


def replace_with(name: str, *values: Any) -> Callable[[Plan], Iterable[Change]]:
    """Replacements of any value of a choice."""
    return lambda _: ({name: value} for value in values)


@dataclass(frozen=True)
class Choice:
    """One choice of a plan.

    ``name`` is its flat key in plan files and the name of its axis. ``field`` is its field in the section, if that has
    another name; such a choice has the flat key ``key`` or, with None, none. ``synonyms`` are other frameworks' words
    for it. ``reopens`` are choices that follow from it: if it changes, they are left open again and decided anew;
    ``idle_at_one`` is a choice that means nothing where this degree is 1. ``axis`` says how searches vary it,
    ``read`` how its value there is read from a plan, if that is not the value of its field, and ``is_held`` whether a
    search that does not vary it says what value it holds. ``by_stack``: the software stack decides it where a plan
    leaves it open. ``in_stack``: the stack that does as a plan chose, where the choice is a policy of stacks.
    ``is_exported``: exporters look at it; a plan that chose an unusual value for any other choice is refused.
    ``is_column``: tables of plans have a column of it; ``measured`` says what its column in tables of measured runs
    holds. ``any_degree``: a framework that has it above 1 has any number of it. ``made_for``: LAYOUT or JOB, if a value
    means nothing for another one. ``moves`` say which plans are next to a plan along it.
    """

    name: str
    field: str = ""
    key: str | None = ""
    synonyms: tuple[str, ...] = ()
    flag: Flag | None = None
    reopens: tuple[str, ...] = ()
    idle_at_one: str = ""
    axis: AnyAxis | None = None
    is_held: bool = True
    by_stack: bool = False
    is_exported: bool = False
    is_column: bool = False
    measured: str = ""
    any_degree: bool = False
    made_for: tuple[str, ...] = ()
    in_stack: Callable[[Stack, Any], Stack] | None = None
    read: Callable[[Any], Any] | None = None
    moves: Moves | None = None
    section: str = ""

    def __post_init__(self) -> None:
        if self.axis is not None and not self.axis.name:
            object.__setattr__(self, "axis", replace(self.axis, name=self.name))
        if self.moves is not None:
            object.__setattr__(self, "moves", replace(self.moves, name=self.name))
        if self.key == "":
            object.__setattr__(self, "key", self.name)
        if not self.field:
            object.__setattr__(self, "field", self.name)
        if self.flag is not None and not self.flag.spelling:
            spelling = f"--{self.name.replace('_', '-')}"
            object.__setattr__(self, "flag", replace(self.flag, spelling=spelling))

    @property
    def is_number(self) -> bool:
        """Whether it has a flag and its values are numbers or truth values, of which arrays have many at once."""
        return self.flag is not None and self.flag.kind is not str and not self.flag.given

    @property
    def path(self) -> tuple[str, str]:
        """Section and field in a plan; the section is empty for a key of the plan itself."""
        return self.section, self.field


def in_section(section: str, *choices: Choice) -> tuple[Choice, ...]:
    """The choices of a section of the plan."""
    return tuple(replace(choice, section=section) for choice in choices)

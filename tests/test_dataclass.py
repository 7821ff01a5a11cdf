"""The dataclasses of simpar are those of Python: each law is tried on the same class made by both decorators."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import pytest

import simpar.dataclass

DECORATORS = {"python": dataclasses.dataclass, "simpar": simpar.dataclass.dataclass}
OPTIONS = (
    {},
    {"frozen": True},
    {"eq": False},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
    {"frozen": True, "kw_only": True},
    {"kw_only": True},
)


@pytest.fixture(autouse=True, params=[0, simpar.dataclass.FEW], ids=["compiled", "filled"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many objects of a class there are before its ``__init__`` is compiled."""
    monkeypatch.setattr(simpar.dataclass._LaterInit, "left", request.param)
    return request.param


def plain(decorate: Callable[..., Any], options: dict[str, bool]) -> Any:
    """A class with a field of every kind."""

    class Point:
        x: int
        kind: ClassVar[str] = "point"
        name: str = "origin"
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        hidden: int = dataclasses.field(default=3, repr=False, hash=False)
        own: int = dataclasses.field(default=4, init=False)
        made: dict[str, int] = dataclasses.field(init=False, default_factory=dict, compare=False)
        last: int = dataclasses.field(default=5, kw_only=True)

    return decorate(**options)(Point)


def outcome(action: Callable[[], Any]) -> Any:
    """What an action gives, or the type and the words of its error."""
    try:
        return action()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


ACTIONS: dict[str, Callable[[Any], Any]] = {
    "repr": lambda cls: repr(cls(x=1, tags=["a"])).split(" object at")[0],
    "positions": lambda cls: vars(cls(1, "b", ["c"], 7)),
    "keywords": lambda cls: vars(cls(name="b", x=2, last=9)),
    "missing": lambda cls: cls(),
    "unknown": lambda cls: cls(x=1, y=2),
    "too many": lambda cls: cls(1, "b", [], 3, 4),
    "derived": lambda cls: cls(x=1, made={}),
    "equal": lambda cls: [cls(x=1) == cls(x=x, tags=tags, hidden=hidden)
                          for x in (1, 2) for tags in ([], ["a"]) for hidden in (3, 4)],
    "unlike": lambda cls: (cls(x=1) == 1, cls(x=1) != 1, cls(x=1).__eq__(1)),
    "hash": lambda cls: hash(cls(x=1, tags=["a"])) == hash((1, "origin", 4, 5)),
    "hash leaves out": lambda cls: len({hash(each) for each in [cls(x=1, hidden=8), cls(x=1)]}),
    "hashable": lambda cls: isinstance(cls(x=1), Hashable),
    "assign": lambda cls: setattr(cls(x=1), "x", 2),
    "assign else": lambda cls: setattr(cls(x=1), "y", 2),
    "delete": lambda cls: delattr(cls(x=1), "x"),
    "delete else": lambda cls: delattr(cls(x=1), "y"),
    "replace": lambda cls: vars(dataclasses.replace(cls(x=1, name="n"), hidden=8)),
    "replace derived": lambda cls: dataclasses.replace(cls(x=1), own=8),
    "fields": lambda cls: [(each.name, str(each.type), each.init, each.kw_only) for each in dataclasses.fields(cls)],
    "asdict": lambda cls: dataclasses.asdict(cls(x=1, tags=["t"])),
    "copy": lambda cls: vars(copy.deepcopy(cls(x=1, tags=["t"]))),
    "own lists": lambda cls: cls(x=1).tags is cls(x=1).tags,
    "match": lambda cls: cls.__match_args__,
    "class attributes": lambda cls: [hasattr(cls, name) for name in ("name", "tags", "hidden", "own", "made", "kind")],
    "names": lambda cls: [(getattr(cls, name).__qualname__, getattr(cls, name).__module__)
                          for name in ("__init__", "__repr__", "__eq__", "__setattr__") if name in vars(cls)],
    "params": lambda cls: repr(cls.__dataclass_params__),
    "annotations": lambda cls: cls.__init__.__annotations__,
    "parameters": lambda cls: [(each.name, each.kind, each.default is each.empty)
                               for each in inspect.signature(cls).parameters.values()],
    "methods": lambda cls: sorted(name for name in vars(cls) if name != "__replace__"),
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_class_is_as_python_makes_it(options: dict[str, bool]):
    """With every combination of options that is used, all that can be asked of a class has the answer of Python's."""
    differ = {}
    for name, action in ACTIONS.items():
        expected, got = (outcome(lambda make=make: action(plain(make, options))) for make in DECORATORS.values())  # noqa: B023
        if expected != got:
            differ[name] = (expected, got)
    assert differ == {}


def shaped(decorate: Callable[..., Any]) -> dict[str, Any]:
    """Classes that define methods themselves, or derive from each other."""

    @decorate(frozen=True)
    class Base:
        a: int
        b: int = 2

        def __post_init__(self):
            object.__setattr__(self, "c", self.a + self.b)

    @decorate(frozen=True)
    class Derived(Base):
        b: int = 3
        d: int = 4

    class Undecorated(Base):
        pass

    @decorate(frozen=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, int)

        def __repr__(self) -> str:
            return "own"

    @decorate(frozen=True)
    class Hashed:
        a: int

        def __hash__(self) -> int:
            return 7

    @decorate
    class Initial:
        a: int

        def __init__(self):
            self.a = 5

    @decorate(frozen=True)
    class Nothing:
        pass

    @decorate
    class Loop:
        inner: Any = None

    return {each.__name__: each for each in (Base, Derived, Undecorated, Own, Hashed, Initial, Nothing, Loop)}


def recursive(cls: Any) -> str:
    """A loop in words: an object that has itself as a field."""
    loop = cls()
    loop.inner = loop
    return repr(loop)


SHAPES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "post init": lambda cls: cls["Base"](1).c,
    "derived": lambda cls: (repr(cls["Derived"](1)), cls["Derived"](1).c, hash(cls["Derived"](1)) == hash((1, 3, 4))),
    "derived assigns": lambda cls: setattr(cls["Derived"](1), "z", 1),
    "base and derived": lambda cls: cls["Derived"](1) == cls["Base"](1),
    "undecorated": lambda cls: repr(cls["Undecorated"](1)),
    "undecorated assigns": lambda cls: setattr(cls["Undecorated"](1), "z", 1),
    "undecorated assigns a field": lambda cls: setattr(cls["Undecorated"](1), "a", 1),
    "own methods": lambda cls: (repr(cls["Own"](1)), cls["Own"](1) == 3, hash(cls["Own"](1)) == hash((1,))),
    "own hash": lambda cls: hash(cls["Hashed"](1)),
    "own init": lambda cls: cls["Initial"]().a,
    "nothing": lambda cls: (repr(cls["Nothing"]()), cls["Nothing"]() == cls["Nothing"](), hash(cls["Nothing"]())),
    "recursive": lambda cls: recursive(cls["Loop"]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_own_methods_stay_and_classes_derive(name: str):
    """Methods that a class defines are kept, and a derived class is made as by Python."""
    expected, got = (outcome(lambda make=make: SHAPES[name](shaped(make))) for make in DECORATORS.values())
    assert got == expected


@pytest.mark.parametrize(("base", "derived"), [(True, False), (False, True)])
def test_a_class_is_frozen_with_its_base_or_not_at_all(base: bool, derived: bool):
    """A frozen class and one that is not do not derive from each other, as Python has it."""

    def made(decorate: Callable[..., Any]) -> Any:
        parent = decorate(frozen=base)(type("Parent", (), {"__annotations__": {"a": int}}))
        return decorate(frozen=derived)(type("Child", (parent,), {"__annotations__": {"b": int}}))

    expected, got = (outcome(lambda make=make: made(make)) for make in DECORATORS.values())
    assert got == expected
    assert got[0] is TypeError


@simpar.dataclass.dataclass(frozen=True)
class Stored:
    """A class that a pickle finds by its name."""

    a: int
    b: tuple[int, ...] = ()


def test_instances_are_pickled():
    """A frozen object comes back equal, and of the same class."""
    again = pickle.loads(pickle.dumps(Stored(1, (2, 3))))
    assert again == Stored(1, (2, 3))
    assert type(again) is Stored


def test_a_method_is_compiled_when_it_is_first_looked_up(few: int):
    """What stands for ``__init__`` and comparison gives way to a function at a use, ``__init__`` after a few."""

    @simpar.dataclass.dataclass(frozen=True)
    class Point:
        x: int

    compiled = ("__init__", "__eq__", "__hash__")
    assert not any(inspect.isfunction(vars(Point)[name]) for name in compiled)
    assert {Point(1)} == {Point(1)}
    assert inspect.isfunction(vars(Point)["__init__"]) is (few < 2)
    assert [Point(x).x for x in range(few)] == [*range(few)]
    assert all(inspect.isfunction(vars(Point)[name]) for name in compiled)


def test_copies_without_init_are_those_of_replace():
    """With other values, and as a class that derives from the first."""

    @simpar.dataclass.dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2

    @simpar.dataclass.dataclass(frozen=True)
    class Named(Point):
        name: str = ""

    assert simpar.dataclass.but(Point(1), y=5) == dataclasses.replace(Point(1), y=5) == Point(1, 5)
    assert simpar.dataclass.but(Point(1), Named, name="a") == Named(1, 2, "a")

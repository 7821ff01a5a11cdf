"""Dataclasses that cost little to define: ``dataclass`` as in Python's ``dataclasses``.

Python's decorator compiles the source of up to seven methods for every class, which takes a millisecond: for the
hundreds of classes that one command imports, a third of its time. Here ``__init__`` is compiled when there are some
objects, others when they are first looked up, and those that are seldom called are not compiled at all. Python's
decorator still reads the fields, so ``field``, ``fields``, ``replace``, ``asdict`` and matching are those of
``dataclasses``.
"""

import dataclasses
from collections.abc import Callable, Set
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cached_property, partial
from reprlib import recursive_repr
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

Instance = TypeVar("Instance")
SELF = "__dataclass_self__"  # no field has this name
FEW = 16
"""Objects of a class that are filled before its ``__init__`` is compiled."""
FACTORY = object()
"""The default of an argument whose value comes from its field's factory."""

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None, *, repr: bool = True, eq: bool = True, frozen: bool = False, kw_only: bool = False
    ) -> Any:
        """As ``dataclasses.dataclass``, with the options that are used here. It can be used without parentheses.

        Not supported are fields that are arguments only (``InitVar``).
        """

        def made(cls: type) -> type:
            return _made(cls, repr, eq, frozen, kw_only)

        return made if cls is None else made(cls)


def but(one: Instance, made: type[Instance] | None = None, /, **values: Any) -> Instance:
    """A copy with other values, of the same class or as ``made``, one that derives from it.

    It is ``replace`` without ``__init__`` and its checks, for what is made by the thousand: what properties keep with
    ``one`` is kept with the copy.
    """
    changed = object.__new__(made or type(one))
    object.__setattr__(changed, "__dict__", one.__dict__ | values)
    return changed


def _made(cls: Any, with_repr: bool, eq: bool, frozen: bool, kw_only: bool) -> Any:
    """The class with the methods of a dataclass; those that it defines itself stay, as with Python's decorator."""
    own = dict(vars(cls))
    _read_fields(cls, frozen, kw_only)
    stated = cls.__dataclass_params__
    stated.init, stated.repr, stated.eq, stated.frozen = True, with_repr, eq, frozen
    methods: dict[str, Any] = {"__init__": _LaterInit("__init__", cls, partial(_init, frozen=frozen))}
    if with_repr:
        methods["__repr__"] = _repr(cls)
    if eq:
        methods["__eq__"] = _Later("__eq__", cls, _eq)
    if frozen:
        methods |= _frozen(cls)
    if own.get("__hash__") is None and "__eq__" in own:
        own.pop("__hash__", None)  # not the author's: Python writes it beside an __eq__
    if eq:
        methods["__hash__"] = _Later("__hash__", cls, _hash) if frozen else None
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


_READS = Lock()
_KIND = {True: "frozen", False: "non-frozen"}


def _read_fields(cls: Any, frozen: bool, kw_only: bool) -> None:
    """Have Python's decorator read the fields of a class.

    It would compile two methods for each that derives from a frozen one, which it therefore does not see meanwhile.
    """
    with _READS:  # modules may be imported by several threads
        bases = {id(one): one for base in cls.__bases__ if (one := getattr(base, "__dataclass_params__", None))}
        if any(one.frozen is not frozen for one in bases.values()):
            raise TypeError(f"cannot inherit {_KIND[frozen]} dataclass from a {_KIND[not frozen]} one")
        above = {id(one): one for base in cls.__mro__[1:] if (one := getattr(base, "__dataclass_params__", None))}
        for one in above.values():
            one.frozen = False
        cls.__doc__ = cls.__doc__ or cls.__name__  # else Python writes its signature there: up to 4 ms
        try:
            dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        finally:
            for one in above.values():
                one.frozen = frozen


class _Later:
    """Stands for a method of a class until it is first looked up, and puts what ``make`` compiles in its own place."""

    def __init__(self, name: str, cls: Any, make: Callable[[Any], Any]) -> None:
        self.name, self.cls, self.make = name, cls, make

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        method = _named(self.make(self.cls), self.name, self.cls)
        setattr(self.cls, self.name, method)
        return method if instance is None else method.__get__(instance)


class _LaterInit(_Later):
    """Stands for ``__init__``. The first FEW objects are filled without it: half of the classes have no more."""

    left = FEW

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None or not self.left:
            return super().__get__(instance, owner)
        self.left -= 1
        return partial(self._fill, instance)

    def _fill(self, instance: Any, /, *given: Any, **named: Any) -> None:
        positional, taken, needed, defaults, factories = self._arguments
        names = {*positional[: len(given)], *named}
        if len(names) < len(given) + len(named) or not needed <= names <= taken:
            super().__get__(instance)(*given, **named)  # which says what is wrong
            return
        values = {**defaults, **dict(zip(positional, given, strict=False)), **named}
        for name, make in factories:
            if name not in names:
                values[name] = make()
        instance.__dict__.update(values)
        if hasattr(self.cls, "__post_init__"):
            instance.__post_init__()

    @cached_property
    def _arguments(self) -> tuple[list[str], Set[str], Set[str], dict[str, Any], list[tuple[str, Callable[[], Any]]]]:
        """Names by position, all names, those that are needed; every field in order with its default; factories.

        A field that is no argument is the attribute of the class, if it has a default.
        """
        fields = dataclasses.fields(self.cls)
        taken = [field for field in fields if field.init]
        factories = [(field.name, field.default_factory) for field in fields if field.default_factory is not MISSING]
        made = dict(factories)
        return (
            [field.name for field in taken if not field.kw_only],
            frozenset(field.name for field in taken),
            frozenset(field.name for field in taken if field.default is MISSING and field.name not in made),
            {field.name: field.default for field in fields if field.init or field.name in made},
            factories,
        )


def _named(method: Any, name: str, cls: Any) -> Any:
    method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__qualname__}.{name}", cls.__module__
    return method


def _compiled(head: str, body: list[str], given: dict[str, Any]) -> Any:
    """The function with these arguments and lines; ``given`` are the values that the lines name."""
    lines = "".join(f"\n  {line}" for line in body or ["pass"])
    made: dict[str, Any] = {}
    exec(f"def make({', '.join(given)}):\n def method({head}):{lines}\n return method", made)
    return made["make"](**given)


def _values(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in names)})"


def _eq(cls: Any) -> Any:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    same = f"{_values('self', names)} == {_values('other', names)}"
    return _compiled("self, other", [f"return {same} if other.__class__ is self.__class__ else NotImplemented"], {})


def _hash(cls: Any) -> Any:
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]
    return _compiled("self", [f"return hash({_values('self', names)})"], {})


def _init(cls: Any, *, frozen: bool) -> Any:
    """Takes the fields in the order of the class, those that are keyword-only behind the others, and sets them."""
    fields = dataclasses.fields(cls)
    taken = [field for field in fields if field.init]
    positional, named = ([field for field in taken if bool(field.kw_only) is keyword] for keyword in (False, True))
    given: dict[str, Any] = {"_set": object.__setattr__, "_factory": FACTORY}
    head = [SELF, *(_argument(field, given) for field in positional)]
    head += ["*", *(_argument(field, given) for field in named)] if named else []
    body = []
    for field in fields:
        value = field.name
        if field.default_factory is not MISSING:
            given[f"_make_{field.name}"] = field.default_factory
            kept = f" if {value} is _factory else {value}" if field.init else ""
            value = f"_make_{value}(){kept}"
        elif not field.init:
            continue  # it is the attribute of the class, if there is a default
        body.append(f"_set({SELF}, {field.name!r}, {value})" if frozen else f"{SELF}.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(f"{SELF}.__post_init__()")
    method = _compiled(", ".join(head), body, given)
    method.__annotations__ = {**{field.name: field.type for field in (*positional, *named)}, "return": None}
    return method


def _argument(field: Field[Any], given: dict[str, Any]) -> str:
    """The argument for a field; its default goes to what the lines name."""
    if field.default_factory is not MISSING:
        return f"{field.name}=_factory"
    if field.default is MISSING:
        return field.name
    given[f"_default_{field.name}"] = field.default
    return f"{field.name}=_default_{field.name}"


def _repr(cls: Any) -> Any:
    names = [field.name for field in dataclasses.fields(cls) if field.repr]

    def method(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return recursive_repr()(_named(method, "__repr__", cls))


def _frozen(cls: Any) -> dict[str, Any]:
    """What refuses to change a field, and any attribute of an instance of the class itself."""
    names = frozenset(field.name for field in dataclasses.fields(cls))

    def assign(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": _named(assign, "__setattr__", cls), "__delattr__": _named(delete, "__delattr__", cls)}

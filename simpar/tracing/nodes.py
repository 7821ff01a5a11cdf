"""One call of a trace as plain data, with sizes as polynomials in batch and sequence. No torch here."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from simpar.architectures.graph import Size
from simpar.dataclass import dataclass

CONSTANT, INDEX, WEIGHTS, DATA = "constant", "index", "weights", "data"


@dataclass(frozen=True)
class Ref:
    """An argument that is another call's result."""

    name: str


@dataclass(frozen=True)
class TraceShape:
    """Batch size and sequence length of one trace."""

    batch: int
    seq: int


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees, read off a constant mask."""

    causal: bool = False
    window: int | None = None


def narrowest(masks: Iterable[Mask | None]) -> Mask | None:
    """The keys that a query sees under several masks of one attention; None without any."""
    known = [mask for mask in masks if mask is not None]
    windows = [mask.window for mask in known if mask.window is not None]
    return Mask(any(mask.causal for mask in known), min(windows, default=None)) if known else None


@dataclass(frozen=True)
class CallNode:
    """One call.

    ``shape`` is its dims as polynomials in batch and seq (None: no tensor), ``sizes`` its dims in the longer trace.
    ``kind`` says what it depends on: nothing ("constant"), token numbers ("index"), parameters alone ("weights") or
    the batch ("data"). ``owners`` are the modules around it, outermost first, as (path, class). ``mask`` is what a
    constant mask shows.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    shape: tuple[Size, ...] | None
    sizes: tuple[int, ...]
    kind: str
    owners: tuple[tuple[str, str], ...] = ()
    floating: bool = True
    mask: Mask | None = None

    @property
    def refs(self) -> tuple[str, ...]:
        """Names of the calls that it reads, in order."""
        return tuple(refs_of(self.args))

    @property
    def numel(self) -> Size:
        """Number of elements."""
        return times(*(self.shape or ()))

    @property
    def path(self) -> str:
        """Path of the innermost module around the call ("" at the top)."""
        return self.owners[-1][0] if self.owners else ""


@dataclass(frozen=True)
class TracedCall:
    """One call of one trace: its ``args`` in the order of its schema, and as ``given`` to the function ``target``."""

    name: str
    op: str
    args: tuple[Any, ...]
    value: Any
    owners: tuple[tuple[str, str], ...]
    target: Any
    given: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})


def refs_of(value: Any) -> Iterator[str]:
    """Names of the calls among arguments, in order."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from refs_of(item)


def times(*sizes: Size) -> Size:
    """The product of polynomials; an empty product is 1."""
    return reduce(_product, sizes, ((1, ()),))


def _product(left: Size, right: Size) -> Size:
    terms: dict[tuple[str, ...], int] = {}
    for a, x in left:
        for b, y in right:
            key = tuple(sorted((*x, *y)))
            terms[key] = terms.get(key, 0) + a * b
    return tuple((value, key) for key, value in terms.items())


def constant_value(size: Size) -> int | None:
    """The value of a polynomial without names; None where it has some."""
    return size[0][0] if len(size) == 1 and not size[0][1] else None


def divide_size(size: Size, by: int) -> Size:
    """A polynomial divided by a whole number, which must divide every coefficient."""
    return tuple((coefficient // by, names) for coefficient, names in size)


def length(first: int, second: int, shapes: tuple[TraceShape, TraceShape]) -> Size:
    """The polynomial of one dim that is ``first`` and ``second`` in two traces.

    Tried in order: a constant c; c times batch, seq, batch seq, seq^2 or batch seq^2; a seq + b. Others follow the
    sequence in steps, or are a share of it: they are taken at the first trace's length, for a batch of one or for all.
    """
    if first == second:
        return ((first, ()),)
    one, two = shapes
    for names in (("batch",), ("seq",), ("batch", "seq"), ("seq", "seq"), ("batch", "seq", "seq")):
        values = [_value(names, shape) for shape in shapes]
        if first * values[1] == second * values[0] and first % values[0] == 0:
            return ((first // values[0], names),)
    slope = Fraction(first - second, one.seq - two.seq) if one.seq != two.seq else Fraction(1, 2)
    rest = first - slope * one.seq
    if slope.denominator == 1 and rest.denominator == 1:
        return ((int(slope), ("seq",)), (int(rest), ()))
    if first * two.seq == second * one.seq:  # a share of the sequence, such as one row for four tokens
        return ((first, ()),)
    if first % one.batch == 0 and second % two.batch == 0:
        return ((first // one.batch, ("batch",)),)
    return ((first, ()),)


def _value(names: tuple[str, ...], shape: TraceShape) -> int:
    return reduce(lambda total, name: total * int(getattr(shape, name)), names, 1)


def rows_and_columns(node: CallNode) -> tuple[Size, int]:
    """Rows and columns of a tensor: columns are its last dim where that is a number, else 1."""
    if not node.shape:
        return ((1, ()),), 1
    last = constant_value(node.shape[-1])
    return (divide_size(node.numel, last), last) if last else (node.numel, 1)


def turned(dims: tuple[Any, ...]) -> tuple[Any, ...]:
    """Dims with the last two swapped."""
    return (*dims[:-2], *reversed(dims[-2:]))

"""Plain, finite data: how YAML nodes become such data, which scalars are refused, and names for one-line messages."""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from simpar.errors import UserError

Location = tuple[str | int, ...]
MAX_DEPTH = 40
LEAST_PART = 3  # letters of a name that may be the beginning of another
MAX_DIGITS = 1_000  # of a number in a text
MAX_LISTED = 40  # names in a message
NEAREST = 5  # of more
SLIP = 0.6  # of two names, by difflib, for one to be a slip of the other
SHARED = 5  # letters in a row that names which are less alike have in common, where they begin differently
LEAST_LIKE = 0.5  # of two names, by difflib, for one to be shown for the other
MAX_NODES = 200_000
MAX_INTEGER = 2**63 - 1
_YAML = "tag:yaml.org,2002:"
_SURROGATE = re.compile("[\ud800-\udfff]")


def scalar_fault(value: Any, *, finite: bool = True) -> str | None:
    """What is wrong with a scalar, as an error message; None if nothing is. Infinity and NaN are if ``finite``."""
    if finite and isinstance(value, float) and not math.isfinite(value):
        return "must be finite"
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return "must fit in 64 bits"
    if isinstance(value, str) and _SURROGATE.search(value):
        return "must be text (half of a surrogate pair)"
    return None


class YamlConverter:
    """Converts YAML nodes to plain data and counts them, so that aliases cannot multiply without end.

    Of a key that appears ``twice`` in a mapping the last value counts, if ``last``, as in PyYAML; else it is refused.
    Without ``finite`` numbers may be ``.inf`` and ``.nan``.
    """

    def __init__(self, source: str, *, last: bool = False, finite: bool = True) -> None:
        self.source, self.count, self.last, self.finite = source, 0, last, finite
        self.lines: dict[Location, int] = {}
        self.twice: list[tuple[str, int]] = []

    def value(self, node: Any, location: Location) -> Any:
        """Plain data of a node. Raises UserError."""
        self.count += 1
        if self.count > MAX_NODES:
            self.fail(node, f"more than {MAX_NODES} values (aliases count where they are used)")
        if len(location) > MAX_DEPTH:
            self.fail(node, f"nested more than {MAX_DEPTH} levels deep")
        kind = _kind(node)
        if kind == "map":
            return self.mapping(node, location)
        if kind == "seq":
            for index, item in enumerate(node.value):
                self.lines[(*location, index)] = item.start_mark.line + 1
            return [self.value(item, (*location, index)) for index, item in enumerate(node.value)]
        return self.scalar(node, kind, location)

    def mapping(self, node: Any, location: Location) -> dict[str, Any]:
        """A dict whose keys are texts (numbers are taken as texts); no key twice, but for those of merge keys.

        What ``<<`` refers to lends its keys to the mapping, which wins over them; the first of several wins over the
        others (https://yaml.org/type/merge.html).
        """
        result: dict[str, Any] = {}
        own = [(key, item) for key, item in node.value if _kind(key) != "merge"]
        lent = self.lent([(key, item) for key, item in node.value if _kind(key) == "merge"], location)
        for key_node, item in own:
            kind = _kind(key_node)
            if kind not in ("str", "int"):
                self.fail(key_node, "a key must be a text or a whole number")
            key = str(self.scalar(key_node, kind, location))
            if key in result and not self.last:
                self.fail(key_node, f"key {key!r} appears twice")
            if key in result:
                self.twice.append((key, key_node.start_mark.line + 1))
            self.lines[(*location, key)] = key_node.start_mark.line + 1
            result[key] = self.value(item, (*location, key))
        return {**lent, **result}

    def lent(self, merges: Iterable[tuple[Any, Any]], location: Location) -> dict[str, Any]:
        """What the merge keys of a mapping lend to it."""
        result: dict[str, Any] = {}
        below = (*location, "<<")
        for key_node, item in merges:
            for each in item.value if _kind(item) == "seq" else [item]:
                if _kind(each) != "map":
                    self.fail(key_node, "<< must name a mapping, or a list of mappings")
                result = {**self.value(each, below), **result}
        self.lines |= {(*location, key): self.lines.get((*below, key), 0) for key in result}
        return result

    def scalar(self, node: Any, kind: str, location: Location) -> Any:
        """None, a truth value, a number or a text."""
        if kind not in _SCALARS:
            self.fail(node, f"tag {node.tag} is not allowed: plain data only")
        try:
            value = _SCALARS[kind](node.value)
        except (ValueError, KeyError):
            self.fail(node, f"{dotted(location)} = {node.value[:40]!r} is no YAML 1.2 {kind}")
        if fault := scalar_fault(value, finite=self.finite):
            self.fail(node, f"{dotted(location)} = {node.value[:40]}: {fault}")
        return value

    def fail(self, node: Any, what: str) -> NoReturn:
        """Raise UserError at the line of a node."""
        raise UserError(f"{self.source}:{node.start_mark.line + 1}: {printable(what)}")


def _kind(node: Any) -> str:
    """Short name of a standard tag, or the whole of another."""
    return str(node.tag or "").removeprefix(_YAML)


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    base = {"0x": 16, "0o": 8, "0b": 2}.get(digits.lstrip("+-")[:2], 10)
    return int(digits, base)


def _real(text: str) -> float:
    return float(text.lower().replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": _integer,
    "float": _real,
    "str": str,
    "timestamp": str,
    "value": str,
}


def dotted(location: Iterable[object]) -> str:
    """``plan.mesh.tp`` of a location."""
    return printable(".".join(str(part) for part in location))


def printable(text: str) -> str:
    """The text, escaped where it would break a one-line message."""
    return text if text.isprintable() else repr(text)[1:-1]


def short(value: Any) -> str:
    """The value as Python writes it, cut to 60 characters."""
    return text if len(text := repr(value)) < 60 else text[:57] + "..."


def check_digits(text: str, source: str) -> None:
    """Raises UserError for a number that Python does not turn into one, with the line of it."""
    if match := re.search(rf"\d{{{MAX_DIGITS + 1}}}", text):
        line = text.count("\n", 0, match.start()) + 1
        raise UserError(f"{source}:{line}: a number of more than {MAX_DIGITS} digits")


def plain_name(text: str) -> str:
    """A name's letters and digits, without what is before them: a maker, Azure's "Standard", a count such as ``8x``.

    Names of Lambda's first instances begin with its own: an A100 or V100 without a size is a small one there.
    """
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    if _OF_LAMBDA.fullmatch(text.strip().lower()):
        return f"lambda{plain.removeprefix('gpu')}"
    return _BEFORE.sub("", plain)


_OF_LAMBDA = re.compile(r"gpu_\d+x_(?:a100(?:_sxm4)?|v100)")
_BEFORE = re.compile(
    r"^(gpu)?(\d+x(?=\D|\d{4}))?(nvidia|amd|google|aws|azure|intel|huawei|apple(?=m\d))?(instinct|tesla|standard)?"
    r"(ml(?=\w+xlarge$))?"  # SageMaker
)


_COUNT_BEHIND = re.compile(r"(?P<name>.*?\w)(?:\s*[x*:]\s*|[-_ ])(?P<count>\d+)(?:\s*gpus?)?", re.IGNORECASE)


def split_count(text: str) -> tuple[str, int | None]:
    """A name without the count behind it, and that: ``h100-8``, ``h100:8``, ``H100 x 8``; None where it has none.

    >>> split_count("h100-8"), split_count("H100 x 16"), split_count("a100-80gb")
    (('h100', 8), ('H100', 16), ('a100-80gb', None))
    """
    match = _COUNT_BEHIND.fullmatch(text.strip())
    return (match["name"].strip(), int(match["count"])) if match else (text, None)


def is_slice(text: str) -> bool:
    """Whether a name is of a slice of a device (MIG): ``a100_3g.20gb``, ``H100 MIG``."""
    return re.search(r"(?<!\d)\d+g\.\d+gb\b|\bMIG\b", text, re.IGNORECASE) is not None


def suggest(name: str, options: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest option, or "". Case is ignored, and so are dashes, dots and the like.

    The nearest is the shortest that begins with the name or, failing that, has it inside, if possible without cutting a
    number (llama3 is no part of llama-33b); else the one with the fewest changes.
    """
    near = nearest(name, options, most=1, cutoff=SLIP)
    return f"; did you mean {near[0]!r}?" if near else ""


def nearest(name: str, options: Iterable[str], most: int, cutoff: float = 0.3) -> list[str]:
    """The ``most`` options that a name may mean, nearest first: those that hold it, then by the fewest changes.

    Those of many changes must begin alike or share SHARED letters in a row: others share letters by chance.
    """
    by_lower = {option.lower(): option for option in options}
    told = re.sub(r"[^a-z0-9]", "", name.lower())
    place = re.compile("[^a-z0-9]*".join(told))
    inside = {option: match for option in by_lower if len(told) >= LEAST_PART and (match := place.search(option))}
    cut = {option: option[match.end() : match.end() + 1].isdecimal() for option, match in inside.items()}
    holding = sorted(inside, key=lambda each: (inside[each].start() > 0, cut[each], len(each)))
    alike = [option for option in by_lower if not _is_other_product(name.lower(), option)]
    slips = difflib.get_close_matches(name.lower(), alike, n=most, cutoff=max(cutoff, SLIP))
    akin = [option for option in alike if _shares_a_part(name.lower(), option)]
    close = [*slips, *difflib.get_close_matches(name.lower(), akin, n=most, cutoff=cutoff)]
    return [by_lower[each] for each in dict.fromkeys([*holding, *close])][:most]


def _shares_a_part(name: str, option: str) -> bool:
    """Whether two names begin alike or have SHARED characters in a row in common."""
    return name[:1] == option[:1] or any(name[at : at + SHARED] in option for at in range(len(name) - SHARED + 1))


_PRODUCT = re.compile(r"(?<![a-z])([a-z]{1,2})(\d{3,})")


def _is_other_product(name: str, option: str) -> bool:
    """Whether two names are of products that share a number: other letters before it are no slip (gh200, h200)."""
    ours, theirs = ({(number, letters) for letters, number in _PRODUCT.findall(each)} for each in (name, option))
    return bool({number for number, _ in ours} & {number for number, _ in theirs}) and not ours & theirs


def may_be_product(name: str, option: str) -> bool:
    """Whether a name may mean a product that is called after numbers: it has the same first one, but for a slip.

    Of two digits a slip is another product (a10, a16), as are instances that begin otherwise (inf2, trn2).

    >>> may_be_product("h101", "dgx-h100"), may_be_product("2060", "h100"), may_be_product("a64", "a10g-8")
    (True, False, False)
    """
    first = re.search(r"\d{2,}", option)
    if name.endswith("xlarge") and re.sub(r"\W", "", name)[:2] != option[:2]:
        return False
    told = re.findall(r"\d{2,}", name) + re.findall(r"\d{2,}", plain_name(name))
    if not told and re.search(r"\d", name):  # h1oo
        return True
    return first is None or any(
        each == first[0] or (max(len(each), len(first[0])) > 2 and _is_slip(each, first[0])) for each in told
    )


def _is_slip(name: str, option: str) -> bool:
    """Whether one letter is added, left out or another."""
    short, long = sorted((name, option), key=len)
    if len(short) == len(long):
        return sum(a != b for a, b in zip(short, long, strict=True)) <= 1
    return any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def allowed(options: Iterable[str]) -> str:
    """``; allowed: a, b, c`` (at most MAX_LISTED names)."""
    names = sorted(options)
    more = ", ..." if len(names) > MAX_LISTED else ""
    return f"; allowed: {', '.join(names[:MAX_LISTED])}{more}" if names else ""


class OtherNames(NamedTuple):
    """What people say besides the names of options.

    ``known`` has the option that each other name means. ``kin`` are the options that come nearest to what a name stands
    for, and ``is_absent`` says what that is if none of them is it, "" if each may be meant. ``usual`` are shown where
    no option is near, and ``remedy`` is the command that prints all, for lists too long for a message. ``numbered``:
    options are products that are called after numbers, so that one of another number is none that may be meant.
    """

    known: Mapping[str, str] = {}
    kin: Sequence[str] = ()
    is_absent: str = ""
    usual: Sequence[str] = ()
    remedy: str = ""
    numbered: bool = False


NO_OTHERS = OtherNames()


def choose(name: str, options: Iterable[str], what: str, others: OtherNames = NO_OTHERS) -> str:
    """The name if it is an option. Raises UserError with what may be meant (an option or another name) otherwise.

    All options are listed or, of a list too long for a message, the NEAREST ones.
    """
    names = list(options)
    if name in names:
        return name
    if others.numbered:
        likely = {each: meant for each, meant in others.known.items() if may_be_product(name, each)}
        names, others = [each for each in names if may_be_product(name, each)], others._replace(known=likely)
    is_long = bool(others.remedy) and (others.numbered or len(names) > MAX_LISTED)
    listed = _nearest_of(name, names, others) if is_long else allowed(names)
    meant = suggest(name, names) or suggest(name, others.known)
    if others.is_absent:
        meant = f": not shipped ({others.is_absent})"
    elif others.kin:
        meant = f"; did you mean {' or '.join(map(repr, others.kin))}"
    raise UserError(f"unknown {what} {name!r}{meant.removesuffix('?')}{listed}")


def _of_one_product(named: Iterable[str], names: Iterable[str]) -> list[str]:
    """Names that have a part of letters and digits in common with a name, as machines with one device have."""
    products = {part for each in named for part in each.split("-") if re.fullmatch(r"[a-z]+\d+", part)}
    return sorted((name for name in names if products & {*name.split("-")}), key=len)


def _nearest_of(name: str, names: Iterable[str], others: OtherNames) -> str:
    said = nearest(name, [*names, *others.known], NEAREST, cutoff=LEAST_LIKE)
    meant = [others.known.get(each, each) for each in said]
    near = list(others.kin) or list(dict.fromkeys([*meant, *_of_one_product(meant[:1], names)]))[:NEAREST]
    told = f"; nearest: {', '.join(near)}" if near else f"; such as {', '.join(others.usual)}" if others.usual else ""
    return f"{told}; {others.remedy}"

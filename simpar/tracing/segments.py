"""Where a chain of drafts can be cut: at the members of module lists, and between them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing.raw_operators import INPUT_VALUE, OperatorDraft, makers

Owners = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DraftSegment:
    """Drafts of one block: ``group`` is the path of its module list ("" between lists).

    ``arrives`` is the output of the segment before, ``output`` the value that the next segment continues with.
    ``carried`` are values that later segments read besides; ``memory`` is the one that attention reads in them ("" for
    none).
    """

    group: str
    drafts: tuple[OperatorDraft, ...]
    output: str = ""
    arrives: str = ""
    carried: tuple[str, ...] = ()
    memory: str = ""


def segments(name: str, drafts: Sequence[OperatorDraft]) -> list[DraftSegment]:
    """The drafts cut into segments in order, each continuing with one value of the one before.

    Raises UserError where there are fewer than three, or one does not read the one before.
    """
    lists = _lists(drafts)
    keys = [_key(draft.owners, lists) for draft in drafts]
    if not any(keys):
        keys = [draft.owners[1][0] if len(draft.owners) > 1 else "" for draft in drafts]
    parts = _parts(drafts, keys)
    parts = _with_weight(parts)
    if len(parts) < 3:
        raise UserError(
            f"model = {name}: {len(parts)} blocks in a row; allowed: at least three (what comes before the layers, "
            "layers as members of a ModuleList or Sequential, and a head)"
        )
    return _chained(name, parts)


def _lists(drafts: Sequence[OperatorDraft]) -> dict[str, bool]:
    """Paths of module lists that are cut into their members.

    Lists whose members hold attention or several products count; without any, all lists do. A list inside a member
    is cut instead where all its members are of one class, unless the member has several such lists (of its attentions,
    of its MLPs).
    """
    result: dict[str, dict[str, list[OperatorDraft]]] = {}
    classes: dict[str, set[str]] = {}
    for draft in drafts:
        for path, kind in draft.owners:
            parent, _, last = path.rpartition(".")
            if last.isdecimal():
                result.setdefault(parent, {}).setdefault(path, []).append(draft)
                classes.setdefault(parent, set()).add(kind)
    layered = {
        parent: any(sum(d.is_heavy for d in member) > 1 for member in members.values())
        for parent, members in result.items()
    }
    if not any(layered.values()):
        return dict.fromkeys(result, False)
    uniform = {
        parent: len(classes[parent]) == 1 and len(result[parent]) > 1
        for parent, is_layered in layered.items()
        if is_layered
    }
    inside = Counter(parent.rpartition(".")[0] for parent, is_uniform in uniform.items() if is_uniform)
    return {parent: each and inside[parent.rpartition(".")[0]] == 1 for parent, each in uniform.items()}


def _key(owners: Owners, lists: Mapping[str, bool]) -> str:
    """Path of the list member that a draft belongs to: of the innermost uniform list, else of the outermost."""
    key = ""
    for path, _ in owners:
        parent, _, last = path.rpartition(".")
        if last.isdecimal() and parent in lists and (not key or lists[parent]):
            key = path
    return key


def _parts(drafts: Sequence[OperatorDraft], keys: Sequence[str]) -> list[tuple[str, list[OperatorDraft]]]:
    parts: list[tuple[str, list[OperatorDraft]]] = []
    for draft, key in zip(drafts, keys, strict=True):
        if not parts or parts[-1][0] != key:
            parts.append((key, []))
        parts[-1][1].append(draft)
    return parts


def _with_weight(parts: list[tuple[str, list[OperatorDraft]]]) -> list[tuple[str, list[OperatorDraft]]]:
    """The parts, those without a product, attention or table joined to the next one (the last to the one before)."""
    result: list[tuple[str, list[OperatorDraft]]] = []
    waiting: list[OperatorDraft] = []
    for key, drafts in parts:
        if not any(draft.is_heavy for draft in drafts):
            waiting += drafts
            continue
        result.append((key, [*waiting, *drafts]))
        waiting = []
    if waiting and result:
        result[-1][1].extend(waiting)
    return result


def _chained(name: str, parts: list[tuple[str, list[OperatorDraft]]]) -> list[DraftSegment]:
    """The parts as segments, with the values that cross each boundary. Raises UserError where a part is not read."""
    # A value lives in part p if it was made in part home <= p and is read in a later one, home <= p < last use. One of
    # the living values is the part's output, the newest that the next part reads; the others are carried past it.
    home = {value: at for at, (_, drafts) in enumerate(parts) for draft in drafts for value in draft.outputs}
    last_use: dict[str, int] = {}
    for at, (_, drafts) in enumerate(parts):
        for draft in drafts:
            last_use.update(dict.fromkeys((v for v in draft.inputs if v != INPUT_VALUE), at))
    segments: list[DraftSegment] = []
    for at, (key, drafts) in enumerate(parts):
        live = [value for value, used in last_use.items() if home[value] <= at < used]
        reads = [v for draft in parts[at + 1][1] for v in draft.inputs if v in live] if at + 1 < len(parts) else []
        newest = [value for value in reads if home[value] == at] or reads
        output = newest[0] if newest else drafts[-1].outputs[-1]
        if at + 1 < len(parts) and not newest and not _starts_anew(parts[at + 1][1]):
            raise UserError(f"model = {name}: {key or 'a block'} is not read by the next block")
        carried = tuple(value for value in live if value != output)
        group = key.rpartition(".")[0] if key else ""
        arrives = segments[-1].output if segments else ""
        segments.append(DraftSegment(group, tuple(drafts), output, arrives, carried))
    memory = {value for segment in segments for value in segment.carried if _is_memory(value, segments)}
    named = next(iter(sorted(memory, key=lambda value: home[value])), "")
    return [replace(each, memory=named) if named else each for each in segments]


def _starts_anew(drafts: list[OperatorDraft]) -> bool:
    """Whether a part begins with inputs of its own (the tokens of a decoder)."""
    return any(draft.inputs == (INPUT_VALUE,) for draft in drafts)


def _is_memory(value: str, segments: Sequence[DraftSegment]) -> bool:
    """Whether an attention in another segment makes its keys and values, but not its queries, from this value.

    One that makes all three of it is the self-attention of a layer whose parts stand in lists of their own.
    """
    for segment in segments:
        if value in {out for draft in segment.drafts for out in draft.outputs}:
            continue
        made = makers(list(segment.drafts))
        readers = {draft.name for draft in segment.drafts if value in draft.inputs and draft.kind == "matmul"}
        for draft in segment.drafts:
            reads = draft.core is not None and any(made[v].name in readers for v in draft.inputs if v in made)
            if reads and value not in _sources(draft.inputs[0], made):
                return True
    return False


def _sources(value: str, made: Mapping[str, OperatorDraft]) -> set[str]:
    """The values of other segments that a value is made of."""
    waiting, seen, result = [value], {value}, set()
    while waiting:
        each = waiting.pop()
        if each in made:
            waiting += [read for read in made[each].inputs if read not in seen]
            seen.update(made[each].inputs)
        else:
            result.add(each)
    return result

"""State-space layers and linear attention in a trace, found by the kernel that passes over the sequence.

The products that the pass, its decays and its output's gate are made of become one, as they read one tensor; the calls
between become a convolution, the pass, a norm and a gate, as in :mod:`simpar.architectures.linear_attention` and
:mod:`simpar.architectures.mamba`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.architectures import linear_attention, mamba
from simpar.architectures.graph import Size, evaluate, term
from simpar.dataclass import dataclass
from simpar.tracing import vocabulary as known
from simpar.tracing.lightning_loops import LIGHTNING
from simpar.tracing.raw_operators import OperatorDraft, RecurrenceDraft, makers, merge_drafts

if TYPE_CHECKING:
    from simpar.tracing.roles import Roles

_SOFT = ("rope", "copy", "add", "activation", "gated_activation", "norm", known.CONVOLUTION)
UNREAD = "a state-space layer or linear attention that is not between plain products"


@dataclass(frozen=True)
class TracedRecurrence:
    """One layer: its pass over the sequence, and its other drafts by their names ("" for parts that it lacks)."""

    core: RecurrenceDraft
    names: Mapping[str, str]


@dataclass(frozen=True)
class _AroundPass:
    """Drafts around a pass: what leads to it and to its gate, and the chain behind it up to the last product."""

    before: list[OperatorDraft]
    gate: list[OperatorDraft]
    behind: list[OperatorDraft]
    out: OperatorDraft


def recurrences(drafts: list[OperatorDraft]) -> tuple[list[OperatorDraft], list[TracedRecurrence]]:
    """The drafts with plain operators in place of the calls around every pass, and all layers that have one."""
    result = []
    for draft in drafts:
        if isinstance(draft, RecurrenceDraft):
            parts = _parts(drafts, draft)
            plain = _plain_lightning if draft.kind == LIGHTNING else _plain
            drafts, names = (drafts, {}) if parts is None else plain(drafts, draft, parts)
            result.append(TracedRecurrence(draft, names))
    return drafts, result


def _parts(drafts: list[OperatorDraft], core: OperatorDraft) -> _AroundPass | None:
    """What stands around a pass; None where its output does not lead to one product."""
    made, behind, beside = makers(drafts), [], []
    values = {*core.outputs}
    while True:
        readers = [each for each in drafts if values & {*each.inputs}]
        if len(readers) != 1:
            return None
        beside += [value for value in readers[0].inputs if value not in values]
        if readers[0].kind == "matmul":
            break
        if readers[0].kind not in _SOFT:
            return None
        behind.append(readers[0])
        values = {*readers[0].outputs}
    return _AroundPass(_reached(made, core.inputs), _reached(made, beside), behind, readers[0])


def _reached(made: Mapping[str, OperatorDraft], values: Sequence[str]) -> list[OperatorDraft]:
    """The drafts that values are made of, back to the first products."""
    result: dict[str, OperatorDraft] = {}
    waiting = [*values]
    while waiting:
        draft = made.get(waiting.pop(0))
        if draft is None or draft.name in result or draft.kind not in (*_SOFT, "matmul"):
            continue
        result[draft.name] = draft
        if draft.kind != "matmul":
            waiting += draft.inputs
    return list(result.values())


def _plain(
    drafts: list[OperatorDraft], core: RecurrenceDraft, parts: _AroundPass
) -> tuple[list[OperatorDraft], dict[str, str]]:
    """The drafts with the layer's own in their usual order, and the names of these by role."""
    made = makers(drafts)
    convolutions = [each for each in parts.before if each.kind == known.CONVOLUTION]
    inner = _reached(made, [value for each in convolutions for value in each.inputs])
    source = next((each.inputs for each in inner if each.kind == "matmul"), ())
    reached = (*parts.before, *parts.gate)
    products = [each for each in drafts if each.kind == "matmul" and each in reached]
    packed = [each for each in products if each.inputs == source]
    wide = [each for each in products if each.inputs != source]
    narrow = [made[each.inputs[0]] for each in wide if each.inputs[0] in made]
    plain = len(narrow) == len(wide) and all(each.kind == "matmul" and each.inputs == source for each in narrow)
    if not convolutions or not packed or not plain:
        return drafts, {}
    in_proj, conv = (merge_drafts(each, [[one.name for one in each]])[0] for each in (packed, convolutions))
    entering, decays = in_proj.outputs[:1], tuple(each.outputs[0] for each in wide if each in parts.before)
    gates = tuple(each.outputs[0] for each in wide if each in parts.gate) or entering
    soft = [each for each in reached if each.kind != "matmul" and each not in convolutions]
    held = tuple(dict.fromkeys(piece for each in soft for piece in each.pieces))
    norm_pieces = tuple(dict.fromkeys(piece for each in parts.behind for piece in each.pieces))
    conv = replace(conv, inputs=entering, saves=entering)
    is_scan = core.kind == "scan"
    read = (*conv.outputs[:1], *decays)
    passing = replace(core, inputs=read, saves=entering if is_scan else read, pieces=(*core.pieces, *held))

    def new(part: str, kind: str, *inputs: str, saves: tuple[str, ...]) -> OperatorDraft:
        own = f"{core.name}.{part}"
        return OperatorDraft(own, kind, core.rows, core.columns, inputs, (own,), core.owners, saves=saves)

    value, normed = core.outputs[0], any(each.kind == "norm" for each in parts.behind)
    if is_scan:
        gate = new("gate", "gate", *entering, value, saves=(*entering, value))
        norm = replace(new("norm", "norm", gate.name, saves=(gate.name, "stats")), pieces=norm_pieces)
        last = [gate, norm] if normed else [gate]
    else:
        norm = replace(new("norm", "norm", value, saves=(value, "stats")), pieces=norm_pieces)
        last = [norm, new("gate", "gated_activation", norm.name, *gates, saves=(value, *gates))]
    out = replace(parts.out, inputs=last[-1].outputs, saves=last[-1].outputs)
    layer = [in_proj, conv, *narrow, *wide, passing, *last]
    gone = {each.name for each in (*products, *narrow, *convolutions, *soft, *parts.behind, core)}
    at = drafts.index(core)
    kept = [each for each in drafts[:at] if each.name not in gone]
    rest = [out if each is parts.out else each for each in drafts[at:] if each.name not in gone]
    names = {"in_proj": in_proj.name, "conv": conv.name, "out_proj": out.name}
    names |= {part.name.removeprefix(f"{core.name}."): part.name for part in last}
    for role, leading in (("decay", parts.before), ("gate", parts.gate)):
        for down, up in zip(narrow, wide, strict=True):
            if up in leading:
                names |= {f"{role}_down": down.name, f"{role}_up": up.name}
    return [*kept, *layer, *rest], names


def _plain_lightning(
    drafts: list[OperatorDraft], core: RecurrenceDraft, parts: _AroundPass
) -> tuple[list[OperatorDraft], dict[str, str]]:
    """The drafts, of which the gate keeps the pass's output and its product, and the names of the layer's by role."""
    kinds = [[each.kind for each in part] for part in (parts.before, parts.gate, parts.behind)]
    if kinds != [["activation", "matmul"], ["matmul"], ["norm", "gated_activation"]]:
        return drafts, {}
    (act, in_proj), (gate_proj,), (norm, gate) = parts.before, parts.gate, parts.behind
    kept = replace(gate, saves=(*core.outputs[:1], *gate_proj.outputs[:1]))
    roles = {
        "in_proj": in_proj, "act": act, "gate_proj": gate_proj, "norm": norm, "gate": gate, "out_proj": parts.out,
    }  # fmt: skip
    return [kept if each is gate else each for each in drafts], {role: each.name for role, each in roles.items()}


def recurrence_roles(roles: Roles, layer: TracedRecurrence) -> None:
    """Name the operators of one layer and their sizes."""
    core, by_name = layer.core, {draft.name: draft for draft in roles.drafts}
    roles.dims |= dict(core.dims)
    if "conv" in layer.names:
        conv = by_name[layer.names["conv"]]
        roles.dims["conv"] = conv.pieces[0].numel // conv.columns
    inner, sizes = _sizes(core.kind)
    roles.columns[core.name] = inner
    roles.name(by_name[core.name], "scan" if core.kind == "scan" else "linear_attention")
    roles.inner.add(core.name)
    if not layer.names:
        roles.refusal = roles.refusal or UNREAD
    for part, name in layer.names.items():
        draft = by_name[name]
        roles.name(draft, _NAMES[core.kind == "scan"].get(part, part))
        if part == "out_proj":
            roles.contractions[name] = inner
            continue
        roles.inner.add(name)
        roles.columns[name] = sizes.get(part, inner)
        if part.endswith("_up"):
            roles.contractions[name] = sizes["gate_down"]
        if part.endswith("_down"):
            roles.regions[name] = "sequence"
        if evaluate(roles.columns[name], roles.dims) != draft.columns:
            roles.refusal = roles.refusal or UNREAD
            del roles.columns[name]


def short_convolution_roles(roles: Roles, conv: OperatorDraft) -> None:
    """Name the operators around a convolution without a pass: a product, a gate before and behind it, a product.

    All channels are independent, so tensor parallelism divides them [Liquid AI 2025, arXiv 2511.23404].
    """
    made, channels = makers(roles.drafts), conv.columns
    before = made.get(conv.inputs[0])
    product = made.get(before.inputs[0]) if before is not None else None
    after = [each for each in roles.drafts if conv.outputs[0] in each.inputs]
    out = [each for each in roles.drafts if after and after[0].outputs[-1] in each.inputs]
    if before is None or product is None or len(after) != 1 or len(out) != 1:
        return
    gates = before.kind.endswith("activation") and after[0].kind.endswith("activation")
    if not gates or product.columns != 3 * channels or out[0].contraction != channels:
        return
    roles.dims |= {"linear_heads": channels, "conv": conv.pieces[0].numel // channels}
    for each, name in ((product, "in_proj"), (before, "conv_gate"), (conv, "conv"), (after[0], "gate")):
        roles.name(each, name)
        roles.inner.add(each.name)
        roles.columns[each.name] = term("linear_heads", times=3 if each is product else 1)
        roles.rows[each.name] = conv.rows  # the calls see channels as rows
    roles.name(out[0], "out_proj")
    roles.contractions[out[0].name] = term("linear_heads")


_NAMES = ({"norm": "output_norm", "gate": "output_gate", "act": "qkv_activation"}, {"norm": "mixer_norm"})
"""Names of the parts behind a pass: of linear attention, of a state-space layer."""


def _sizes(kind: str) -> tuple[Size, dict[str, Size]]:
    """Columns of a layer's values, and of its other parts where they differ from these."""
    if kind == "scan":
        return mamba.INNER, {"in_proj": mamba.PROJECTED, "conv": mamba.MIXED}
    values, mixed, heads = linear_attention.VALUES, linear_attention.MIXED, linear_attention.HEADS
    if kind == LIGHTNING:
        return values, {"in_proj": mixed, "act": mixed}
    if kind == "gated_delta":
        twice = term("linear_heads", "linear_value_dim", times=2), term("linear_heads", times=2)
        return values, {"in_proj": (*linear_attention.QUERIES_KEYS, *twice[0], *twice[1]), "conv": mixed}
    narrow = term("linear_value_dim")
    return values, {
        "in_proj": (*mixed, *heads), "conv": mixed, "decay_down": narrow, "gate_down": narrow,
        "decay_up": term("linear_heads", "linear_key_dim"),
    }  # fmt: skip

"""Residual streams that mix in a trace: several copies of the hidden state, which maps of every token mix.

Alternating updates [Baykal et al. 2023, arXiv 2301.13310]: a layer predicts all streams by a matrix of every token's
own, changes one of them, and corrects the others by what it changed. The products of such matrices and the sums around
them become one pass over memory each, as in :mod:`simpar.architectures.streams`; what makes the matrices stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.tracing.nodes import divide_size
from simpar.tracing.raw_operators import OperatorDraft, makers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from simpar.tracing.roles import Roles

MIX = "mix"


def mixed_streams(drafts: list[OperatorDraft]) -> tuple[list[OperatorDraft], dict[str, str]]:
    """The drafts with one operator for every mixture of streams, and roles by the names of what belongs to them."""
    roles: dict[str, str] = {}
    drafts = [_joined(each, makers(drafts)) for each in drafts]
    for mixing in [each for each in drafts if each.kind == "mixing"]:
        predicted = _predicted(drafts, mixing)
        if predicted is not None:
            drafts, predict = predicted
            roles |= _routed(drafts, predict, "predict")
            drafts = _without_bends(drafts, roles)
            drafts, more = _corrected(drafts, predict, mixing.columns)
            roles |= more
            drafts = _without_bends(drafts, roles)
    return drafts, roles


def _joined(draft: OperatorDraft, made: Mapping[str, OperatorDraft]) -> OperatorDraft:
    """A pass that scales several streams to one length and joins them: no norm, as it has no weight."""
    if draft.kind != "norm" or len(draft.inputs) < 3 or draft.pieces:
        return draft
    rows = draft.rows[0][0]
    saves = tuple(value for value in draft.inputs if value in made)
    return replace(draft, kind=MIX, contraction=len(draft.inputs) * draft.columns // rows, saves=saves)


def _predicted(drafts: list[OperatorDraft], mixing: OperatorDraft) -> tuple[list[OperatorDraft], OperatorDraft] | None:
    """The drafts with one operator for a product of streams with every token's own matrix and the sum with them."""
    made, streams = makers(drafts), mixing.columns
    if len(mixing.inputs) != 2 or mixing.contraction != streams or mixing.inputs[1] not in made:
        return None
    source, maps = mixing.inputs[0], made[mixing.inputs[1]]
    sums = [each for each in drafts if each.kind == "add" and {*each.inputs} == {mixing.outputs[0], source}]
    if maps.kind != "matmul" or maps.columns != streams**2 or len(sums) != 1:
        return None
    last = sums[0]
    predict = replace(
        last, kind=MIX, contraction=last.columns + streams, inputs=mixing.inputs, saves=mixing.inputs,
        outputs=(*mixing.outputs, *last.outputs),
    )  # fmt: skip
    return [predict if each is last else each for each in drafts if each is not mixing], predict


def _routed(drafts: list[OperatorDraft], mix: OperatorDraft, name: str) -> dict[str, str]:
    """Roles of what makes the matrices of a mixture: a norm, a product with as many columns as streams, another one."""
    made = makers(drafts)
    maps = made[mix.inputs[-1]]
    bend = made.get(maps.inputs[0])
    router = made.get(bend.inputs[0]) if bend is not None and bend.kind == "activation" else None
    norm = made.get(router.inputs[0]) if router is not None else None
    if bend is None or router is None or norm is None or router.kind != "matmul" or norm.kind != "norm":
        return {mix.name: name, maps.name: f"{name}_maps"}
    return {
        mix.name: name, maps.name: f"{name}_maps", bend.name: "", router.name: f"{name}_router",
        norm.name: f"{name}_norm",
    }  # fmt: skip


def _without_bends(drafts: list[OperatorDraft], roles: dict[str, str]) -> list[OperatorDraft]:
    """The drafts with the few numbers that a router's activation reads and writes as part of the router's product."""
    made = makers(drafts)
    bends = {each.inputs[0]: each for each in drafts if roles.get(each.name) == ""}
    result = []
    for draft in drafts:
        if roles.get(draft.name) == "":
            continue
        for value in draft.outputs:
            if value in bends:
                draft = replace(draft, outputs=(*made[value].outputs, *bends[value].outputs))
        result.append(draft)
    for bend in bends.values():
        del roles[bend.name]
    return result


def _corrected(
    drafts: list[OperatorDraft], predict: OperatorDraft, streams: int
) -> tuple[list[OperatorDraft], dict[str, str]]:
    """The drafts with one operator for the correction of all streams, and for what a layer adds to them behind it."""
    made, value, wide = makers(drafts), predict.outputs[-1], predict.columns
    for last in drafts:
        others = [each for each in last.inputs if each != value]
        scaled = made.get(others[0]) if last.kind == "add" and len(others) == 1 and value in last.inputs else None
        if scaled is None or scaled.kind != "activation" or scaled.rows != predict.rows or len(scaled.inputs) != 2:
            continue
        coefficients, innovation = (made.get(each) for each in scaled.inputs)
        if coefficients is None or innovation is None or coefficients.columns != streams:
            continue
        reads = (value, *(each for each in innovation.inputs if each != value), scaled.inputs[0])
        correct = replace(
            last, kind=MIX, contraction=wide + wide // streams + 1, inputs=reads, saves=reads,
            outputs=(*innovation.outputs, *scaled.outputs, *last.outputs),
        )  # fmt: skip
        gone = (scaled, innovation)
        drafts = [correct if each is last else each for each in drafts if each not in gone]
        drafts = _merged(_scaled(drafts, correct, streams), correct, streams)
        return drafts, _routed(drafts, correct, "correct")
    return drafts, {}


def _scaled(drafts: list[OperatorDraft], correct: OperatorDraft, streams: int) -> list[OperatorDraft]:
    """The drafts, the scale of one corrected stream as a copy of that stream and a pass over it."""
    result = []
    for draft in drafts:
        if draft.kind == "activation" and draft.inputs == correct.outputs[-1:] and draft.pieces:
            own = f"{draft.name}.active"
            rows = divide_size(correct.rows, streams)
            result.append(OperatorDraft(own, "copy", rows, draft.columns, draft.inputs, (own,), draft.owners))
            draft = replace(draft, kind=MIX, contraction=draft.columns, inputs=(own,), saves=(own,))
        result.append(draft)
    return result


def _merged(drafts: list[OperatorDraft], correct: OperatorDraft, streams: int) -> list[OperatorDraft]:
    """The drafts with one operator for a sum with some of the streams and for putting all of them together again."""
    value = correct.outputs[-1]
    part = next((each for each in drafts if each.kind == "add" and value in each.inputs), None)
    whole = next((each for each in drafts if part and each.inputs == (value, part.outputs[-1])), None)
    if part is None or whole is None or whole.kind != "copy":
        return drafts
    wide = correct.columns
    merge = replace(
        whole, kind=MIX, contraction=wide + wide // streams, inputs=part.inputs, saves=(),
        outputs=(*part.outputs, *whole.outputs),
    )  # fmt: skip
    return [merge if each is whole else each for each in drafts if each is not part]


def stream_roles(roles: Roles, named: dict[str, str]) -> None:
    """Name what makes the matrices of mixtures: all of it works on a rank's rows of the sequence."""
    for draft in roles.drafts:
        if draft.name in named:
            roles.name(draft, named[draft.name])
            roles.regions[draft.name] = "sequence"

"""Which operators of a block belong to a mixture of experts, and the names of their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from simpar.architectures.graph import Size, Weight, term
from simpar.tracing.nodes import times
from simpar.tracing.raw_operators import OperatorDraft, makers

if TYPE_CHECKING:
    from simpar.tracing.roles import Roles

ROUTED: Size = term("batch", "seq", "topk", "load")
ROUTED_KINDS = ("dispatch", "grouped_matmul")
ROUTED_NAMES = ("expert_activation", "expert_clamp")


def mixture_roles(roles: Roles, made: Mapping[str, OperatorDraft]) -> None:
    """Name the operators of mixtures and their sizes; several mixtures of a block share the dims."""
    by_kind = {draft.kind: draft for draft in reversed(roles.drafts)}
    if "router" not in by_kind:
        return
    router, dispatch = by_kind["router"], by_kind["dispatch"]
    up, down = [draft for draft in roles.drafts if draft.kind == "grouped_matmul"][:2]
    count = _count(down) or router.columns
    roles.dims |= {
        "experts": count, "num_experts": count, "expert_ffn": down.contraction,
        "topk": dispatch.rows[0][0] // router.rows[0][0],
    }  # fmt: skip
    wide = term("expert_ffn", times=up.columns // down.contraction)
    _latent_roles(roles, made, router)
    for draft in roles.drafts:
        before = _made_by(made, draft)
        if draft.kind == "router":
            others = draft.columns - count  # choices that are no experts
            roles.columns[draft.name] = (*term("num_experts"), *(term(times=others) if others else ()))
            roles.name(draft, "router")
        elif draft.kind in ("dispatch", "combine"):
            roles.name(draft, draft.kind)
        elif draft.kind == "grouped_matmul" and before == "dispatch":
            roles.columns[draft.name] = wide
            roles.name(draft, "expert_up")
        elif draft.kind == "grouped_matmul":
            roles.contractions[draft.name] = term("expert_ffn")
            roles.name(draft, "expert_down")
        elif draft.kind == "clamp" and before == "grouped_matmul":
            roles.columns[draft.name] = wide
            roles.name(draft, "expert_clamp")
        elif draft.kind in ("activation", "gated_activation") and (
            before == "grouped_matmul"
            or (before == "clamp" and _made_by(made, made[draft.inputs[0]]) == "grouped_matmul")
        ):
            roles.columns[draft.name] = term("expert_ffn")
            roles.name(draft, "expert_activation")
        if draft.kind in ROUTED_KINDS or roles.names.get(draft.name, "").startswith(ROUTED_NAMES):
            roles.rows[draft.name], roles.regions[draft.name] = ROUTED, "expert"


def _latent_roles(roles: Roles, made: Mapping[str, OperatorDraft], router: OperatorDraft) -> None:
    """Name the products around experts that read tokens narrower than the router's; ranks make those of their rows."""
    latent = term("expert_hidden")
    for draft in roles.drafts:
        before = made.get(draft.inputs[0]) if draft.inputs else None
        if before is None or draft.columns == router.contraction == before.columns:
            continue
        if draft.kind == "dispatch" and before.kind == "matmul" and before.contraction == router.contraction:
            roles.dims["expert_hidden"] = draft.columns
            roles.columns[draft.name] = roles.columns[before.name] = latent
            roles.name(before, "latent_down")
            roles.regions[before.name] = "sequence"
        elif "expert_hidden" in roles.dims and draft.kind == "grouped_matmul":
            sized = roles.contractions if before.kind == "dispatch" else roles.columns
            sized[draft.name] = latent
        elif "expert_hidden" in roles.dims and draft.kind == "combine":
            roles.columns[draft.name] = latent
        elif "expert_hidden" in roles.dims and draft.kind == "matmul" and before.kind == "combine":
            roles.contractions[draft.name] = latent
            roles.name(draft, "latent_up")
            roles.regions[draft.name] = "sequence"


def _count(down: OperatorDraft) -> int:
    """Matrices in the stack of a grouped product (0 without one)."""
    held = sum(piece.numel for piece in down.pieces if piece.kind == "expert")
    return held // (down.contraction * down.columns)


def shared_last(roles: Roles) -> list[OperatorDraft]:
    """The drafts with a shared expert behind the routed ones, whichever are called first: neither reads the other."""
    names = [roles.names.get(draft.name, "") for draft in roles.drafts]
    at = [where for where, name in enumerate(names) if name.startswith("shared_")]
    if not at or "combine" not in names or at[-1] > names.index("combine"):
        return roles.drafts
    end = names.index("combine") + 1
    shared = [roles.drafts[where] for where in at]
    before, behind = roles.drafts[:end], roles.drafts[end:]
    return [*(draft for draft in before if draft not in shared), *shared, *behind]


def _made_by(made: Mapping[str, OperatorDraft], draft: OperatorDraft) -> str:
    """Kind of the operator that makes a draft's first input ("" where none does)."""
    return made[draft.inputs[0]].kind if draft.inputs and draft.inputs[0] in made else ""


def _behind_experts(made: Mapping[str, OperatorDraft], draft: OperatorDraft) -> bool:
    """Whether a draft reads a grouped product, with limits between or not."""
    before = made.get(draft.inputs[0]) if draft.inputs else None
    if before is not None and before.kind == "clamp":
        before = made.get(before.inputs[0])
    return before is not None and before.kind == "grouped_matmul"


def expert_weights(name: str, draft: OperatorDraft, contraction: Size, columns: Size) -> tuple[Weight, ...]:
    """The stacked matrices of a grouped product, one per expert, and its biases where it has them."""
    sizes = {"weight": times(term("experts"), contraction, columns), "bias": times(term("experts"), columns)}
    held = [leaf for leaf, kind in (("weight", "expert"), ("bias", "vector")) if kind in {p.kind for p in draft.pieces}]
    return tuple(Weight(f"{name}.{leaf}", sizes[leaf], "expert") for leaf in held)


def without_shared_gate(drafts: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts with the gate of a shared expert folded into its up product as one more weight.

    The gate is a product of one column whose sigmoid multiplies the expert's output [Qwen2, arXiv 2407.10671].
    """
    made = makers(drafts)
    if all(draft.kind != "router" for draft in drafts):
        return drafts
    for gate in drafts:
        scaled = [draft for draft in drafts if gate.outputs[0] in draft.inputs]
        others = [value for value in scaled[0].inputs if value not in gate.outputs] if len(scaled) == 1 else []
        if gate.kind != "matmul" or gate.columns != 1 or len(others) != 1 or others[0] not in made:
            continue
        product = made[others[0]]
        up = _up(made, product)
        if up is None:
            continue
        pieces = tuple(replace(piece, kind="vector") for piece in gate.pieces)
        swap = {up.name: replace(up, pieces=(*up.pieces, *pieces))}
        last = replace(product, outputs=(*product.outputs, *scaled[0].outputs))
        swap[product.name] = last
        kept = (draft for draft in drafts if draft.name not in (gate.name, scaled[0].name))
        return [swap.get(draft.name, draft) for draft in kept]
    return drafts


def _up(made: Mapping[str, OperatorDraft], down: OperatorDraft) -> OperatorDraft | None:
    """The product in front of the activation that a product reads."""
    draft = made.get(down.inputs[0])
    if draft is None or "activation" not in draft.kind or draft.inputs[0] not in made:
        return None
    up = made[draft.inputs[0]]
    return up if up.kind == "matmul" else None

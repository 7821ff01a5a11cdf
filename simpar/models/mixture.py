"""Mixture of experts: the operators that take the place of the dense MLP.

A router scores every token, dispatch sends each of its ``topk`` copies to the rank that holds the expert, two grouped
products with a gate between them run all local experts at once, combine brings the copies back and adds them up. A
shared expert is an MLP that every token goes through [Shazeer et al. 2017, arXiv 1701.06538; Dai et al. 2024, arXiv
2401.06066].
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.models.graph import Operator, Size, Weight, term

TOKENS: Size = term("batch", "seq")
HIDDEN: Size = term("hidden")
ROUTED: Size = term("batch", "seq", "topk", "load")
EXPERT_FFN: Size = term("expert_ffn")


@dataclass(frozen=True)
class Mixture:
    """Sizes of a mixture: ``experts`` of FFN width ``expert_ffn``, ``topk`` a token, ``shared_ffn`` of the shared one.

    ``bias`` on experts, ``router_bias`` and ``shared_gate`` (a sigmoid in front of the shared expert) as the family has
    them.
    """

    experts: int
    topk: int
    expert_ffn: int
    shared_ffn: int = 0
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False

    @property
    def dims(self) -> dict[str, int]:
        """Named dims; "num_experts" stays whole where "experts" becomes a rank's own."""
        return {
            "experts": self.experts, "num_experts": self.experts, "topk": self.topk, "expert_ffn": self.expert_ffn,
            "shared_ffn": self.shared_ffn,
        }  # fmt: skip


def mixture(source: str, sizes: Mixture) -> list[Operator]:
    """Operators of one mixture that reads ``source``; what leaves it are the outputs named by :func:`outputs`."""
    return [_router(source, sizes), *_experts(source, sizes), *_shared(source, sizes)]


def outputs(sizes: Mixture) -> tuple[str, ...]:
    """Names of the operators whose outputs add up to the mixture's."""
    return ("combine", "shared_down") if sizes.shared_ffn else ("combine",)


def _router(source: str, sizes: Mixture) -> Operator:
    weights = [Weight("router.weight", term("hidden", "num_experts"))]
    if sizes.router_bias:
        weights.append(Weight("router.bias", term("num_experts"), "vector"))
    return Operator(
        "router", "router", TOKENS, term("num_experts"), "sequence", contraction=HIDDEN, weights=tuple(weights),
        inputs=(source,), saves=(source, "router"),
    )  # fmt: skip


def _experts(source: str, sizes: Mixture) -> list[Operator]:
    up = [Weight("expert_up.weight", term("experts", "hidden", "expert_ffn", times=2), "expert")]
    down = [Weight("expert_down.weight", term("experts", "hidden", "expert_ffn"), "expert")]
    if sizes.bias:
        up.append(Weight("expert_up.bias", term("experts", "expert_ffn", times=2), "expert"))
        down.append(Weight("expert_down.bias", term("experts", "hidden"), "expert"))
    return [
        Operator("dispatch", "dispatch", ROUTED, HIDDEN, "expert", inputs=(source, "router")),
        Operator(
            "expert_up", "grouped_matmul", ROUTED, term("expert_ffn", times=2), "expert", contraction=HIDDEN,
            weights=tuple(up), inputs=("dispatch",), saves=("dispatch",),
        ),
        Operator(
            "expert_activation", "gated_activation", ROUTED, EXPERT_FFN, "expert", inputs=("expert_up",),
            saves=("expert_up",),
        ),
        Operator(
            "expert_down", "grouped_matmul", ROUTED, HIDDEN, "expert", contraction=EXPERT_FFN, weights=tuple(down),
            inputs=("expert_activation",), saves=("expert_activation",),
        ),
        Operator("combine", "combine", TOKENS, HIDDEN, "sequence", inputs=("expert_down",)),
    ]  # fmt: skip


def _shared(source: str, sizes: Mixture) -> list[Operator]:
    if not sizes.shared_ffn:
        return []
    width, narrow = term("shared_ffn", times=2), term("shared_ffn")
    up = [Weight("shared_up.weight", term("hidden", "shared_ffn", times=2))]
    if sizes.shared_gate:
        up.append(Weight("shared_gate.weight", HIDDEN, "vector"))
    return [
        Operator(
            "shared_up", "matmul", TOKENS, width, "tensor", contraction=HIDDEN, weights=tuple(up), inputs=(source,),
            saves=(source,),
        ),
        Operator(
            "shared_activation", "gated_activation", TOKENS, narrow, "tensor", inputs=("shared_up",),
            saves=("shared_up",),
        ),
        Operator(
            "shared_down", "matmul", TOKENS, HIDDEN, "tensor", contraction=narrow,
            weights=(Weight("shared_down.weight", term("shared_ffn", "hidden")),), inputs=("shared_activation",),
            saves=("shared_activation",),
        ),
    ]  # fmt: skip

"""Mixture of experts: the operators that take the place of the dense MLP.

A router scores every token, dispatch sends each of its ``topk`` copies to the rank that holds the expert, two grouped
products with an activation between them run all local experts at once, combine brings the copies back and adds them up.
A shared expert is an MLP for every token [Shazeer et al. 2017, arXiv 1701.06538; Dai et al. 2024, arXiv 2401.06066].
For latent experts, one product makes tokens narrower before they travel, and another one widens the experts' sum; both
products are whole on every tensor-parallel rank [Elango et al. 2026, arXiv 2601.18089].
"""

from simpar.architectures.graph import Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.dataclass import dataclass

ROUTED: Size = term("batch", "seq", "topk", "load")
EXPERT_FFN: Size = term("expert_ffn")


@dataclass(frozen=True)
class Mixture:
    """Sizes of a mixture: ``experts`` of width ``expert_ffn``, ``topk`` per token, a shared expert of ``shared_ffn``.

    Families differ in ``bias`` (of experts), ``router_bias`` and ``shared_gate`` (a sigmoid on the shared expert).
    Experts are ``gated`` or plain MLPs; ``latent`` is the width of the tokens that they read (0: the model's).
    ``clamped``: inputs of activations are limited. A token first chooses ``chosen_groups`` of ``groups`` of
    experts, and then its experts among these (1 group: among all) [DeepSeek-AI 2024, arXiv 2405.04434, section 2.2.2].
    """

    experts: int
    topk: int
    expert_ffn: int
    shared_ffn: int = 0
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    gated: bool = True
    latent: int = 0
    clamped: bool = False
    groups: int = 1
    chosen_groups: int = 1

    @property
    def dims(self) -> dict[str, int]:
        """Named dims; "num_experts" stays whole where "experts" becomes a rank's own."""
        sizes = {
            "experts": self.experts, "num_experts": self.experts, "topk": self.topk, "expert_ffn": self.expert_ffn,
            "shared_ffn": self.shared_ffn,
        }  # fmt: skip
        if self.groups > 1:
            sizes |= {"expert_groups": self.groups, "chosen_groups": self.chosen_groups}
        return {**sizes, "expert_hidden": self.latent} if self.latent else sizes

    @property
    def columns(self) -> int:
        """Columns of the first product per column of the activation."""
        return 2 if self.gated else 1

    @property
    def activation(self) -> str:
        """Kind of the operator between the two products."""
        return "gated_activation" if self.gated else "activation"

    @property
    def width(self) -> Size:
        """Width of the tokens that experts read and write."""
        return term("expert_hidden") if self.latent else HIDDEN


def mixture(source: str, sizes: Mixture) -> list[Operator]:
    """Operators of one mixture that reads ``source``; its result is the sum of the :func:`outputs`."""
    if not sizes.latent:
        return [_router(source, sizes), *_experts(source, sizes), *_shared(source, sizes)]
    return [
        _router(source, sizes),
        project("latent_down", source, HIDDEN, sizes.width, region="sequence"),
        *_experts("latent_down", sizes),
        project("latent_up", "combine", sizes.width, HIDDEN, region="sequence"),
        *_shared(source, sizes),
    ]


def outputs(sizes: Mixture) -> tuple[str, ...]:
    """Names of the operators whose outputs add up to the mixture's."""
    routed = "latent_up" if sizes.latent else "combine"
    return (routed, "shared_down") if sizes.shared_ffn else (routed,)


def clamp(name: str, source: str, columns: Size) -> list[Operator]:
    """The limit on the inputs of an activation outside experts."""
    return [Operator(name, "clamp", TOKENS, columns, "tensor", inputs=(source,), saves=(source,))]


def _router(source: str, sizes: Mixture) -> Operator:
    weights = [Weight("router.weight", term("hidden", "num_experts"))]
    if sizes.router_bias:
        weights.append(Weight("router.bias", term("num_experts"), "vector"))
    return Operator(
        "router", "router", TOKENS, term("num_experts"), "sequence", contraction=HIDDEN, weights=tuple(weights),
        inputs=(source,), saves=(source, "router"),
    )  # fmt: skip


def _experts(source: str, sizes: Mixture) -> list[Operator]:
    hidden = "expert_hidden" if sizes.latent else "hidden"
    up = [Weight("expert_up.weight", term("experts", hidden, "expert_ffn", times=sizes.columns), "expert")]
    down = [Weight("expert_down.weight", term("experts", hidden, "expert_ffn"), "expert")]
    if sizes.bias:
        up.append(Weight("expert_up.bias", term("experts", "expert_ffn", times=sizes.columns), "expert"))
        down.append(Weight("expert_down.bias", term("experts", hidden), "expert"))
    wide = term("expert_ffn", times=sizes.columns)
    limit = Operator("expert_clamp", "clamp", ROUTED, wide, "expert", inputs=("expert_up",), saves=("expert_up",))
    activated = "expert_clamp" if sizes.clamped else "expert_up"
    return [
        Operator("dispatch", "dispatch", ROUTED, sizes.width, "expert", inputs=(source, "router")),
        Operator(
            "expert_up", "grouped_matmul", ROUTED, wide, "expert",
            contraction=sizes.width, weights=tuple(up), inputs=("dispatch",), saves=("dispatch",),
        ),
        *([limit] if sizes.clamped else []),
        Operator(
            "expert_activation", sizes.activation, ROUTED, EXPERT_FFN, "expert", inputs=(activated,),
            saves=(activated,),
        ),
        Operator(
            "expert_down", "grouped_matmul", ROUTED, sizes.width, "expert", contraction=EXPERT_FFN, weights=tuple(down),
            inputs=("expert_activation",), saves=("expert_activation",),
        ),
        Operator("combine", "combine", TOKENS, sizes.width, "sequence", inputs=("expert_down",)),
    ]  # fmt: skip


def _shared(source: str, sizes: Mixture) -> list[Operator]:
    if not sizes.shared_ffn:
        return []
    clamped = clamp("shared_clamp", "shared_up", term("shared_ffn", times=sizes.columns)) if sizes.clamped else []
    activated = "shared_clamp" if sizes.clamped else "shared_up"
    width, narrow = term("shared_ffn", times=sizes.columns), term("shared_ffn")
    up = [Weight("shared_up.weight", term("hidden", "shared_ffn", times=sizes.columns))]
    if sizes.shared_gate:
        up.append(Weight("shared_gate.weight", HIDDEN, "vector"))
    return [
        Operator(
            "shared_up", "matmul", TOKENS, width, "tensor", contraction=HIDDEN, weights=tuple(up), inputs=(source,),
            saves=(source,),
        ),
        *clamped,
        Operator(
            "shared_activation", sizes.activation, TOKENS, narrow, "tensor", inputs=(activated,), saves=(activated,),
        ),
        Operator(
            "shared_down", "matmul", TOKENS, HIDDEN, "tensor", contraction=narrow,
            weights=(Weight("shared_down.weight", term("shared_ffn", "hidden")),), inputs=("shared_activation",),
            saves=("shared_activation",),
        ),
    ]  # fmt: skip

"""Mamba-2: the operators of a state-space layer.

One product makes gates, inputs, keys, queries (B and C, shared by the heads of a group) and time steps of all heads; a
short causal convolution runs over inputs, keys and queries; the scan carries a state of head_dim x state elements per
head along the sequence, in chunks with dense products; its result is gated, normed by groups and projected back [Dao
and Gu 2024, arXiv 2405.21060, sections 6 and 7]. Tensor parallelism divides heads and groups (section 8.1 there). As in
the authors' fused kernels, the first product's output, the scan's result and the gated result are kept for backward;
convolution and states are computed again.
"""

from simpar.architectures.graph import Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, product, project
from simpar.dataclass import dataclass

INNER: Size = term("mamba_heads", "mamba_head_dim")
MIXED: Size = (*INNER, *term("mamba_groups", "state", times=2))
PROJECTED: Size = (*INNER, *MIXED, *term("mamba_heads"))


@dataclass(frozen=True)
class Mamba:
    """Sizes of a layer: ``heads`` of ``head_dim``, ``state`` elements per feature; heads of a group share B and C.

    ``conv`` is the kernel of the convolution, ``chunk`` the tokens of a dense piece of the scan.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    conv: int = 4
    chunk: int = 128

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        return {
            "mamba_heads": self.heads, "mamba_head_dim": self.head_dim, "state": self.state,
            "mamba_groups": self.groups, "conv": self.conv, "chunk": self.chunk,
        }  # fmt: skip


def mamba(
    source: str, *, bias: bool = False, out_bias: bool | None = None, conv_bias: bool = True, normed: bool = True
) -> list[Operator]:
    """Operators of one mixer that reads ``source``; the last is the output projection.

    ``out_bias`` is that of the output projection (None: as ``bias`` of the first product).
    """
    out_bias = bias if out_bias is None else out_bias
    convolution = [
        Weight("conv.weight", product(MIXED, term("conv"))),
        *([Weight("conv.bias", MIXED, "vector")] if conv_bias else []),
    ]
    heads = [Weight(f"scan.{name}", term("mamba_heads"), "vector") for name in ("decay", "skip", "step_bias")]
    mixer_norm = Operator(
        "mixer_norm", "norm", TOKENS, INNER, "tensor", weights=(Weight("mixer_norm.weight", INNER, "vector"),),
        inputs=("gate",), saves=("gate", "stats"),
    )  # fmt: skip
    return [
        project("in_proj", source, HIDDEN, PROJECTED, bias=bias),
        Operator("conv", "convolution", TOKENS, MIXED, "tensor", weights=tuple(convolution), inputs=("in_proj",),
                 saves=("in_proj",)),
        Operator("scan", "scan", TOKENS, INNER, "tensor", weights=tuple(heads), inputs=("conv",),
                 saves=("in_proj",)),
        Operator("gate", "gate", TOKENS, INNER, "tensor", inputs=("in_proj", "scan"), saves=("in_proj", "scan")),
        *([mixer_norm] if normed else []),
        project("out_proj", "mixer_norm" if normed else "gate", INNER, HIDDEN, bias=out_bias),
    ]  # fmt: skip

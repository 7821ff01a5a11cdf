"""Linear attention: layers that carry a matrix of state along the sequence instead of keys and values.

Every head keeps a state of key_dim x value_dim elements, which is worked through in chunks with dense products:

- gated DeltaNet: the state decays by a number per head, and what it already holds for a key is replaced [Yang, Kautz
  and Hatamizadeh 2024, arXiv 2412.06464];
- Kimi Delta Attention: the same with a decay of its own for every feature of a key, from a product of low rank, as
  is its output gate [Kimi team 2025, arXiv 2510.26692], where that is not of full rank [Kimi K3, arXiv 2607.24653];
- lightning attention: the state decays by a constant of its head and nothing is replaced [Qin et al. 2024, arXiv
  2405.17381; MiniMax 2025, arXiv 2501.08313]; queries and keys are activated, or normed and rotated [Ling team 2025,
  Ring-linear, arXiv 2510.19338].

Tensor parallelism divides the heads. As in the authors' kernels, queries, keys and values behind the convolution, the
output and its gate are kept for backward; states and the chunks' inverses are computed again.
"""

from collections.abc import Callable
from dataclasses import replace

from simpar.architectures.graph import Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, product, project
from simpar.dataclass import dataclass

VALUES: Size = term("linear_heads", "linear_value_dim")
QUERIES_KEYS: Size = term("linear_key_heads", "linear_key_dim", times=2)
MIXED: Size = (*QUERIES_KEYS, *VALUES)
HEADS: Size = term("linear_heads")
FLOP_PER_STATE = {"gated_delta": 8.0, "channel_delta": 8.0, "lightning": 4.0}
"""Model FLOP of a token per element of state, by the kind of operator, whatever a chunked kernel computes.

Two products read and write the state; a delta rule has two more (Megatron-Core's convention, megatron/training
/training.py: K K^T, V K^T, S (a (I - b K K^T)) and S Q)."""


@dataclass(frozen=True)
class LinearShape:
    """Sizes of a layer: ``heads`` of values, which share the ``key_heads`` of queries and keys.

    ``rule`` is the kind of its operator (a key of FLOP_PER_STATE), ``conv`` the kernel of its convolution (0: none),
    ``chunk`` the tokens of a dense piece. Kimi's output gate may come from one product (``full_gate``); queries and
    keys of lightning attention may be normed and rotated (``rotated``).
    """

    rule: str
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv: int = 4
    chunk: int = 64
    full_gate: bool = False
    rotated: bool = False

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        return {
            "linear_heads": self.heads, "linear_key_heads": self.key_heads, "linear_key_dim": self.key_dim,
            "linear_value_dim": self.value_dim, "conv": self.conv, "chunk": self.chunk,
        }  # fmt: skip


def linear_attention(source: str, sizes: LinearShape) -> list[Operator]:
    """Operators of one layer that reads ``source``; the last is the output projection."""
    return _MAKERS[sizes.rule](source, sizes)


def _gated_delta(source: str, _: LinearShape) -> list[Operator]:
    """One product makes queries, keys, values, output gates, steps and decays."""
    columns = (*QUERIES_KEYS, *term("linear_heads", "linear_value_dim", times=2), *term("linear_heads", times=2))
    return [
        project("in_proj", source, HIDDEN, columns),
        _convolution("in_proj"),
        _core("gated_delta", "conv", ("decay", HEADS), ("step_bias", HEADS)),
        *_normed("in_proj", term("linear_value_dim")),
        project("out_proj", "output_gate", VALUES, HIDDEN),
    ]


def _channel_delta(source: str, sizes: LinearShape) -> list[Operator]:
    """Decays by feature and output gates come from products of a head's rank, which all ranks have whole."""
    narrow = term("linear_value_dim")
    gate = [
        project("gate_down", source, HIDDEN, narrow, region="sequence"),
        project("gate_up", "gate_down", narrow, VALUES),
    ]
    if sizes.full_gate:
        gate = [project("gate_up", source, HIDDEN, VALUES)]
    return [
        project("in_proj", source, HIDDEN, (*MIXED, *HEADS)),
        _convolution("in_proj"),
        project("decay_down", source, HIDDEN, narrow, region="sequence"),
        project("decay_up", "decay_down", narrow, term("linear_heads", "linear_key_dim")),
        _core("channel_delta", "conv", ("decay", HEADS), ("step_bias", term("linear_heads", "linear_key_dim")),
              beside=("decay_up",)),
        *gate,
        *_normed("gate_up", narrow),
        project("out_proj", "output_gate", VALUES, HIDDEN),
    ]  # fmt: skip


def _lightning(source: str, sizes: LinearShape) -> list[Operator]:
    """Activated, or normed and rotated, queries and keys; the output is normed over all heads before its gate."""
    made = _rotated() if sizes.rotated else [_pass_of("qkv_activation", "activation", "in_proj", saves=("in_proj",))]
    return [
        project("in_proj", source, HIDDEN, MIXED),
        *made,
        _core("lightning", made[-1].name),
        project("gate_proj", source, HIDDEN, VALUES),
        *_normed("gate_proj", VALUES),
        project("out_proj", "output_gate", VALUES, HIDDEN),
    ]


def _rotated() -> list[Operator]:
    """Norms of the heads of queries and keys, which then turn with their position."""
    weight = Weight("qk_norm.weight", term("linear_key_dim", times=2), "vector")
    normed = _pass_of("qk_norm", "norm", "in_proj", saves=("in_proj", "stats"))
    return [replace(normed, weights=(weight,)), _pass_of("rope", "rope", "qk_norm")]


def _pass_of(name: str, kind: str, source: str, saves: tuple[str, ...] = ()) -> Operator:
    """One pass over queries, keys and values."""
    return Operator(name, kind, TOKENS, MIXED, "tensor", inputs=(source,), saves=saves)


_MAKERS: dict[str, Callable[[str, LinearShape], list[Operator]]] = {
    "gated_delta": _gated_delta, "channel_delta": _channel_delta, "lightning": _lightning,
}  # fmt: skip


def _convolution(source: str) -> Operator:
    """A short causal convolution over queries, keys and values."""
    weight = Weight("conv.weight", product(MIXED, term("conv")))
    return Operator("conv", "convolution", TOKENS, MIXED, "tensor", (), (weight,), (source,), (source,))


def _core(rule: str, source: str, *vectors: tuple[str, Size], beside: tuple[str, ...] = ()) -> Operator:
    """The pass over the sequence; its kernels keep what they read."""
    weights = tuple(Weight(f"delta.{name}", size, "vector") for name, size in vectors)
    return Operator(
        "linear_attention", rule, TOKENS, VALUES, "tensor", weights=weights, inputs=(source, *beside),
        saves=(source, *beside),
    )  # fmt: skip


def _normed(gate: str, width: Size) -> list[Operator]:
    """The output's norm, and its product with a gate."""
    weight = Weight("output_norm.weight", width, "vector")
    return [
        Operator(
            "output_norm", "norm", TOKENS, VALUES, "tensor", weights=(weight,), inputs=("linear_attention",),
            saves=("linear_attention", "stats"),
        ),
        Operator(
            "output_gate", "gated_activation", TOKENS, VALUES, "tensor", inputs=("output_norm", gate),
            saves=("linear_attention", gate),
        ),
    ]  # fmt: skip

"""Multi-head latent attention: queries, keys and values are projected from two small latents.

Products into the latents are whole on every tensor-parallel rank and work on its rows of the sequence; products out of
the latents are sharded by heads [DeepSeek-AI 2024, arXiv 2405.04434, section 2.1].
"""

from dataclasses import dataclass

from simpar.architectures.graph import AttentionPattern, Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, project


@dataclass(frozen=True)
class LatentShape:
    """Ranks of the latents (``query`` 0: queries are projected from the hidden state itself) and widths of one head.

    A head's queries and keys have ``plain`` features without positions and ``rotary`` ones with them; all heads share
    the rotary key.
    """

    query: int
    key_value: int
    plain: int
    rotary: int
    value: int

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        return {
            "q_rank": self.query, "kv_rank": self.key_value, "plain_dim": self.plain, "rotary_dim": self.rotary,
            "qk_dim": self.plain + self.rotary, "value_dim": self.value,
        }  # fmt: skip


def latent_attention(source: str, sizes: LatentShape, *, rotary: bool = True) -> list[Operator]:
    """Operators of one attention that reads ``source``; the last is the output projection.

    Without ``rotary`` positions, queries and keys are only put together of their parts.
    """
    kind = "rope" if rotary else "copy"
    query = term("heads", "qk_dim")
    key_value = (*term("heads", "plain_dim"), *term("heads", "value_dim"))
    ops = []
    if sizes.query:
        ops += _compress("q", source, term("q_rank"), term("q_rank"))
        ops.append(project("q_up", "q_norm", term("q_rank"), query))
    else:
        ops.append(project("q_up", source, HIDDEN, query))
    ops += _compress("kv", source, (*term("kv_rank"), *term("rotary_dim")), term("kv_rank"))
    ops.append(project("kv_up", "kv_norm", term("kv_rank"), key_value))
    both, values = term("heads", "qk_dim", times=2), term("heads", "value_dim")
    mask = AttentionPattern(key_dim=term("qk_dim"), value_dim=term("value_dim"), kv_heads=term("heads"))
    return [
        *ops,
        Operator("k_rotary", kind, TOKENS, term("rotary_dim"), "sequence", inputs=("kv_down",)),
        Operator("rope", kind, TOKENS, both, "tensor", inputs=("q_up", "kv_up", "k_rotary")),
        Operator("value", "copy", TOKENS, values, "tensor", inputs=("kv_up",)),
        Operator(
            "attention", "attention", TOKENS, values, "tensor", inputs=("rope", "value"),
            saves=("rope", "value", "attention", "lse"), attention=mask,
        ),
        project("o_proj", "attention", values, HIDDEN),
    ]  # fmt: skip


def _compress(name: str, source: str, columns: Size, kept: Size) -> list[Operator]:
    """A product into a latent and the norm behind it."""
    down = project(f"{name}_down", source, HIDDEN, columns, region="sequence")
    weight = Weight(f"{name}_norm.weight", kept, "vector")
    norm = Operator(
        f"{name}_norm", "norm", TOKENS, kept, "sequence", weights=(weight,), inputs=(down.name,),
        saves=(down.name, "stats"),
    )  # fmt: skip
    return [down, norm]

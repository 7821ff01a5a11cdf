"""Multi-head latent attention: queries, keys and values are projected from two small latents.

Where an indexer chooses the keys of every query, heads attend to the latents themselves, which they share, so that
chosen ones are read once: queries are projected into the latent, and outputs out of it [DeepSeek-AI 2025, arXiv
2512.02556, section 2.1].

Products into the latents are whole on every tensor-parallel rank and work on its rows of the sequence; products out of
the latents are sharded by heads [DeepSeek-AI 2024, arXiv 2405.04434, section 2.1].
"""

from simpar.architectures.graph import ONE, AttentionPattern, Operator, Size, Weight, term
from simpar.architectures.indexer import INDEX_QUERIES, Indexer, choose, learn
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.dataclass import dataclass


@dataclass(frozen=True)
class LatentShape:
    """Ranks of the latents (``query`` 0: queries are projected from the hidden state itself) and widths of one head.

    A head's queries and keys have ``plain`` features without positions and ``rotary`` ones with them; all heads share
    the rotary key. With an ``indexer``, attention is sparse. ``gated``: a sigmoid on every feature of the output, from
    a product of the input. ``bias``: products into the latents and the output's have biases.
    """

    query: int
    key_value: int
    plain: int
    rotary: int
    value: int
    indexer: Indexer | None = None
    gated: bool = False
    bias: bool = False

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        sizes = {
            "q_rank": self.query, "kv_rank": self.key_value, "plain_dim": self.plain, "rotary_dim": self.rotary,
            "qk_dim": self.plain + self.rotary, "value_dim": self.value,
        }  # fmt: skip
        return sizes | self.indexer.dims if self.indexer else sizes


def latent_attention(
    source: str, sizes: LatentShape, *, rotary: bool = True, reuses_keys: bool = False
) -> list[Operator]:
    """Operators of one attention that reads ``source``; the last is the output projection.

    Without ``rotary`` positions, queries and keys are only put together of their parts. A layer that ``reuses_keys``
    attends to those that an earlier one has chosen.
    """
    kind = "rope" if rotary else "copy"
    query = term("heads", "qk_dim")
    key_value = (*term("heads", "plain_dim"), *term("heads", "value_dim"))
    ops = []
    if sizes.query:
        ops += compress("q", source, term("q_rank"), term("q_rank"), bias=sizes.bias)
        ops.append(project("q_up", "q_norm", term("q_rank"), query))
    else:
        ops.append(project("q_up", source, HIDDEN, query))
    ops += compress("kv", source, (*term("kv_rank"), *term("rotary_dim")), term("kv_rank"), bias=sizes.bias)
    if sizes.indexer:
        chosen = [] if reuses_keys else _index(source, "q_norm" if sizes.query else source, bool(sizes.query))
        return [*ops, *chosen, *_sparse(sizes, kind, indexed=not reuses_keys)]
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
        *(_gate(source, values) if sizes.gated else []),
        project("o_proj", "attention_gate" if sizes.gated else "attention", values, HIDDEN, bias=sizes.bias),
    ]  # fmt: skip


def _gate(source: str, values: Size) -> list[Operator]:
    """A gate on the output of every head."""
    both = ("attention", "gate_proj")
    return [
        project("gate_proj", source, HIDDEN, values),
        Operator("attention_gate", "gated_activation", TOKENS, values, "tensor", inputs=both, saves=both),
    ]


def _index(source: str, query: str, compressed: bool) -> list[Operator]:
    """Queries, keys and weights of the indexer's heads, and the choice."""
    rank = term("q_rank") if compressed else HIDDEN
    weights = tuple(Weight(f"index_norm.{name}", term("index_dim"), "vector") for name in ("weight", "bias"))
    return [
        project("index_q", query, rank, INDEX_QUERIES, region="sequence"),
        project("index_k", source, HIDDEN, term("index_dim"), region="sequence"),
        Operator(
            "index_norm", "norm", TOKENS, term("index_dim"), "sequence", weights=weights, inputs=("index_k",),
            saves=("index_k", "stats"),
        ),
        project("index_weights", source, HIDDEN, term("index_heads"), region="sequence"),
        choose("index_q", "index_norm", "index_weights"),
    ]  # fmt: skip


def _sparse(sizes: LatentShape, kind: str, *, indexed: bool) -> list[Operator]:
    """Attention of all heads to chosen latents, with the products of every head into and out of the latent."""
    assert sizes.indexer is not None, "of sparse attention"
    latent = term("heads", "kv_rank")
    keys = (*term("kv_rank"), *term("rotary_dim"))
    pattern = AttentionPattern(
        key_dim=keys, value_dim=term("kv_rank"), kv_heads=ONE, selection=sizes.indexer.selection,
        exchanged=(*keys, *term("index_dim")) if indexed else keys,
    )  # fmt: skip
    read = ("rope", "kv_norm", "k_rotary", *(["indexer"] if indexed else []))
    loss = learn(keys, "rope", "indexer")
    return [
        project("q_latent", "q_up", term("plain_dim"), latent),
        Operator("k_rotary", kind, TOKENS, term("rotary_dim"), "sequence", inputs=("kv_down",)),
        Operator(
            "rope", kind, TOKENS, (*latent, *term("heads", "rotary_dim")), "tensor", inputs=("q_latent", "q_up"),
        ),
        Operator(
            "attention", "attention", TOKENS, latent, "tensor", inputs=read, saves=(*read, "attention", "lse"),
            attention=pattern,
        ),
        *([loss] if indexed else []),
        project("value_up", "attention", term("kv_rank"), term("heads", "value_dim")),
        project("o_proj", "value_up", term("heads", "value_dim"), HIDDEN, bias=sizes.bias),
    ]  # fmt: skip


def compress(name: str, source: str, columns: Size, kept: Size, *, bias: bool) -> list[Operator]:
    """A product into a latent and the norm behind it."""
    down = project(f"{name}_down", source, HIDDEN, columns, bias=bias, region="sequence")
    weight = Weight(f"{name}_norm.weight", kept, "vector")
    norm = Operator(
        f"{name}_norm", "norm", TOKENS, kept, "sequence", weights=(weight,), inputs=(down.name,),
        saves=(down.name, "stats"),
    )  # fmt: skip
    return [down, norm]

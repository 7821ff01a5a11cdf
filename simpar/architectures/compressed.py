"""Attention to a window of tokens and to compressed keys before it, which all heads share as keys and values.

A gate of every feature adds the tokens of a piece up to one key: of ratio tokens where all earlier keys are seen
(heavily compressed attention), of those and the piece before where an indexer, with compressed keys of its own, chooses
among them (compressed sparse attention). Outputs of all heads are projected in groups, then together [DeepSeek-AI 2026,
arXiv 2606.19348, section 2.3; transformers, models/deepseek_v4].

Queries, heads' outputs and their groups are divided under tensor parallelism; keys, compressed keys and the indexer are
whole on every rank, which makes those of its rows of the sequence. Context-parallel ranks gather keys and compressed
keys of each other (NVIDIA NeMo Automodel, components/models/deepseek_v4).
"""

from dataclasses import replace

from simpar.architectures.graph import ONE, AttentionPattern, Operator, Selection, Size, Weight, term
from simpar.architectures.indexer import INDEX_QUERIES, Indexer, choose, learn
from simpar.architectures.products import HIDDEN, QUERY, TOKENS, product, project
from simpar.architectures.streams import mix
from simpar.dataclass import dataclass

KEY: Size = term("head_dim")
OVERLAPPING = 2
"""Keys that a token takes part in where pieces overlap: that of its own piece and the next one's."""


@dataclass(frozen=True)
class CompressedShape:
    """Sizes of attention in all layers: a ``window`` of tokens, the rank of queries, and the output's groups."""

    window: int
    query: int
    groups: int
    group: int

    @property
    def dims(self) -> dict[str, int]:
        """Named dims."""
        return {"q_rank": self.query, "o_groups": self.groups, "o_rank": self.group}


@dataclass(frozen=True)
class Compression:
    """Keys of ``ratio`` tokens each, which an ``indexer`` may choose among."""

    ratio: int
    indexer: Indexer | None = None

    @property
    def selection(self) -> Selection:
        """The keys that a query sees."""
        return self.indexer.selection if self.indexer else Selection(ratio=self.ratio)

    def size(self, key_dim: int) -> Size:
        """Elements of compressed keys per token, rounded up."""
        return term(times=-(-key_dim // self.ratio))

    def exchanged(self, key_dim: int) -> Size:
        """Elements of a token in compressed keys, those of the indexer too."""
        return (*self.size(key_dim), *(self.size(self.indexer.dim) if self.indexer else ()))

    def read(self, key: Size) -> Size:
        """Features of a token that become part of compressed keys."""
        return tuple((times * (OVERLAPPING if self.indexer else 1), names) for times, names in key)


def compressed_attention(
    source: str, sizes: CompressedShape, widths: dict[str, int], own: Compression | None
) -> list[Operator]:
    """Operators of one attention that reads ``source``; the last is the output projection.

    ``widths`` are the model's dims; without ``own`` compression there is the window alone.
    """
    grouped = term(times=widths["heads"] // sizes.groups * widths["head_dim"])
    ops = [
        *_normed("q", source, term("q_rank")),
        project("q_up", "q_norm", term("q_rank"), QUERY),
        Operator("q_head_norm", "norm", TOKENS, QUERY, "tensor", inputs=("q_up",), saves=("q_up", "stats")),
        Operator("rope", "rope", TOKENS, QUERY, "tensor", inputs=("q_head_norm",)),
        *_normed("kv", source, KEY),
        Operator("k_rotary", "rope", TOKENS, KEY, "sequence", inputs=("kv_norm",)),
    ]
    read = ["rope", "k_rotary"]
    if own:
        ops += _compress("compressed", source, own, KEY, own.size(widths["head_dim"]))
        ops.append(replace(ops[-1], name="compressed_rope", kind="rope", weights=(), inputs=(ops[-1].name,), saves=()))
        read.append("compressed_rope")
    if own and own.indexer:
        ops += _index(source, own, own.size(own.indexer.dim))
        read.append("indexer")
    mask = AttentionPattern(
        window=sizes.window, key_dim=KEY, value_dim=KEY, kv_heads=ONE, selection=own.selection if own else None,
        exchanged=(*KEY, *(own.exchanged(widths["head_dim"]) if own else ())),
    )  # fmt: skip
    ops.append(
        Operator(
            "attention", "attention", TOKENS, QUERY, "tensor", weights=(Weight("sinks", term("heads"), "vector"),),
            inputs=tuple(read), saves=(*read, "attention", "lse"), attention=mask,
        )
    )  # fmt: skip
    if own and own.indexer:
        ops.append(learn(KEY, "rope", "compressed_rope", "indexer"))
    return [
        *ops,
        Operator("turned_back", "rope", TOKENS, QUERY, "tensor", inputs=("attention",)),
        project("o_group", "turned_back", grouped, term("o_groups", "o_rank")),
        project("o_proj", "o_group", term("o_groups", "o_rank"), HIDDEN),
    ]


def _normed(name: str, source: str, width: Size) -> list[Operator]:
    """A product and the norm behind it."""
    weight = Weight(f"{name}_norm.weight", width, "vector")
    return [
        project(f"{name}_down", source, HIDDEN, width, region="sequence"),
        Operator(
            f"{name}_norm", "norm", TOKENS, width, "sequence", weights=(weight,), inputs=(f"{name}_down",),
            saves=(f"{name}_down", "stats"),
        ),
    ]  # fmt: skip


def _compress(name: str, source: str, own: Compression, key: Size, made: Size) -> list[Operator]:
    """Keys and gates of every token, their sums over pieces, and the norm of these."""
    wide = own.read(key)
    place = Weight(f"{name}.place", product(term(times=own.ratio), wide), "vector")
    read = (f"{name}_kv", f"{name}_gate")
    return [
        *(project(each, source, HIDDEN, wide, region="sequence") for each in read),
        replace(mix(name, product(term(times=2), wide), made, *read, saves=read), weights=(place,)),
        Operator(
            f"{name}_norm", "norm", TOKENS, made, "sequence", weights=(Weight(f"{name}_norm.weight", key, "vector"),),
            inputs=(name,), saves=(name, "stats"),
        ),
    ]  # fmt: skip


def _index(source: str, own: Compression, made: Size) -> list[Operator]:
    """The indexer: queries from the latent, compressed keys, weights of its heads, and the choice."""
    return [
        project("index_q", "q_norm", term("q_rank"), INDEX_QUERIES, region="sequence"),
        *_compress("index", source, own, term("index_dim"), made),
        project("index_weights", source, HIDDEN, term("index_heads"), region="sequence"),
        choose("index_q", "index_norm", "index_weights"),
    ]

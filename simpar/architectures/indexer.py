"""An indexer: a few small heads that score earlier keys for every query, of which attention then sees the best.

DeepSeek V3.2 chooses tokens, by heads that each have a weight [DeepSeek-AI 2025, arXiv 2512.02556, section 2.1];
DeepSeek V4 compressed keys [arXiv 2606.19348, section 2.3.1]; MiniMax M3 blocks of tokens, for every group of heads
those that its own head of the indexer scores best [Lai et al. 2026, arXiv 2606.13392]. Every tensor-parallel rank
chooses for its rows of the sequence. Indexers learn to score keys as the heads of attention together attend to them;
nothing flows back from that to the layer.
"""

from simpar.architectures.graph import Operator, Selection, Size, term
from simpar.architectures.products import TOKENS
from simpar.dataclass import dataclass

INDEX_QUERIES: Size = term("index_heads", "index_dim")


@dataclass(frozen=True)
class Indexer:
    """Sizes of what chooses ``topk`` keys for every query: ``heads`` of ``dim`` features.

    A key stands for ``ratio`` tokens; keys are chosen in blocks of ``block``, once for all heads or (``apart``) by
    every head of the indexer for heads of its own.
    """

    heads: int
    dim: int
    topk: int
    ratio: int = 1
    block: int = 1
    apart: bool = False

    @property
    def dims(self) -> dict[str, int]:
        """Named dims; "index_choices" counts the blocks that are chosen for a query."""
        times = self.heads if self.apart else 1
        return {
            "index_heads": self.heads, "index_dim": self.dim, "index_topk": self.topk, "index_ratio": self.ratio,
            "index_block": self.block, "index_rankings": times, "index_choices": times * self.topk // self.block,
        }  # fmt: skip

    @property
    def selection(self) -> Selection:
        """The keys that attention sees."""
        return Selection(self.topk, self.ratio, self.block)


def choose(*inputs: str) -> Operator:
    """The choice; its output are int32 places, which count as two elements of 16 bits."""
    return Operator(
        "indexer", "indexer", TOKENS, term("index_choices", times=2), "sequence", inputs=inputs, saves=inputs
    )


def learn(key_dim: Size, *inputs: str) -> Operator:
    """The loss that the indexer learns from: scores of heads of ``key_dim`` features against its own."""
    columns = term("index_topk")
    return Operator("index_loss", "index_loss", TOKENS, columns, "tensor", contraction=key_dim, inputs=inputs)

"""Attention under context parallelism: which keys a rank's queries meet, in which blocks, and what moves for it.

| method | before attention | during | after | bytes a rank sends, one pass |
|---|---|---|---|---|
| ring | - | blocks of keys and values go round | - | (r - 1) KV |
| all_gather | keys and values are gathered | - | - | (r - 1) KV |
| ulysses | heads are exchanged for tokens: q, k, v | - | the output back | (u - 1)/u (Q + KV + O) |

The c = r u ranks are r in a ring or gather times u in Ulysses. KV = w b s/c (d_k + d_v) k bytes are the local keys and
values, w bytes per element; Q and O are queries and output. Backward: a ring sends KV r - 1 times and its gradient r
times, until it is home; an all-gather is repeated and the gradient reduce-scattered; Ulysses repeats its exchanges.
[Liu et al. 2023, arXiv 2310.01889 (ring); Jacobs et al. 2023, arXiv 2309.14509 (Ulysses); Dubey et al. 2024, arXiv
2407.21783, section 3.3.2 (all-gather); Fang and Zhao 2024, arXiv 2405.07719 (hybrid)].

Queries that attend to another tower's output meet the keys of all its rows. Every rank has its share of these rows,
makes their keys and values, and exchanges them in the same way; nothing is masked.
"""

from functools import partial

import numpy as np

from simpar.architectures.graph import AttentionPattern, Dims, Operator, evaluate
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.units import Numbers, floats

OWN = "context"
"""The dim of a sequence's own keys; any other counts the rows of another tower that a rank has."""
SLOWEST = -1
_MERGE_PASSES = 3  # a block's output is read, and the sum so far read and written


@dataclass(frozen=True)
class ContextSplit:
    """How the keys of a sequence are spread: over ``blocks`` ring ranks or ``gathered`` ones.

    ``position`` among them matters where a rank holds one contiguous chunk; SLOWEST is the last one.
    """

    blocks: int
    gathered: int
    balance: str
    position: int = SLOWEST


def all_keys(mask: AttentionPattern, dims: Dims) -> Numbers:
    """Keys of one sequence, on whichever context-parallel ranks they are."""
    if mask.context == OWN:
        return dims[OWN]
    ranks = [dims.get(by, 1) for by in ("blocks", "gathered", "ulysses")]
    return dims[mask.context] * ranks[0] * ranks[1] * ranks[2]


def query_elements(op: Operator, dims: Dims) -> Numbers:
    """Elements of a rank's queries of an attention operator; its output has ``value_dim`` in place of ``key_dim``."""
    attention = _attention_of(op)
    return evaluate(op.rows, dims) * dims["heads"] * evaluate(attention.key_dim, dims)


def key_value_elements(op: Operator, dims: Dims) -> tuple[Numbers, Numbers]:
    """Elements of a rank's (keys, values); where there are fewer heads than Ulysses ranks, heads are copied first.

    What an operator says that is exchanged counts as keys.
    """
    attention = _attention_of(op)
    if attention.exchanged is not None:
        return evaluate(op.rows, dims) * evaluate(attention.exchanged, dims), 0.0
    heads = _kv_heads(attention, dims) * dims["ulysses"]
    own = attention.context == OWN
    rows = (evaluate(op.rows, dims) if own else dims["batch"] * dims[attention.context]) * heads
    return rows * evaluate(attention.key_dim, dims), rows * evaluate(attention.value_dim, dims)


def _kv_heads(attention: AttentionPattern, dims: Dims) -> Numbers:
    """Heads of keys and values on an Ulysses rank."""
    return np.maximum(evaluate(attention.kv_heads, dims), dims["ulysses"]) / dims["ulysses"]


def exchange_elements(op: Operator, dims: Dims, *, backward: bool) -> Numbers:
    """Elements of the buffers that the exchange needs beside the local tensors, at their peak.

    A ring holds two blocks of keys and values (one in use, one arriving), and in backward as many of their gradients;
    an all-gather holds all blocks; Ulysses holds one copy of queries, keys and values.
    """
    keys, values = key_value_elements(op, dims)
    ring = np.where(np.asarray(dims["blocks"]) > 1, 2, 0)
    gathered = np.where(np.asarray(dims["gathered"]) > 1, dims["gathered"], 0)
    heads = np.where(np.asarray(dims["ulysses"]) > 1, query_elements(op, dims) + keys + values, 0)
    return (ring + gathered) * (keys + values) * (2 if backward else 1) + heads


def block_times_s(
    op: Operator, dims: Dims, kernels: KernelModel, split: ContextSplit, *, backward: bool
) -> list[Numbers]:
    """Seconds of attention on every block of keys in turn, messages left out; 0 for a block that is masked entirely.

    Zigzag and striped ranks see half of every block under a causal mask. Contiguous rank i sees its own block under
    the mask, the i before it whole, and nothing of the others.
    """
    attention, blocks = _attention_of(op), split.blocks
    ulysses = dims["ulysses"]
    rows, heads = dims["seq"] * ulysses, dims["heads"] // ulysses
    both = (evaluate(attention.key_dim, dims), evaluate(attention.value_dim, dims))
    width = kernels.head_dim(*both, backward=backward)
    shape = (dims["batch"], rows, heads, width)
    how = {"backward": backward, "drops": attention.dropout}
    timed = partial(kernels.attention_time_s, shape, kv_heads=_kv_heads(attention, dims), **how)

    def seconds(context: Numbers, seen: Numbers) -> Numbers:
        return floats(timed(context=context, seen=seen))

    keys = all_keys(attention, dims)
    if blocks == 1:
        return [seconds(keys, _seen_at(attention, dims, split))]
    output = evaluate(op.rows, dims) * dims["heads"] * evaluate(attention.value_dim, dims)
    merge_s = floats(kernels.memory_time_s(_MERGE_PASSES * floats(output * kernels.activation_bytes)))
    times: list[Numbers] = []
    for block in range(blocks):
        seen = _seen_in_block(attention, rows, keys, split, block)
        later = merge_s if block and not backward else 0.0
        held = rows if attention.context == OWN else keys / blocks
        times.append(seconds(held, seen) + later if seen else 0.0)
    return times


def _seen_in_block(
    attention: AttentionPattern, rows: Numbers, context: Numbers, split: ContextSplit, block: int
) -> float:
    """Keys of one ring block that a query sees on average."""
    if not attention.causal or attention.is_bounded or split.balance != "contiguous":
        return float(attention.mean_keys(context)) / split.blocks
    if block == 0:
        return float(rows) / 2
    last = split.blocks - 1 if split.position == SLOWEST else split.position
    return float(rows) if block <= last else 0.0


def _seen_at(attention: AttentionPattern, dims: Dims, split: ContextSplit) -> Numbers:
    """Keys that a query sees on average where a rank has all keys at once (no ring)."""
    alone = split.gathered == 1 or split.balance != "contiguous"
    if alone or not attention.causal or attention.is_bounded:
        return attention.mean_keys(all_keys(attention, dims))
    last = split.gathered - 1 if split.position == SLOWEST else split.position
    return (last + 0.5) * dims["context"] / split.gathered


def _attention_of(op: Operator) -> AttentionPattern:
    assert op.attention is not None, "an attention operator carries its mask"
    return op.attention

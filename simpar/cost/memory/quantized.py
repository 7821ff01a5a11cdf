"""Weights that a rank holds in the 8 or 4 bits of products: beside the parameters, or instead of them.

Bytes of a weight of such a product, where one layout of it takes w bytes an element (its share of a scale included) and
products read it in L layouts (by rows, and by columns for the gradient of inputs):

| ``quantized_weights`` | whole | sharded over N ranks |
|---|---|---|
| none: cast for every product | 2 | 2/N |
| cached: a cast of the step's first microbatch, which stays for the run | 2 + L w | 2/N + L w |
| stored: the parameters themselves | L w | w/N, or L w/N with scales of blocks in tensor cores |

Transformer Engine's modules keep casts in workspaces of their own, once they are told which microbatch is the first
[NVIDIA TransformerEngine, pytorch/module/base.py, quantize_weight; linear.py, cache_name]; Megatron-Core tells them
[core/transformer/module.py, set_is_first_microbatch], and so they are whole where Megatron-FSDP shards what they are
cast from. Modules under torch's FSDP keep none. Parameters in 8 bits hold both layouts [base.py, reset_parameters:
columns wherever there are gradients; tensor/storage/float8_tensor_storage.py, update_usage] and no 16-bit copy:
Megatron-Core gathers them in place, and in MXFP8 through the buffer of gradients
[core/distributed/param_and_grad_buffer.py]. Megatron-FSDP shards the columns as well where they have scales of their
own, and makes them anew from the rows where they do not
[core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py, transpose_weight_buffer]. torchao's products cast
weights each time, and read what an 8-bit gather brings as it is [torchao, float8/float8_linear.py, fsdp_utils.py].
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simpar.architectures.graph import Block, Dims, Operator, Weight, evaluate
from simpar.cost.activations import reads_narrow
from simpar.cost.memory.terms import Term
from simpar.dataclass import dataclass
from simpar.hardware.device import Device
from simpar.layout.layout import Layout
from simpar.precisions import PRECISIONS
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Numbers


@dataclass(frozen=True)
class NarrowWeights:
    """Weights of one sharding group that products read in 8 or 4 bits.

    ``elements`` are trained, and take ``whole_bytes`` in all layouts and ``shard_bytes`` in those that shards hold;
    ``frozen_bytes`` is what frozen ones of 16 bits and more take in all layouts.
    """

    elements: Numbers = 0.0
    whole_bytes: Numbers = 0.0
    shard_bytes: Numbers = 0.0
    frozen_bytes: Numbers = 0.0


def layout_bytes(op: Operator, precision: str, device: Device) -> tuple[float, float]:
    """Bytes of an element of an operator's weights: in all layouts, in those of a shard; 0 for those that stay wide."""
    if not (op.kind in ("matmul", "grouped_matmul") and reads_narrow(op, precision)):
        return 0.0, 0.0
    products = PRECISIONS[op.computes_in(precision)]
    whole = products.count_layouts(in_any=device.any_8_bit_layout) * products.weight_bytes
    return whole, whole if products.is_laid_out else products.weight_bytes


def narrow_weights(
    blocks: Sequence[tuple[Block, Numbers]], shared: frozenset[str], dims: Dims, precision: str, device: Device
) -> tuple[NarrowWeights, ...]:
    """Those of blocks, each held so often: of all but experts, of experts, and of blocks of the names ``shared``."""
    totals = [[np.zeros(())] * 4 for _ in range(3)]
    for block, count in blocks:
        own = block.view(dims)
        for op in block.operators:
            whole, in_shard = layout_bytes(op, precision, device)
            for weight in filter(_is_matrix, op.weights if whole else ()):
                total = totals[2 if block.name in shared else weight.kind == "expert"]
                size = np.asarray(count * evaluate(weight.size, own), dtype=np.float64)
                if weight.trainable:
                    for at, width in enumerate((1.0, whole, in_shard)):
                        total[at] = total[at] + size * width
                elif (weight.stored_bytes or DTYPE_BYTES["bf16"]) >= DTYPE_BYTES["bf16"]:
                    total[3] = total[3] + size * whole
    return tuple(NarrowWeights(*total) for total in totals)


def _is_matrix(weight: Weight) -> bool:
    return weight.kind in ("matrix", "expert")


def with_quantized(
    terms: Sequence[Term], weights: Sequence[NarrowWeights], shares: Sequence[Numbers], layout: Layout, stack: Stack
) -> tuple[Term, ...]:
    """The terms of a rank's parameters with its weights of 8- and 4-bit products as the stack holds them.

    ``shares`` are what the rank stores of each group's parameters, 1 where they are whole. Parameters that are fetched
    from the host stay as they are.
    """
    kind = stack.memory.weights_in(layout.precision)
    if kind == "none" or layout.offload_parameters != "none":
        return tuple(terms)
    if kind == "cached":
        copies = sum(each.whole_bytes + each.frozen_bytes for each in weights)
        return *terms, Term("parameters", "cached in the bits of products", copies)
    own: Numbers = 0.0
    held: Numbers = 0.0
    for share, each in zip(shares, weights, strict=False):
        own = own + each.elements * share
        held = held + np.where(np.asarray(share) < 1, each.shard_bytes, each.whole_bytes) * share
    wide = (replace(term, elements=term.elements - own) if term.name == "stored" else term for term in terms)
    return *wide, Term("parameters", "stored in the bits of products", held)

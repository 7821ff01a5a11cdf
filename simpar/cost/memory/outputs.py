"""Outputs of a pipeline's last stage that stay until its schedule has ended.

torch's pipeline runtime returns what the last stage made of all microbatches, joined: logits, which live beside
everything else until then, and twice while they are joined, when activations are gone [torch,
distributed/pipelining/stage.py, output_chunks; schedules.py, _merge_outputs]. A trainer that uses nothing but the
losses may ask for none (``return_outputs=False``, since torch 2.10): torchtitan does since October 2025 [train.py],
NeMo Automodel does not [recipes/llm/train_ft.py].
"""

import numpy as np

from simpar.architectures.graph import Dims
from simpar.cost.activations import activation_bytes
from simpar.cost.memory.terms import PASSES, UPDATE, HeldBlocks, Term
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack
from simpar.units import Numbers

KEPT = (
    "outputs of all {} microbatches kept on the last stage until the schedule has ended, as the stack has torch's "
    "runtime do it (plan.execution.kept_outputs says fewer, where a step runs the schedule several times)"
)
FEW = 8
"""The most microbatches that public recipes of NeMo Automodel have in a run of the schedule."""


def output_notes(layout: Layout, stack: Stack, microbatches: int) -> list[str]:
    """What is assumed where a stack keeps the outputs of more microbatches than recipes have in a run."""
    is_many = bool(layout.is_pipelined) and min(microbatches, stack.memory.kept_outputs) > FEW
    return [KEPT.format(microbatches)] if is_many else []


def output_terms(held: HeldBlocks, dims: Dims, layout: Layout, stack: Stack, update_bytes: Numbers) -> tuple[Term, ...]:
    """Terms of the logits of kept microbatches on the rank with the head, and of their joining (:func:`kept_terms`)."""
    if not stack.memory.kept_outputs or "vocab" not in dims:
        return ()
    vocab = dims["whole_vocab"] if stack.memory.whole_vocabulary else dims["vocab"]
    each_bytes = dims["batch"] * dims["seq"] * vocab * activation_bytes(layout)
    number = np.minimum(held.microbatches, stack.memory.kept_outputs) * held.head * np.asarray(layout.is_pipelined)
    return kept_terms(number, each_bytes, update_bytes)


def kept_terms(number: Numbers, each_bytes: Numbers, update_bytes: Numbers) -> tuple[Term, ...]:
    """Terms of the logits of a ``number`` of microbatches with ``each_bytes``, and of their joining.

    Both are over when the update begins, so that joining counts as far as it needs more than ``update_bytes``.
    """
    joined = np.maximum(2.0 * number * each_bytes - update_bytes, 0.0)
    return (
        Term("transient", "outputs of the last stage", number * each_bytes, 1.0, PASSES),
        Term("transient", "outputs of the last stage as they are joined", joined, 1.0, UPDATE),
    )

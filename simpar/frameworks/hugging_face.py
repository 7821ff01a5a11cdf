"""A training script for a Hugging Face model, shared by the targets that wrap one."""

import json
from collections.abc import Iterator
from typing import Any

from simpar.architectures.families import DECLARED
from simpar.frameworks import placeholders, rules
from simpar.frameworks.launch import comment
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import OF_TORCH

KERNELS = {"fused": "fused=True", "foreach": "foreach=True", "single": "foreach=False"}
"""Arguments of torch's optimizers by the kernels of their update."""
_HEAD = '''"""Train a causal language model on random tokens."""

import os
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SEQ_LEN, MICRO_BATCH, ACCUMULATION, VOCAB = {seq_len}, {micro_batch}, {accumulation}, {vocab}
STEPS = int(os.environ.get("STEPS", "20"))
CONFIG = AutoConfig.from_pretrained(os.path.dirname(os.path.abspath(__file__)))
'''
_DATA = '''

def microbatches(seed, device):
    """Random tokens without end: replace them with your data, a different part on every data-parallel rank."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(VOCAB, (MICRO_BATCH, SEQ_LEN), generator=generator).to(device)
        yield {"input_ids": tokens, "labels": tokens}
'''


def script(s: Subject, main: str) -> str:
    """The text of ``train.py``: the common part, then the target's own ``main``."""
    head = _HEAD.format(
        seq_len=s.training.seq_len, micro_batch=s.plan.micro_batch, accumulation=s.microbatches,
        vocab=s.graph.dims["vocab"],
    )  # fmt: skip
    return "\n".join(comment(s)) + "\n" + head + _DATA + main + '\n\nif __name__ == "__main__":\n    main()\n'


def config_json(s: Subject) -> str:
    """The model's ``config.json``, under a name that transformers knows."""
    config: dict[str, Any] = {**s.config, "use_cache": False}
    if (kind := str(config.get("model_type", ""))) in DECLARED:
        config["model_type"] = DECLARED[kind].library_type(kind)
    longest = int(config.get("max_position_embeddings") or 0)
    if "n_positions" not in config and "max_seq_len" not in config:
        rows = s.graph.dims.get("positions", 0)  # keep the size of a table of learned positions
        learned = rows - s.graph.details.positions.offset
        config["max_position_embeddings"] = learned if rows else max(longest, s.training.seq_len)
    return json.dumps(config, indent=2) + "\n"


def losses(s: Subject) -> Iterator[Loss]:
    """Losses of all wrappers of a Hugging Face model: pipelines, sequence parallelism, and the like."""
    if not s.config.get("model_type"):
        yield Loss("model", s.graph.name, "the target builds it from a Hugging Face config.json")
    crossed = any(op.name == "cross_attention" for block in s.graph.blocks.values() for op in block.operators)
    if crossed or not s.graph.has_vocabulary:
        yield Loss("model", s.graph.name, "the script trains causal language models")
    yield from rules.no_single_process(s)
    yield from rules.no_axis(s, "pp", "a pipeline is code of the model here, no option")
    yield from rules.no_axis(s, "ep", "expert parallelism is code of the model here, no option")
    yield from rules.only_rank_orders(s, "tp-cp-dp-pp")
    if s.plan.experts.capacity_factor:
        yield Loss("capacity_factor", s.plan.experts.capacity_factor, "transformers' mixtures drop no token")
    if s.plan.tensor_parallel.sequence_parallel and s.plan.mesh.tp > 1:
        yield Loss("sequence_parallel", True, "tensor parallelism keeps whole sequences: --no-sequence-parallel")
    if s.plan.memory.recompute not in ("none", "full"):
        yield Loss("recompute", s.plan.memory.recompute, "layers are recomputed whole, all or none")
    yield from rules.chosen_losses(
        s, overlap="tensor parallelism overlaps nothing", first_bucket_bytes="buckets have one size"
    )


def optimizer(s: Subject) -> str:
    """The constructor of the optimizer, from ``parameters``."""
    name = s.plan.numerics.optimizer
    momentum = placeholders.momentum(name)
    decay = f"betas={placeholders.BETAS}, weight_decay={placeholders.WEIGHT_DECAY}"
    own = decay if momentum is None else f"momentum={momentum}"
    if (kernels := s.plan.execution.optimizer_kernels) is not None:
        own += f", {KERNELS[kernels]}"
    return f"torch.optim.{OF_TORCH[name]}(model.parameters(), lr={placeholders.LEARNING_RATE}, {own})"


def notes(_: Subject) -> Iterator[str]:
    """Notes on the script for the user."""
    yield "`train.py` feeds random tokens: put your data into `microbatches`. `STEPS` sets the number of steps."

"""A training script for a Hugging Face model, shared by the targets that wrap one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from simpar.architectures.families import DECLARED
from simpar.frameworks import placeholders, rules
from simpar.frameworks.launch import comment
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import OF_TORCH

KERNELS = {"fused": "fused=True", "foreach": "foreach=True", "single": "foreach=False"}
"""Arguments of torch's optimizers by the kernels of their update."""
_HEAD = '''"""Train a causal language model on random tokens."""

import argparse
import os
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB = {vocab}
STEPS = int(os.environ.get("STEPS", "20"))


def arguments():
    """What the launchers say, under Hugging Face's names."""
    parser = argparse.ArgumentParser(description=__doc__)
{declared}
    return parser.parse_args()


def microbatches(given, seed, device):
    """Random tokens without end: replace them with your data, a different part on every data-parallel rank."""
    generator, shape = torch.Generator().manual_seed(seed), (given.per_device_train_batch_size, given.block_size)
    while True:
        tokens = torch.randint(VOCAB, shape, generator=generator).to(device)
        yield {{"input_ids": tokens, "labels": tokens}}
'''
SCRIPT = "train.py"
_DECLARED = {
    "model_name_or_path": 'required=True, help="folder with a config.json"',
    "dtype": 'required=True, help="of parameters, as torch names it"',
    "block_size": 'type=int, required=True, help="tokens of a sequence"',
    "per_device_train_batch_size": 'type=int, required=True, help="sequences of a microbatch"',
    "gradient_accumulation_steps": 'type=int, required=True, help="microbatches of a step"',
    "gradient_checkpointing": 'action="store_true", help="recompute layers in the backward pass"',
}
"""What every script of this module is told by its command, and how argparse reads that."""


def script(s: Subject, main: str, more: Mapping[str, str], *, alone: bool = False) -> str:
    """The text of ``train.py``: the common part, with ``more`` arguments, then the target's own ``main``.

    A script that is started ``alone`` has its arguments as defaults.
    """
    given = dict(word.removeprefix("--").split(" ") for word in _told(s))
    given["dtype"] = f'"{given["dtype"]}"'
    given["model_name_or_path"] = "os.path.dirname(os.path.abspath(__file__))"
    own = {name: how.replace("required=True", f"default={given.get(name)}") for name, how in _DECLARED.items()}
    every = {**(own if alone else _DECLARED), **more}
    declared = (f'    parser.add_argument("--{name}", {how})' for name, how in every.items())
    head = _HEAD.format(vocab=s.graph.dims["vocab"], declared="\n".join(declared))
    return "\n".join(comment(s)) + "\n" + head + main + '\n\nif __name__ == "__main__":\n    main()\n'


def command(s: Subject, *more: str, recomputes: bool) -> list[str]:
    """The script and its arguments, with their values behind them, and ``more``.

    ``recomputes``: the script recomputes layers itself; else another part of the target may.
    """
    return [SCRIPT, *_told(s), *(["--gradient_checkpointing"] if recomputes else []), *more]


def of_model(s: Subject) -> list[str]:
    """The arguments that say what a script trains."""
    return ["--model_name_or_path .", "--dtype float32", f"--block_size {s.training.seq_len}"]


def _told(s: Subject) -> list[str]:
    return [
        *of_model(s),
        f"--per_device_train_batch_size {s.plan.micro_batch}",
        f"--gradient_accumulation_steps {s.microbatches}",
    ]


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


def optimizer_name(s: Subject) -> str:
    """The name of the optimizer for a script's ``--optim``, Hugging Face's where it has one."""
    name, kernels = s.plan.numerics.optimizer, s.plan.execution.optimizer_kernels
    return {"adamw": "adamw_torch"}.get(name, name) + (f"_{kernels}" if kernels in ("fused", "single") else "")


def optimizer(s: Subject) -> str:
    """The constructor of the optimizer, from ``parameters``."""
    name = s.plan.numerics.optimizer
    momentum = placeholders.momentum(name)
    decay = f"betas={placeholders.BETAS}, weight_decay={placeholders.WEIGHT_DECAY}"
    own = decay if momentum is None else f"momentum={momentum}"
    if (kernels := s.plan.execution.optimizer_kernels) is not None:
        own += f", {KERNELS[kernels]}"
    return f"torch.optim.{OF_TORCH[name]}(parameters, lr={placeholders.LEARNING_RATE}, {own})"


def notes(_: Subject) -> Iterator[str]:
    """Notes on the script for the user."""
    yield "`train.py` feeds random tokens: put your data into `microbatches`. `STEPS` sets the number of steps."

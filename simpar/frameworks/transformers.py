"""Hugging Face's Trainer: its arguments as JSON, and a script that trains a model of the plan's architecture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from simpar.frameworks import hugging_face, trainer_arguments
from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.recipes import nested
from simpar.frameworks.subject import Subject
from simpar.frameworks.target import Options, Target

CONFIG = "training_args.json"
_SCRIPT = '''"""Train a causal language model on random tokens with Hugging Face's Trainer."""

import os

import torch
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

HERE = os.path.dirname(os.path.abspath(__file__))
SEQ_LEN, VOCAB, SAMPLES = {seq_len}, {vocab}, 1 << 20


class RandomTokens(torch.utils.data.Dataset):
    """Random tokens: replace them with your data."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        tokens = torch.randint(VOCAB, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {{"input_ids": tokens, "labels": tokens}}


def main():
    """Build the model, let the Trainer shard it, train."""
    (arguments,) = HfArgumentParser(TrainingArguments).parse_json_file(os.path.join(HERE, "{config}"))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(HERE), dtype=torch.float32)
    Trainer(model=model, args=arguments, train_dataset=RandomTokens()).train()


if __name__ == "__main__":
    main()
'''


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The arguments, the model's config, the script and the launchers."""
    script = _SCRIPT.format(seq_len=s.training.seq_len, vocab=s.graph.dims["vocab"], config=CONFIG)
    return {
        CONFIG: json.dumps(nested(given), indent=2) + "\n",
        "config.json": hugging_face.config_json(s),
        "train.py": "\n".join(comment(s)) + "\n" + script,
        **launchers(s, ["train.py"]),
    }


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    yield "`train.py` feeds random tokens: put your data into `RandomTokens`. Needs `accelerate`."
    yield from trainer_arguments.notes(s)


TRANSFORMERS = Target(
    name="transformers",
    description="Hugging Face's Trainer: TrainingArguments with FSDP, and a script",
    version=trainer_arguments.PARSER,
    stacks=("fsdp",),
    losses=trainer_arguments.losses,
    options=trainer_arguments.arguments,
    files=files,
    notes=notes,
    features=("offload", "a part"),
    numerics=trainer_arguments.NUMERICS,
)

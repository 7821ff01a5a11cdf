"""What a model's numbers are made of reaches every target: each field of its details is written, or listed as lost."""

import json
from dataclasses import fields, is_dataclass, replace
from functools import cache

import pytest

from simpar import frameworks
from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.details import Details, Rope
from simpar.architectures.hf_config import read as read_config
from tests.gate import some

from .conftest import TRAINING, checked

LLAMA, LEARNED, MIXTURE, LATENT, HYBRID, NEMOTRON, DROPPING = (
    "llama-3.1-8b", "gpt3-6.7b", "mixtral-8x7b", "deepseek-v2-lite", "nemotron-h-8b", "nemotron-3-nano",
    "megatron-7.5b",
)  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
OTHERS = {
    "activation": [(LLAMA, "gelu"), (LEARNED, "gelu"), (MIXTURE, "gelu")],
    "norm_eps": [(LLAMA, 0.001), (LEARNED, 0.001), (MIXTURE, 0.001), (HYBRID, 0.001)],
    "norm_offset": [(LLAMA, 1.0)],
    "init_std": [(LLAMA, 0.5), (HYBRID, 0.5)],
    "positions.rope.theta": [(LLAMA, 12_345.0), (MIXTURE, 12_345.0), (LATENT, 12_345.0)],
    "positions.rope.fraction": [(LLAMA, 0.5), (MIXTURE, 0.5)],
    "positions.rope.scaling": [(LLAMA, LINEAR), (MIXTURE, LINEAR), (LATENT, LINEAR)],
    "positions.rope.interleaved": [(LLAMA, True), (LATENT, False)],
    "positions.windowed": [(LLAMA, Rope(12_345.0))],
    "positions.alibi": [(LLAMA, True)],
    "positions.offset": [(LEARNED, 2)],
    "dropout.embedding": [(DROPPING, 0.3)],
    "dropout.attention": [(DROPPING, 0.3)],
    "dropout.residual": [(DROPPING, 0.3)],
    "scales.embedding": [(LLAMA, 2.0), (HYBRID, 2.0)],
    "scales.residual": [(LLAMA, 2.0), (HYBRID, 2.0)],
    "scales.logits": [(LLAMA, 2.0), (HYBRID, 2.0)],
    "scales.attention": [(LLAMA, 2.0), (LATENT, 2.0)],
    "caps.attention": [(LLAMA, 30.0), (HYBRID, 30.0)],
    "caps.logits": [(LLAMA, 30.0), (HYBRID, 30.0)],
    "caps.projections": [(LLAMA, 8.0), (MIXTURE, 8.0)],
    "gating.score": [(MIXTURE, "sigmoid"), (LATENT, "sigmoid"), (NEMOTRON, "softmax")],
    "gating.normalised": [(MIXTURE, False), (LATENT, True)],
    "gating.factor": [(MIXTURE, 2.5), (LATENT, 2.5), (NEMOTRON, 7.0)],
    "gating.bias": [("deepseek-v3", "added"), (NEMOTRON, "added")],
    "gating.pairs": [("deepseek-v3", False)],
    "steps": [(HYBRID, (0.5, None)), (HYBRID, (0.0, 0.5))],
}
"""Another value of every field, for models in which it means something."""
SAID = ("unread", "unbuilt")
"""Fields that are themselves about what is not understood: notes and losses tell them."""
GATE = ("axolotl", "maxtext", "megatron", "torchtitan")
"""Targets that are tried in the gate: of a trainer and of each way to describe a model."""
CONFIGS = ("deepspeed", "accelerate", "sagemaker", "transformers")
"""Targets that get the model's config.json, which is where details come from."""


def leaves(kind, prefix=""):
    """Dotted names of the fields of a dataclass, those of its parts by their own names."""
    for field in fields(kind):
        part = field.default_factory() if callable(field.default_factory) else field.default
        if is_dataclass(part):
            yield from leaves(type(part), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def other(details, name, value):
    """The details with another value of one field."""
    first, _, rest = name.partition(".")
    return replace(details, **{first: other(getattr(details, first), rest, value) if rest else value})


def told(graph, target):
    """What the files and the losses of an export say."""
    plan = checked(model=graph.name, dp=8, zero=0)
    made = frameworks.export(plan, graph, TRAINING, target, lossy=True)
    files = {name: text for name, text in made.files.items() if name not in ("README.md", "plan.json")}
    return files, {str(loss) for loss in made.lost}


def test_every_field_has_another_value_here():
    """A field that is added to the details is tried on every target."""
    assert set(leaves(Details)) == {*OTHERS, *SAID}


@pytest.mark.parametrize("target", some([name for name in frameworks.TARGETS if name not in CONFIGS], GATE))
def test_no_detail_is_dropped(target):
    """Another value gives other files, or a loss; a model of which nothing could be said says nothing here."""
    dropped, usual = [], cache(lambda model: told(load_model(model), target))
    for name, tries in OTHERS.items():
        for model, value in tries:
            graph = load_model(model)
            files, lost = usual(model)
            if any(loss.startswith("model = ") for loss in lost):
                continue
            changed, reasons = told(replace(graph, details=other(graph.details, name, value)), target)
            if changed == files and not reasons - lost:
                dropped.append(f"{name} of {model}")
    assert not dropped


@pytest.mark.parametrize("target", CONFIGS)
def test_configs_come_back(target):
    """Every shipped model's config.json gives the graph that was exported, details and all."""
    for model in {model for tries in OTHERS.values() for model, _ in tries} | {"gemma-3-1b", "gpt-oss-20b", "kimi-k2"}:
        graph = load_model(model)
        files, _ = told(graph, target)
        assert replace(read_config(json.loads(files["config.json"]), model), name=model) == graph, config_of(model)

"""Facts of public files, written as those files are, and what an import and a simulation find in each."""

import json
from pathlib import Path

import pytest

from simpar import files
from simpar.export import read
from simpar.export.deepspeed import nested
from simpar.hardware.catalogue import load_cluster
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.simulation import simulate

CORPUS = {entry["name"]: entry for entry in files.load(Path(__file__).parent / "corpus.yaml").data}
TARGETS = {
    "shell": ("megatron", "train.sh"), "megatron-yaml": ("megatron", "model.yaml"),
    "toml": ("torchtitan-0.2", "job.toml"), "torchtitan": ("torchtitan", "models/llama3/config_registry.py:recipe"),
    "bridge": ("megatron-bridge", "llama3.py"),
    "nemo": ("megatron-bridge", "llama3_70b.py:pretrain_recipe_performance"),
    "nanotron": ("nanotron", "config.yaml"), "accelerate": ("accelerate", "fsdp.yaml"),
    "deepspeed": ("deepspeed", "ds_config.json"),
}  # fmt: skip


def shell(facts):
    """A launcher: arguments as variables with defaults, in an array, and in quoted groups."""
    head, array, quoted, words = ["#!/bin/bash"], [], [], []
    for number, (name, value) in enumerate(facts.items()):
        if value is True:
            array.append(f"  --{name}  # a switch")
        elif number % 3 == 0 and " " not in str(value):
            head.append(f'V{number}=${{V{number}:-"{value}"}}')
            words.append(f"--{name} ${{V{number}}}")
        elif number % 3 == 1:
            quoted.append(f'  "--{name} {value}"')
        else:
            array.append(f"  --{name} {value}")
    lines = [*head, "ARGS=(", *array, ")", "if [[ 1 -eq 1 ]]; then ARGS+=(", *quoted, "); fi"]
    return "\n".join([*lines, f"torchrun --nnodes 4 pretrain_gpt.py ${{ARGS[@]}} {' '.join(words)}"]) + "\n"


def toml(facts):
    """Sections of dotted names."""
    sections = {}
    for key, value in facts.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    return "\n".join(line for name, lines in sections.items() for line in (f"[{name}]", *lines)) + "\n"


def torchtitan(facts):
    """A registry with two recipes: what they share, and the one that is asked for."""
    calls = []
    for section, made in (("training", "TrainingConfig"), ("parallelism", "ParallelismConfig")):
        own = {
            key.removeprefix(f"{section}."): value for key, value in facts.items() if key.startswith(section)
        }
        calls.append(f"{section}={made}({', '.join(f'{key}={value!r}' for key, value in own.items())})")
    calls += [f"model_spec=model_registry('{facts['flavor']}')"]
    calls += [f"activation_checkpoint={facts['activation_checkpoint']}.Config()"]
    other = "def other():\n    config = recipe()\n    config.x = 1\n    return config\n"
    return f"def recipe():\n    return Trainer.Config({', '.join(calls)})\n{other}"


def bridge(facts):
    """A recipe of Megatron-Bridge: what recipes have in common, then fields one by one."""
    lines = [
        "def pretrain_config():",
        "    cfg = _pretrain_common()",
        f"    cfg.model = AutoBridge.from_hf_pretrained({facts['hub']!r}).to_megatron_provider(load_weights=False)",
        *(f"    cfg.{key} = {value!r}" for key, value in facts.items() if key != "hub"),
        "    return cfg",
    ]
    return "\n".join(lines) + "\n"


def nemo(facts):
    """A recipe of NeMo 2: functions with defaults, and one that builds on another."""
    data = ("seq_length", "global_batch_size", "micro_batch_size")
    strategy = [k for k in facts if k not in (*data, "config", "plugins")]
    return f"""
def trainer({", ".join(f"a_{k}={facts[k]!r}" for k in strategy)}, callbacks=None):
    strategy = run.Config(nl.MegatronStrategy, {", ".join(f"{k}=a_{k}" for k in strategy)},
                          ddp=run.Config(Ddp, grad_reduce_in_fp32=True, overlap_grad_reduce=True))
    return run.Config(nl.Trainer, strategy=strategy, plugins={facts["plugins"]}(), callbacks=callbacks)
def pretrain_recipe(fn=pretrain):
    return run.Partial(fn, model=run.Config(LlamaModel, config=run.Config({facts["config"]})),
                       trainer=trainer(callbacks=[run.Config(Timing)]),
                       data=run.Config(Mock, {", ".join(f"{k}={facts[k]!r}" for k in data)}))
def pretrain_recipe_performance(fn=pretrain):
    recipe = pretrain_recipe(fn=fn)
    recipe.trainer.callbacks.append(run.Config(Overlap, tp_comm_overlap=True))
    return recipe
"""


WRITERS = {
    "shell": shell, "megatron-yaml": lambda facts: json.dumps({"ARGS": facts}), "toml": toml, "torchtitan": torchtitan,
    "bridge": bridge, "nemo": nemo, "nanotron": lambda facts: json.dumps(nested(facts)),
    "accelerate": lambda facts: json.dumps(nested(facts)), "deepspeed": lambda facts: json.dumps(nested(facts)),
}  # fmt: skip


def imported(entry):
    """What is read of an entry's file."""
    target, name = TARGETS[entry["form"]]
    return read(WRITERS[entry["form"]](entry["facts"]), name, target)


@pytest.mark.parametrize("name", CORPUS)
def test_what_a_public_file_says_is_found(name):
    """Every fact of the plan, the step's shape, what is listed as no part of a plan, and what a note says."""
    entry = CORPUS[name]
    found = imported(entry)
    values = {"model": found.plan.model, "stack": found.plan.stack, **found.plan.flat_values()}
    expected = entry["finds"]
    assert {key: values.get(key) for key in expected} == {
        key: list(value) if isinstance(value, list) else value for key, value in expected.items()
    }
    assert found.plan.training == entry.get("training")
    assert set(entry.get("ignored", ())) <= set(found.ignored)
    assert any(entry.get("notes", "") in note for note in (*found.notes, ""))


@pytest.mark.parametrize("name", [name for name, entry in CORPUS.items() if "on" in entry])
def test_what_was_imported_can_be_simulated(name):
    """On the cluster it is for, with the batch that the number of nodes leaves open."""
    entry = CORPUS[name]
    plan, place = imported(entry).plan, entry["on"]
    cluster = load_cluster(place["hardware"], nodes=place["nodes"])
    training = Training.model_validate({"global_batch": place.get("global_batch"), **plan.training})
    result = simulate(load_model(plan.model), cluster, plan, training, with_timeline=False)
    least, most = place["tokens_per_second"]
    assert least < training.tokens_per_step / result.step_time_s < most


def test_there_are_twenty():
    """Each with the address that its facts are from."""
    assert len(CORPUS) >= 20
    assert all("/" in entry["source"] for entry in CORPUS.values())

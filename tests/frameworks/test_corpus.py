"""Facts of public files, written as those files are, and what an import and a simulation find in each."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simpar import files
from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.architectures.training import Training
from simpar.frameworks import read
from simpar.frameworks.recipes import nest_names
from simpar.hardware.catalogue import load_cluster
from simpar.simulation import simulate
from tests.gate import some

CORPUS = {entry["name"]: entry for entry in files.load(Path(__file__).parent / "corpus.yaml").data}
QUICK = (
    "megatron-llama3-8b-fp8", "torchtitan-deepseek-v3", "bridge-qwen3-30b", "nanotron-qwen", "swift-qwen2.5-7b-zero2",
    "openrlhf-llama3-8b-sft",
)  # fmt: skip
"""Dense models and mixtures from frameworks that say most things differently, with few microbatches."""
SHARDS_FP32 = ("torchtitan", "torchtitan-eager", "fsdp", "huggingface", "verl", "automodel")
"""Stacks that shard parameters and gradients in fp32."""
TARGETS = {
    "shell": ("megatron", "train.sh"), "megatron-yaml": ("megatron", "model.yaml"),
    "toml": ("torchtitan-0.2", "job.toml"), "torchtitan": ("torchtitan", "models/llama3/config_registry.py:recipe"),
    "bridge": ("megatron-bridge", "llama3.py"),
    "nemo": ("megatron-bridge", "llama3_70b.py:pretrain_recipe_performance"),
    "nanotron": ("nanotron", "config.yaml"), "accelerate": ("accelerate", "fsdp.yaml"),
    "deepspeed": ("deepspeed", "ds_config.json"), "primus": ("primus", "experiment.yaml"),
    "megatron-swift": ("megatron-swift", "train.sh"), "swift": ("swift", "train.sh"),
    **{name: (name, "train.sh") for name in ("verl", "slime", "openrlhf")},
    "nemo-1": ("nemo-1", "gpt.yaml"), "flagscale": ("flagscale", "70b.yaml"),
    "automodel": ("automodel", "recipe.yaml"), "maxtext": ("maxtext", "train.sh"),
    "gpt-neox": ("gpt-neox", "20B.yml"), "llm-foundry": ("llm-foundry", "mpt.yaml"),
    "lingua": ("lingua", "llama.yaml"), "autotrain": ("autotrain", "config.yml"),
    "picotron": ("picotron", "config.json"), "olmo": ("olmo", "OLMo.yaml"),
    "nemo-rl": ("nemo-rl", "grpo.yaml"), "oumi": ("oumi", "train.yaml"), "veomni": ("veomni", "train.yaml"),
    "arctic-training": ("arctic-training", "run.yml"), "script": ("script", "train.py"),
    **{name: (name, "train.sh") for name in ("megatron-deepspeed", "mindspeed", "pai-megatron-patch")},
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
        own = {key.removeprefix(f"{section}."): value for key, value in facts.items() if key.startswith(section)}
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
        f"    cfg.model = AutoBridge.from_hf_pretrained({facts['hub']!r}).to_megatron_provider(load_weights=False)"
        if "hub" in facts else f"    cfg.model = {facts['provider']}()",
        *(f"    cfg.{key} = {value!r}" for key, value in facts.items() if key not in ("hub", "provider")),
        "    return cfg",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def nemo(facts):
    """A recipe of NeMo 2: functions with defaults, and one that builds on another."""
    data = ("seq_length", "global_batch_size", "micro_batch_size")
    strategy = [k for k in facts if k not in (*data, "config", "plugins", "optim")]
    return f"""
def trainer({", ".join(f"a_{k}={facts[k]!r}" for k in strategy)}, callbacks=None):
    strategy = run.Config(nl.MegatronStrategy, {", ".join(f"{k}=a_{k}" for k in strategy)},
                          ddp=run.Config(Ddp, grad_reduce_in_fp32=True, overlap_grad_reduce=True))
    return run.Config(nl.Trainer, strategy=strategy, plugins={facts["plugins"]}(), callbacks=callbacks)
def pretrain_recipe(fn=pretrain):
    return run.Partial(fn, model=run.Config(LlamaModel, config=run.Config({facts["config"]})),
                       trainer=trainer(callbacks=[run.Config(Timing)]),
                       data=run.Config(Mock, {", ".join(f"{k}={facts[k]!r}" for k in data)}),
                       optim={facts["optim"]}(max_lr=3e-4))
def pretrain_recipe_performance(fn=pretrain):
    recipe = pretrain_recipe(fn=fn)
    recipe.trainer.callbacks.append(run.Config(Overlap, tp_comm_overlap=True))
    return recipe
"""


def swift(facts, program="megatron"):
    """A command of ms-swift, whose switches have words; those in upper case are variables before it."""
    told = [f"--{name} {value}" for name, value in facts.items() if not name.isupper()]
    before = {"NPROC_PER_NODE": 8} | {name: value for name, value in facts.items() if name.isupper()}
    return " ".join([*(f"{name}={value}" for name, value in before.items()), program, "sft", *told])


def verl(facts):
    """Options in Hydra; long sections are told by their first letters."""
    sections = {"A": "actor_rollout_ref.actor", "M": "actor_rollout_ref.model", "R": "actor_rollout_ref.rollout"}
    named = {f"{sections.get(start, start)}.{rest}": value for (start, _, rest), value in
             ((key.partition("."), value) for key, value in facts.items() if "." in key)}  # fmt: skip
    flags = [f"--{key}={value}" for key, value in facts.items() if "." not in key]
    return " ".join(["python3 -m verl.trainer.main_ppo", *flags, *(f"{key}={value}" for key, value in named.items())])


def started(command):
    """A command with long options; true is a switch."""
    return lambda facts: " ".join(
        [command, *(f"--{name}" if value is True else f"--{name} {value}" for name, value in facts.items())]
    )


def maxtext(facts):
    """A command with the base config."""
    words = (f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in facts.items())
    return " ".join(["python3 -m maxtext.trainers.pre_train.train configs/base.yml", *words])


def script(facts):
    """A script in Python: calls with their keywords, of which some are names that it assigns before."""
    calls, lines = {}, ["from unsloth import FastLanguageModel"]
    for number, (name, value) in enumerate(facts.items()):
        call, _, key = name.rpartition(".")
        if number % 3 == 0:
            lines.append(f"value_{number} = {value!r}")
        calls.setdefault(call, []).append(f"{key}={f'value_{number}' if number % 3 == 0 else repr(value)}")
    return "\n".join([*lines, *(f"made = {call}({', '.join(told)})" for call, told in calls.items())]) + "\n"


def primus(facts):
    """An experiment of Primus: a model by the name of its file, and what is laid over the defaults."""
    overrides = {key: value for key, value in facts.items() if key not in ("model", "framework")}
    module = {
        "framework": facts.get("framework", "megatron"),
        "config": "pre_trainer.yaml",
        "model": facts["model"],
        "overrides": overrides,
    }
    return json.dumps({"modules": {"pre_trainer": module}})


WRITERS = {
    **dict.fromkeys(("megatron-deepspeed", "mindspeed", "pai-megatron-patch"), shell), "megatron-swift": swift,
    "swift": lambda facts: swift(facts, "swift"),
    "primus": primus, "verl": verl, "slime": started("python3 train.py"),
    "openrlhf": started("deepspeed --module openrlhf.cli.train_sft"),
    "maxtext": maxtext, "script": script,
    **dict.fromkeys(
        ("oumi", "veomni", "arctic-training",
         "nemo-1", "flagscale", "nemo-rl",
         "automodel", "gpt-neox", "llm-foundry", "lingua", "olmo", "autotrain", "picotron"),
        lambda facts: json.dumps(nest_names(facts)),
    ),
    "shell": shell, "megatron-yaml": lambda facts: json.dumps({"ARGS": facts}), "toml": toml, "torchtitan": torchtitan,
    "bridge": bridge, "nemo": nemo, "nanotron": lambda facts: json.dumps(nest_names(facts)),
    "accelerate": lambda facts: json.dumps(nest_names(facts)), "deepspeed": lambda facts: json.dumps(nest_names(facts)),
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


def placed(entry):
    """The model, the cluster, the plan and the step's shape of an entry: what its file says and what it leaves open."""
    found, place = imported(entry), entry["on"]
    cluster = load_cluster(place["hardware"], nodes=place["nodes"])
    if "devices" in place:  # of one node
        cluster = replace(cluster, profile=cluster.profile.model_copy(update={"devices_per_node": place["devices"]}))
    plan = found.placed(cluster.world_size, place.get("global_batch"))
    shape = {key: place[key] for key in ("seq_len", "global_batch") if key in place}
    training = Training.model_validate({**shape, **(plan.training or {})})
    config = entry.get("config") or found.config
    graph = read_config(config) if config else load_model(plan.model or place["model"])
    return graph, cluster, plan, training


def state_bytes(known, plan, cluster):
    """Bytes of weights, gradients and optimizer states of a rank where stages are alike.

    Megatron-LM keeps 2 bytes of a weight, 2 or 4 of its gradient, and 12 of fp32 weights and two moments, which the
    distributed optimizer shards (Megatron Core's guide, Distributed Optimizer: 18, and 6 + 12/d); fp32 trains with
    8 + 8/d. FSDP shards 4 + 4 + 8, DeepSpeed 2 + 12 of 16; weights that are bf16 alone have 2 bytes of each.
    """
    mesh, world = plan.mesh, cluster.world_size
    whole = known.get("fullest", known["parameters"] / mesh.pp) * mesh.pp * 1e9
    zero, experts = plan.data_parallel.zero, known.get("experts", 0) * 1e9
    own = (whole - experts) / (mesh.tp * mesh.pp) + experts / (mesh.ep * (mesh.etp or mesh.tp) * mesh.pp)
    if plan.numerics.moment_dtype == "bf16":
        kept, sharded = 4, 4
    elif plan.stack == "deepspeed" and zero > 1:
        kept, sharded = 2, 14
    elif plan.numerics.precision == "fp32" or plan.stack in SHARDS_FP32:
        kept, sharded = 8, 8
    else:
        kept, sharded = 2 + (2 if plan.numerics.grad_dtype == "bf16" else 4), 12
    return (kept + sharded) * whole / world if zero == 3 else kept * own + sharded * (whole / world if zero else own)


def flop_per_token(known, seq_len):
    """6 FLOP a weight that a token meets, and those of attention to all of its sequence, forward and twice backward."""
    shape = known["shape"]
    weights = (known.get("active", known["parameters"]) + known.get("further", 0)) * 1e9
    weights -= 0 if known.get("tied") else shape["vocab"] * shape["hidden"]  # a table that is looked up
    seen = (shape["layers"] + ("further" in known)) * shape.get("keys", seq_len)
    return 6 * weights + 6 * shape["heads"] * shape["head"] * seen


@pytest.mark.parametrize("name", some([name for name, entry in CORPUS.items() if "is" in entry], QUICK))
def test_what_was_imported_can_be_simulated(name):
    """Parameters, FLOP of a token, bytes of states, and a speed that devices have, all from facts outside of simpar."""
    entry = CORPUS[name]
    graph, cluster, plan, training = placed(entry)
    result, known = simulate(graph, cluster, plan, training, with_timeline=False), entry["is"]
    digits = len(str(known["parameters"]).partition(".")[2])
    assert round(graph.num_parameters() / 1e9, digits) == known["parameters"]
    tokens = training.seq_len * training.global_batch
    flop, mixture = flop_per_token(known, training.seq_len), "active" in known
    assert result.speed.model_flops_per_step == pytest.approx(flop * tokens, rel=0.02 if mixture else 0.01)
    states = state_bytes(known, plan, cluster)
    assert 0.98 * states < result.memory.static_memory_bytes < 1.5 * states  # stages that are not alike, buckets
    assert result.memory.peak_reserved_bytes > result.memory.static_memory_bytes
    assert result.fits or "fits" not in known
    if "reserved_gib" in known:
        assert result.memory.peak_reserved_bytes / 2**30 == pytest.approx(known["reserved_gib"], rel=0.05)
    rate = flop * tokens / result.step_time_s / cluster.world_size
    assert (0.05 if known["parameters"] > 1 else 0) < rate / (known["peak"] * 1e12) < 0.75
    least, most = entry["on"].get("tokens_per_second", (0, float("inf")))
    assert least < tokens / result.step_time_s < most


@pytest.mark.parametrize("name", [name for name, entry in CORPUS.items() if "counts" in entry])
def test_what_was_read_is_the_model_of_the_file(name):
    """Parameters, and devices where the file says them, from facts outside of simpar."""
    known, found = CORPUS[name]["counts"], imported(CORPUS[name])
    graph = load_model(found.plan.model) if found.plan.model else read_config(found.config)
    digits = len(str(known["parameters"]).partition(".")[2])
    assert round(graph.num_parameters() / 1e9, digits) == known["parameters"]
    assert found.plan.world_size in (None, known.get("devices", found.plan.world_size))
    assert "devices" not in known or found.plan.world_size == known["devices"]


def test_every_file_is_simulated_or_says_why_not():
    """Those that name no model cannot be; of some only what is read is held."""
    assert sum("is" in entry for entry in CORPUS.values()) >= 18
    assert sum("is" in entry or "counts" in entry for entry in CORPUS.values()) >= 35
    for entry in CORPUS.values():
        assert sum(kind in entry for kind in ("is", "alone", "reads", "counts")) == 1
        if "alone" in entry:
            assert imported(entry).plan.model is None


def test_there_are_twenty():
    """Each with the address that its facts are from."""
    assert len(CORPUS) >= 20
    assert all("/" in entry["source"] for entry in CORPUS.values())

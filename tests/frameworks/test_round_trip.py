"""Export, then import, gives the plan back: for every target that is read, of every plan that it can express.

So do the launchers beside the config: they say what stands in the words of their commands only.
"""

import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import assume
from hypothesis import strategies as st

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks import READ_AS, READERS, TARGETS, load_target, read, unsupported
from simpar.frameworks.overrides import with_texts
from simpar.frameworks.subject import settle
from simpar.layout.decide import complete_plan
from simpar.layout.deciders import resolve
from simpar.plan.choices.target import Workload
from simpar.preflight.given import given_file
from simpar.stacks.stack import load_stack
from tests.gate import assert_law

from .conftest import TRAINING, checked, exported

FILES = {
    "megatron": "command.sh", "megatron-bridge": "simpar_recipe.py", "nemo-run": "simpar_recipe.py",
    "torchtitan": "simpar_recipe.py", "torchtitan-main": "simpar_recipe.py", "torchtitan-0.2": "torchtitan.toml",
    "deepspeed": "ds_config.json", "accelerate": "accelerate.yaml", "nanotron": "nanotron.yaml",
    "maxtext": "maxtext.yml", "transformers": "training_args.json", "trl": "sft.yaml", "axolotl": "axolotl.yaml",
    "llama-factory": "train.yaml",
}  # fmt: skip
IN_SCRIPT = {
    "deepspeed": ("recompute",),
    "accelerate": ("recompute", "optimizer", "micro_batch", "attention_kernel", "loss_chunks", "defer_grad_reduce"),
    "transformers": ("attention_kernel",),
}
"""What a target has in the words of its command, not in its config."""
LAUNCHERS = ("local.sh", "slurm.sh", "pytorchjob.yaml")
GATE = ("megatron", "deepspeed")
DENSE = ("llama-3.1-8b", "llama-2-7b", "qwen3-8b", "gpt3-1.3b", "gemma-2-9b", "gemma-3-4b", "nemotron-h-8b")
MIXTURES = ("qwen3-30b-a3b", "mixtral-8x7b")
CLUSTER = simpar.Cluster("dgx-b200")
CHOICES = {
    "tp": (1, 2, 4), "cp": (1, 2), "pp": (1, 2, 4), "vpp": (1, 2), "zero": (0, 1, 2, 3), "hsdp": (1, 2),
    "micro_batch": (1, 2), "sequence_parallel": (True, False),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"),
    "recompute": ("none", "full", "selective", "every:2", "modules:core_attn+layernorm"),
    "precision": ("bf16", "fp16", "fp8", "mxfp8", "fp32"), "optimizer": ("adamw", "sgd"),
    "grad_dtype": ("fp32", "bf16"), "master_weights": (True, False), "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False), "bucket_bytes": ("25 MiB",), "loss_chunks": (4,),
    "cp_method": ("ring", "all_gather", "ulysses"), "offload_optimizer": ("cpu",), "offload_parameters": ("cpu",),
    "attention_kernel": ("flash2", "sdpa"), "reshard_after_forward": (True, False), "lora_rank": (8, 16),
    "defer_grad_reduce": (True, False), "master_dtype": ("remainder", "fp16", "fp32"),
    "lora_targets": (("q_proj", "v_proj"), ("o_proj", "gate_proj", "up_proj", "down_proj")),
    "lora_dropout": (0.0, 0.1), "frozen_dtype": ("nf4", "int8", "fp32", "fp8"),
}  # fmt: skip
OF_EXPERTS = {
    "ep": (1, 2, 4), "etp": (1,), "capacity_factor": (1.5,), "ep_overlap": (True,), "token_dispatch": ("per_node",),
}  # fmt: skip


NEEDED = {"axolotl": {"master_weights": False, "zero": 3}, "maxtext": {"recompute": "full"}}
"""What every plan has that a target can express."""
ADAPTED = {name: {"lora_rank": 16} for name in ("lora_targets", "lora_dropout", "frozen_dtype")}
BESIDE = {"schedule": {"pp": 2}, "vpp": {"pp": 2}, **ADAPTED}
"""What a choice means nothing without, or is refused."""

BUCKETS_APART = 1e-3
"""Part of a step by which buckets of torch's DDP, as trainers are read, differ from the stack's for few gradients."""


@cache
def expressed_alone(target, model):
    """The choices that a target expresses where nothing else is chosen: with others, most draws would be refused."""
    graph, result = load_model(model), {}
    for name, values in ({**CHOICES, **OF_EXPERTS} if model in MIXTURES else CHOICES).items():
        for value in values:
            try:
                plan = checked(model=model, **{**NEEDED.get(target, {}), **BESIDE.get(name, {}), name: value})
            except UserError:  # not without another choice
                result.setdefault(name, []).append(value)
                continue
            if not unsupported(plan, graph, TRAINING, target):
                result.setdefault(name, []).append(value)
    return result


@cache
def models_of(target):
    """Models that a target expresses, with what every plan of it needs."""
    needed = NEEDED.get(target, {})
    known = {model: checked(model=model, **needed) for model in DENSE + MIXTURES}
    return [model for model, plan in known.items() if not unsupported(plan, load_model(model), TRAINING, target)]


@st.composite
def layouts(draw, target):
    """A model and up to five choices of its plan, of which those are left out that say nothing beside others."""
    model = draw(st.sampled_from(models_of(target)))
    choices = expressed_alone(target, model)
    names = draw(st.lists(st.sampled_from(sorted(choices)), max_size=5, unique=True))
    values = {name: draw(st.sampled_from(choices[name])) for name in names}
    for name in list(values):
        values = {**BESIDE.get(name, {}), **values}
    return model, {**NEEDED.get(target, {}), **values}


def predicted(plan, graph, stack):
    """Step time in s and peak memory in bytes, under a stack."""
    result = simpar.simulate(graph, CLUSTER, plan, TRAINING, stack=stack)
    return result.step_time_s, result.memory.peak_memory_bytes


def sent(target, model, values):
    """The plan of some choices, and the files that a target writes for it."""
    try:
        plan = checked(model=model, **values)
    except UserError:
        assume(False)  # no layout at all
    assume(not unsupported(plan, load_model(model), TRAINING, target))
    return plan, exported(target, plan)


def assert_comes_back(target, model, values):
    """The plan of the config is the one that went, but for what the command says."""
    plan, files = sent(target, model, values)
    with with_texts(files):
        found = read(files[FILES[target]], FILES[target], target)
    assert_same(target, plan, found.plan, IN_SCRIPT.get(target, ()))


def assert_launchers_come_back(target, model, values):
    """Every launcher gives the whole plan back, and the shape of a step where it says one."""
    plan, files = sent(target, model, values)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).write_text(text)
        for name in files.keys() & set(LAUNCHERS):
            found = given_file(str(Path(folder, name))).found
            told = {"seq_len": TRAINING.seq_len, **(found.plan.training or {})}
            assert told["seq_len"] == TRAINING.seq_len
            assert found.global_batch(8) in (None, TRAINING.global_batch)
            assert_same(target, plan, found.placed(8, TRAINING.global_batch))


def assert_same(target, plan, back, unsaid=()):
    """A plan is the one that went, or what differs has no effect: step and memory to the last bit."""
    model = plan.model
    graph, stack = load_model(model), load_target(target).stack
    assert back.model is None or load_model(back.model).dims == graph.dims
    whole = complete_plan(back.model_copy(update={"model": model}), Workload(graph, TRAINING, 8, 8))
    whole = resolve(whole, load_stack(back.stack or stack)).model_copy(update={"stack": None})
    if (
        plan.offload.offload_gradients is None
    ):  # the stack of a plan without one keeps them; that of the target does not
        whole = whole.with_values(offload_gradients=None)
    found, expected = settle(whole, stack)[0], settle(plan, stack)[0]
    there = expected.flat_values()
    found = found.with_values(**{name: there.get(name) for name in unsaid})
    if found.flat_values() != there:
        near = BUCKETS_APART if plan.tuning.is_used else 0.0
        assert predicted(found, graph, stack) == pytest.approx(predicted(expected, graph, stack), rel=near, abs=0.0)


def test_every_target_that_is_read_is_tried():
    """The others have no reader."""
    assert set(FILES) == {name for name in TARGETS if READ_AS.get(name, name) in READERS}


@pytest.mark.parametrize(
    ("target", "examples"),
    [pytest.param(target, 100, marks=pytest.mark.slow) for target in FILES] + [(target, 3) for target in GATE],
)
def test_what_is_exported_comes_back(target, examples):
    """For drawn plans: a few in the gate, many when slow."""
    assert_law(lambda drawn: assert_comes_back(target, *drawn), examples, drawn=layouts(target))


@pytest.mark.parametrize("target", FILES)
def test_what_launchers_of_a_plain_plan_say_comes_back(target):
    """Of a plan with nothing but what the target needs, for every target."""
    plain = st.just((models_of(target)[0], NEEDED.get(target, {})))
    assert_law(lambda drawn: assert_launchers_come_back(target, *drawn), 1, drawn=plain)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "examples"), [(target, 40) for target in FILES])
def test_what_its_launchers_say_comes_back(target, examples):
    """Scripts of this machine and of SLURM, and the job of Kubernetes, with the files beside them."""
    assert_law(lambda drawn: assert_launchers_come_back(target, *drawn), examples, drawn=layouts(target))

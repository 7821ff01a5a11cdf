"""Fused operators, kernels of the update and the update in the backward: written where a target has a key for them."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import TARGETS, load_reader, load_target, read, unsupported
from simpar.plan.plan import Plan

from .conftest import TRAINING, checked, exported

TRAINERS = {"transformers": "training_args.json", "trl": "sft.yaml", "axolotl": "axolotl.yaml",
            "llama-factory": "train.yaml"}  # fmt: skip
READ_BACK = [
    ("torchtitan-0.2", "torchtitan.toml", {"optimizer_kernels": "foreach"}),
    ("torchtitan-0.2", "torchtitan.toml", {"optimizer_kernels": "single"}),
    ("torchtitan-0.2", "torchtitan.toml", {"update_in_backward": True}),
    ("accelerate", "accelerate.yaml", {"fused_kernels": "compiled"}),
    ("nanotron", "nanotron.yaml", {"optimizer_kernels": "foreach"}),
    ("deepspeed", "ds_config.json", {"optimizer_kernels": "fused"}),
]


def files_of(target, **choices):
    """The files of a plan with some choices."""
    own = {"zero": 1 if target == "nanotron" else 3, "master_weights": False if target == "axolotl" else None}
    micro = TRAINING.global_batch // 8  # one microbatch
    model = "llama-3-8b" if target == "nanotron" else "llama-3.1-8b"
    return exported(target, checked(model, dp=8, micro_batch=micro, **own, **choices))


@pytest.mark.parametrize(
    ("target", "file"), [("torchtitan", "simpar_recipe.py"), ("torchtitan-0.2", "torchtitan.toml")]
)
def test_layers_that_are_not_compiled_are_those_of_the_eager_stack(target, file):
    """Whose loss is not compiled either, nor where nothing is said of it."""
    compiled, eager = (files_of(target, **({"fused_kernels": kind} if kind else {}))[file] for kind in (None, "norm"))
    assert [read(text, file, target).plan.stack for text in (compiled, eager)] == ["torchtitan", "torchtitan-eager"]
    if file.endswith("toml"):
        assert read(compiled.replace("[compile]\nenable = true\n", ""), file, target).plan.stack == "torchtitan-eager"
        loss = read(compiled.replace("enable = true", 'enable = true\ncomponents = ["loss"]'), file, target)
        words = load_reader(target).words.sort((), loss.words.unread)
        assert (loss.plan.stack, "compile.components" in words.deciding) == ("torchtitan-eager", True)


@pytest.mark.parametrize(("target", "file", "choice"), READ_BACK)
def test_what_is_written_is_read_back(target, file, choice):
    """The file says the choice, and the same plan comes back."""
    made = files_of(target, **choice)
    name = next(each for each in made if each == file or (each.endswith(file.rpartition(".")[2]) and file not in made))
    (key, value), plain = next(iter(choice.items())), files_of(target)
    assert getattr(read(made[name], name, target).plan.execution, key) == value
    assert getattr(read(plain[name], name, target).plan.execution, key) != value


@pytest.mark.parametrize("target", TRAINERS)
def test_trainers_name_adam_by_its_kernels(target):
    """adamw_torch runs operation by operation, as the stack does unless the plan says otherwise."""
    for kernels, name in ((None, '"adamw_torch"'), ("foreach", '"adamw_torch"'), ("fused", '"adamw_torch_fused"')):
        assert name in files_of(target, optimizer_kernels=kernels)[TRAINERS[target]]
    plan = Plan(dp=8, zero=3, optimizer_kernels="single")
    assert any("optimizer_kernels = single: the target has adamw_torch" in reason for reason in lost(plan, target))


@pytest.mark.parametrize("target", ["transformers", "trl", "llama-factory"])
def test_liger_fuses_what_the_plan_fuses(target):
    """Each operator by Liger's name; its loss by piece is another choice."""
    text = files_of(target, fused_kernels="norm+rope")[TRAINERS[target]]
    assert '"use_liger_kernel": true' in text or "use_liger_kernel: true" in text
    for name, is_on in (("rms_norm", True), ("rope", True), ("swiglu", False), ("cross_entropy", False)):
        assert f'{name}": {str(is_on).lower()}' in text or f"{name}: {str(is_on).lower()}" in text
    reasons = lost(Plan(dp=8, zero=3, fused_kernels="residual"), target)
    assert any("by Liger" in reason and "not residual" in reason for reason in reasons)


@pytest.mark.parametrize("target", TRAINERS)
def test_compiled_models_are_compiled(target):
    """And nothing else is said where the plan fuses nothing."""
    for fused, says in (("compiled", True), ("none", False), (None, False)):
        text = files_of(target, fused_kernels=fused)[TRAINERS[target]]
        assert ("torch_compile" in text) is says
        assert "liger" not in text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "choice", [{"fused_kernels": "activation"}, {"optimizer_kernels": "single"}, {"update_in_backward": True}]
)
def test_targets_without_a_key_say_so(target, choice):
    """Nothing is dropped in silence."""
    (name,) = choice
    if name not in load_target(target).features:
        assert any(name in reason for reason in lost(Plan(dp=8, **choice), target))


def lost(plan, target):
    """What a target cannot say of a plan."""
    return unsupported(plan, load_model("llama-3.1-8b"), TRAINING, target)

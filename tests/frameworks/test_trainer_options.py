"""How a trainer's model is loaded: options in a mapping, one device, the checkpoint's own dtype."""

import pytest

from simpar.frameworks import load_reader, read
from simpar.frameworks.trainer_options import is_one_device
from simpar.verbs import check

TRAIN = "python train.py --per_device_train_batch_size 1 --max_length 512 --output_dir o --packing"


def given(flags, target="transformers"):
    """What a command is read as, with the account of its words."""
    found = read(f"{TRAIN} {flags}", "the command", target)
    return found, load_reader(target).words.sort(found.words.used, found.words.unread)


@pytest.mark.parametrize(
    ("place", "one"),
    [({"": 0}, True), ({"": "cuda:1"}, True), ("cuda", True), ("cuda:0", True), (0, True), ("auto", False),
     ({"model.layers.0": 0, "lm_head": 1}, False), ("balanced", False), (None, False)],
)  # fmt: skip
def test_one_device(place, one):
    """A map of the whole model, or the name of a device."""
    assert is_one_device(place) is one


def test_options_of_the_model_are_arguments():
    """``model_init_kwargs`` as JSON; what it has besides decides."""
    options = '{"torch_dtype":"bfloat16","attn_implementation":"flash_attention_2","use_cache":false}'
    found, account = given(f"--model_name_or_path Qwen/Qwen2.5-7B --model_init_kwargs '{options}'")
    assert (found.plan.execution.attention_kernel, found.plan.execution.parameter_dtype) == ("flash2", "bf16")
    assert (account.deciding, account.unknown) == ({}, ())
    _, account = given('--model_name_or_path Qwen/Qwen2.5-7B --model_init_kwargs \'{"gguf_file":"a"}\'')
    assert "--model_init_kwargs" in account.deciding


def test_the_dtype_of_the_checkpoint():
    """16 bits, but for the few that are fp32."""
    found, _ = given("--model_name_or_path Qwen/Qwen2.5-7B --torch_dtype auto --bf16")
    assert found.plan.execution.parameter_dtype == "bf16"
    assert [each.value for each in found.assumed if each.key == "parameter_dtype"] == ["bf16"]
    found, _ = given("--model_name_or_path gpt2 --torch_dtype auto --bf16")
    assert found.plan.execution.parameter_dtype is None


def test_a_map_of_devices_on_one():
    """It puts layers nowhere else where there is one device; where there may be more, it decides."""
    flags = "--model_name_or_path gpt2 --bf16"
    one = check(f"{TRAIN} {flags} --device_map auto", hardware="dgx-h100", gpus=1)
    assert "--device_map" not in one.account.deciding
    visible = check(f"CUDA_VISIBLE_DEVICES=0 {TRAIN} {flags} --device_map auto", hardware="dgx-h100")
    assert "--device_map" not in visible.account.deciding
    assert "--device_map" in check(f"{TRAIN} {flags} --device_map auto", hardware="dgx-h100").account.deciding
    assert "--device_map" not in check(f"{TRAIN} {flags} --device_map cuda:0", hardware="dgx-h100").account.deciding


@pytest.mark.parametrize(
    ("flags", "expected", "decides"),
    [
        ("--activation_checkpointing", {"recompute": "full"}, False),
        ("--activation_checkpointing --activation_checkpointing_kwargs '{\"every_n_layers\":2}'", {}, True),
        ("--activation_checkpointing --activation_checkpointing_kwargs '{\"offload\":true}'",
         {"offload_activations": 1.0}, False),
        ("--gradient_checkpointing --gradient_checkpointing_kwargs '{\"use_reentrant\":false}'", {}, False),
        ("--torch_compile_backend inductor", {"fused_kernels": "compiled"}, False),
        ("--torch_compile_mode max-autotune", {"fused_kernels": "compiled"}, False),
        ("--adafactor", {"optimizer": "adafactor"}, False), ("--optim grokadamw", {}, True),
        ("--half_precision_backend auto --adafactor false --mp_parameters '' --past_index -1", {}, False),
        ("--half_precision_backend apex", {}, True),
    ],
)  # fmt: skip
def test_arguments_of_other_versions(flags, expected, decides):
    """Version 5 of transformers has another name for checkpointing, with options of its own; 4 has more words."""
    found, account = given(f"--model_name_or_path Qwen/Qwen2.5-7B --bf16 {flags}")
    said = found.plan.flat_values()
    assert {key: said.get(key) for key in expected} == expected
    assert (bool(account.deciding), account.unknown) == (decides, ())

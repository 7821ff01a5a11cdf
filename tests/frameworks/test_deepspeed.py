"""DeepSpeed configs: out, back in, and as people write them."""

import json
import re

import pytest

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks import load_reader, read, unsupported
from simpar.frameworks.subject import settle
from simpar.layout.decider import fill_open_choices
from simpar.layout.deciders import OFFLOAD, state_choices
from simpar.layout.layout import stated_choices
from simpar.plan.plan import Plan

from .conftest import PLANS, TRAINING, checked, exported

EXPRESSIBLE = [
    label
    for label in PLANS
    if not unsupported(checked(**PLANS[label]), load_model("llama-3-8b"), TRAINING, "deepspeed")
]


def config(**values):
    """The config of a plan."""
    return json.loads(exported("deepspeed", checked(**values))["ds_config.json"])


def test_enough_of_the_matrix_can_be_said():
    """The round trip below is over more than a few plans."""
    assert {"ddp", "zero-2", "zero-3", "buckets", "bf16-gradients", "tp-without-sp"} <= set(EXPRESSIBLE)
    assert {"offloaded", "offloaded-states", "offloaded-partly", "on-drives"} <= set(EXPRESSIBLE)


@pytest.mark.parametrize("label", EXPRESSIBLE)
def test_a_plan_comes_back(label):
    """All that the config says is as it was; model, sequence length and recomputation are not in it."""
    plan = checked(**PLANS[label])
    back = read(exported("deepspeed", plan)["ds_config.json"], "ds_config.json", "deepspeed").plan
    back, plan = (
        state_choices(
            each, {"offload_gradients": fill_open_choices(stated_choices(each), (OFFLOAD,), None)["offload_gradients"]}
        )
        for each in (back, plan)
    )
    found, expected = settle(back, "deepspeed")[0], settle(plan, "deepspeed")[0]
    for section in ("mesh", "micro_batch", "data_parallel", "tensor_parallel", "offload", "numerics", "execution"):
        assert getattr(found, section) == getattr(expected, section), section


def test_torch_s_adam_is_asked_for_where_the_device_runs_it():
    """As the stack was predicted; on the host the config's own is DeepSpeed's for processors."""
    assert config(dp=8, zero=2)["optimizer"]["params"]["torch_adam"] is True
    assert "torch_adam" not in config(dp=8, zero=2, offload_optimizer="cpu")["optimizer"]["params"]


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("gradients", [None, "fp32", "bf16"])
def test_gradients_have_a_dtype_that_goes_with_the_parameters(zero, precision, gradients):
    """The parameters' own, or fp32 where they are sharded; never bfloat16 beside float16, not even with --lossy."""
    plan = checked(dp=8, zero=zero, precision=precision, grad_dtype=gradients)
    found = json.loads(exported("deepspeed", plan, lossy=True)["ds_config.json"])
    allowed = {precision} if not zero or gradients != "fp32" else {"fp32"}
    assert found["data_types"]["grad_accum_dtype"] in allowed


def test_the_script_builds_a_model_of_fp32():
    """A config of the hub names the dtype of its weights; DeepSpeed casts them where the plan has 16 bits."""
    for precision in ("fp32", "bf16"):
        found = exported("deepspeed", checked(dp=8, zero=1, precision=precision))
        assert "from_config(config, dtype=getattr(torch, given.dtype))" in found["train.py"]
        assert "--dtype float32\n" in found["command.sh"]


def test_batches_multiply_up():
    """train_batch_size is micro-batch x accumulation x data-parallel ranks, as DeepSpeed asserts."""
    found = config(dp=4, tp=2, zero=1, micro_batch=2, sequence_parallel=False)
    product = found["train_micro_batch_size_per_gpu"] * found["gradient_accumulation_steps"] * 4
    assert found["train_batch_size"] == product == TRAINING.global_batch


def test_the_script_recomputes_where_the_plan_does():
    """Recomputation is a call in the script, if its command says so."""
    for recompute, there in (("full", True), ("none", False)):
        found = exported("deepspeed", checked(dp=8, zero=3, recompute=recompute))
        compile(found["train.py"], "train.py", "exec")
        assert ("--gradient_checkpointing\n" in found["command.sh"]) is there


def test_what_is_offloaded_is_said_in_its_words():
    """Device and share of optimizer and parameters; a place for drives, with a note."""
    zero = config(dp=8, zero=3, offload_optimizer="cpu", offload_ratio=0.25)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True, "ratio": 0.25}
    assert "offload_param" not in zero
    plan = checked(dp=8, zero=3, offload_optimizer="nvme", offload_parameters="nvme")
    zero = json.loads(exported("deepspeed", plan)["ds_config.json"])["zero_optimization"]
    assert zero["offload_param"] == {"device": "nvme", "pin_memory": True, "nvme_path": "/local_nvme"}
    assert "placeholder, /local_nvme" in exported("deepspeed", plan)["README.md"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"zero": 1, "precision": "fp32", "grad_dtype": "bf16"},
            "grad_dtype = bf16: gradients of fp32 parameters are fp32",
        ),
        ({"zero": 0, "offload_optimizer": "cpu"}, "offload_optimizer = cpu: is there with zero 1, 2, 3"),
        ({"zero": 2, "offload_optimizer": "nvme"}, "offload_optimizer = nvme: is there with zero 3"),
        ({"zero": 2, "offload_optimizer": "cpu", "offload_ratio": 0.5}, "offload_ratio = 0.5: .*zero 3 only"),
        ({"zero": 2, "offload_optimizer": "cpu", "offload_gradients": False}, "offload_gradients = false: "),
        ({"zero": 2, "offload_optimizer": "cpu", "offload_delayed": True}, "offload_delayed = true: "),
        ({"zero": 2, "offload_activations": 0.5}, "offload_activations = 0.5: "),
    ],
)
def test_what_it_cannot_offload_is_named(values, words):
    """A stage that has none of it, updates that are late, activations."""
    (reason,) = unsupported(checked(dp=8, **values), load_model("llama-3-8b"), TRAINING, "deepspeed")
    assert re.search(words, reason)


@pytest.mark.parametrize(
    ("stage", "half", "accumulated", "read_as", "of_version"),
    [
        (0, "bf16", None, (0, None), True),
        (0, "fp16", None, (0, None), False),
        (1, "bf16", None, (1, None), False),
        (0, "bf16", "bf16", (0, "bf16"), False),
        (0, "bf16", "fp32", (1, "fp32"), False),
    ],
)
def test_bf16_at_stage_0_is_as_the_version_has_it(stage, half, accumulated, read_as, of_version):
    """Whole states since 0.17.6, as stage 1 before; only the optimizer of its own adds gradients up in fp32."""
    more = {"data_types": {"grad_accum_dtype": accumulated}} if accumulated else {}
    config = {"zero_optimization": {"stage": stage}, half: {"enabled": True}, **more}
    found = read(json.dumps(config), "ds.json", "deepspeed")
    assert (found.plan.data_parallel.zero, found.plan.numerics.grad_dtype) == read_as
    assert any("optimizer of its own for bf16" in note for note in found.notes) == (
        read_as == (1, "fp32") and not stage
    )
    earlier = {1: {"grad_dtype": "fp32", "reduce_dtype": "fp32"}}
    told = [(each.key, each.value, each.together) for each in found.assumed if each.key == "zero"]
    assert told == [("zero", 0, earlier)] * of_version


def test_stage_0_is_read_back_as_it_is_written():
    """With the dtype of gradients that DeepSpeed keeps there, which leaves nothing to its version."""
    plan = checked(dp=8, zero=0, grad_dtype="bf16")
    text = exported("deepspeed", plan)["ds_config.json"]
    found = read(text, "ds.json", "deepspeed")
    assert (json.loads(text)["zero_optimization"]["stage"], found.plan.zero) == (0, 0)
    assert [each.key for each in found.assumed] == ["recompute"]  # which the script says
    assert (found.plan.numerics.grad_dtype, found.plan.numerics.precision) == ("bf16", "bf16")


def test_a_config_of_a_user_is_read():
    """Words that the Hugging Face trainer fills in are left open; what is not in a plan is listed."""
    text = """{
      "train_batch_size": 512, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
      "bf16": {"enabled": "auto"}, "fp16": {"enabled": true},
      "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
      "zero_optimization": {"stage": 3, "overlap_comm": true, "reduce_bucket_size": 5e8,
                            "stage3_prefetch_bucket_size": "auto"},
      "wall_clock_breakdown": false
    }"""
    found = read(text, "ds.json", "deepspeed")
    plan = found.plan
    assert (plan.mesh.dp, plan.micro_batch, plan.data_parallel.zero) == (64, 4, 3)
    assert (plan.numerics.precision, plan.numerics.optimizer) == ("fp16", "adamw")
    assert plan.data_parallel.bucket_bytes == 1e9
    assert found.ignored == ("optimizer.params.lr", "wall_clock_breakdown")
    assert any("bf16.enabled, zero_optimization.stage3_prefetch_bucket_size" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no DeepSpeed config"),
        ('{"model": 1}', "no DeepSpeed config"),
        ('{"zero_optimization": {"stage": 4}}', "stage = 4"),
        ('{"zero_optimization": {"stage": "three"}}', "stage = 'three'"),
        (
            '{"zero_optimization": {"stage": "auto"}}',
            "zero_optimization.stage = 'auto': who starts DeepSpeed says it; allowed: 0, 1, 2, 3",
        ),
        (
            '{"zero_optimization": {"offload_optimizer": {"device": "gpu"}}}',
            "zero_optimization.offload_optimizer.device = 'gpu': allowed: none, cpu, nvme",
        ),
        ('{"bf16": {}, "optimizer": {"type": "Lamb"}}', "optimizer.type = 'lamb'"),
        ('{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}', "= 7"),
    ],
)
def test_bad_configs_are_one_line(text, words):
    """File, option, value and what is allowed."""
    with pytest.raises(UserError) as error:
        read(text, "ds.json", "deepspeed")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_micro_batch_follows_from_the_ranks():
    """A batch and its microbatches say it once the number of devices is known; until then a note does."""
    found = read('{"train_batch_size": 2048, "gradient_accumulation_steps": 16}', "ds.json", "deepspeed")
    assert any("The micro-batch is 2048 / (16 x data-parallel ranks)" in note for note in found.notes)
    assert (found.plan.micro_batch, found.placed(64).micro_batch) == (1, 2)
    with pytest.raises(UserError, match=r"global batch = 2048: allowed: a multiple of .* = 24 x 16"):
        found.placed(24)
    assert read('{"train_batch_size": 64}', "ds.json", "deepspeed").placed(8).micro_batch == 8
    text = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto"}'
    found = read(text, "ds.json", "deepspeed")
    assert found.placed(8).micro_batch == 1
    assert any("The micro-batch is not said: the plan has 1" in note for note in found.notes)


@pytest.mark.parametrize(
    ("stage", "said", "overlap"),
    [
        (0, "", None), (1, "", False), (2, "", False), (3, "", True), (2, "null", False), (2, '"auto"', None),
        (2, "true", True), (3, "false", False),
    ],
)  # fmt: skip
def test_overlap_is_that_of_the_stage_where_nothing_says_it(stage, said, overlap):
    """DeepSpeed overlaps the reduction under stage 3, unless it is told to under the others."""
    more = f', "overlap_comm": {said}' if said else ""
    found = read(f'{{"zero_optimization": {{"stage": {stage}{more}}}}}', "ds.json", "deepspeed")
    assert found.plan.data_parallel.overlap_grad_reduce is overlap


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        ("llama-3-8b", {"pp": 2, "dp": 4}, "pp = 2"),
        ("llama-3-8b", {"tp": 2, "dp": 4}, "--no-sequence-parallel"),
        ("llama-3-8b", {"dp": 8, "zero": 3, "hsdp": 2}, "hpZ"),
        ("llama-3-8b", {"dp": 8, "precision": "fp8"}, "precision = fp8"),
        ("llama-3-8b", {"dp": 8, "precision": "mxfp8"}, "precision = mxfp8"),
        ("falcon-7b", {"dp": 8, "zero": 3}, None),
        ("llama-3-8b", {"dp": 8, "zero": 2, "kind": "fsdp"}, "whole parameters"),
        ("llama-3-8b", {"dp": 8, "zero": 0, "grad_dtype": "fp32"}, "dtype of parameters"),
        ("llama-3-8b", {"dp": 8, "zero": 0, "grad_dtype": "fp32", "precision": "fp16"}, "dtype of parameters"),
        ("llama-3-8b", {"dp": 8, "zero": 1, "grad_dtype": "fp32", "precision": "fp16"}, None),
        (
            "llama-3-8b",
            {"dp": 8, "zero": 1, "grad_dtype": "bf16", "precision": "fp16", "stack": "megatron"},
            "gradients of fp16",
        ),
        ("llama-3-8b", {"dp": 8, "zero": 0, "bucket_bytes": "25 MiB"}, "500,000,000 elements"),
    ],
)
def test_what_deepspeed_cannot_say_is_named(model, values, words):
    """A reason for every loss, none where it can be said."""
    reasons = unsupported(Plan.model_validate(values), load_model(model), TRAINING, "deepspeed")
    assert (words is None) == (not reasons), reasons
    assert words is None or any(words in reason for reason in reasons)


@pytest.mark.parametrize(("values", "there"), [({"zero": 3}, True), ({"zero": 2}, False)])
def test_sharded_models_are_built_in_shards(values, there):
    """Under ZeRO-3 no rank builds the whole model: transformers enters zero.Init where its config object lives."""
    text = exported("deepspeed", checked(dp=8, **values))["train.py"]
    compile(text, "train.py", "exec")
    assert ("HfDeepSpeedConfig(given.deepspeed)" in text) is there
    assert not there or text.index("HfDeepSpeedConfig(") < text.index("from_config(config")


@pytest.mark.parametrize(
    ("zero", "optimizer", "parameters"),
    [
        ({"stage": 2, "offload_param": {"device": "cpu"}}, "none", "none"),
        ({"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}, "cpu", "cpu"),
        ({"stage": 2, "cpu_offload": True}, "cpu", "none"),
        ({"stage": 3, "cpu_offload": True, "cpu_offload_params": True}, "cpu", "cpu"),
        ({"stage": 2, "cpu_offload": False}, "none", "none"),
    ],
)
def test_parameters_leave_the_device_at_stage_3_alone(zero, optimizer, parameters):
    """DeepSpeed does not look at their section at other stages; switches of earlier versions mean the same."""
    found = read(json.dumps({"train_batch_size": 8, "zero_optimization": zero}), "z.json", "deepspeed")
    values = found.plan.flat_values()
    assert (values["offload_optimizer"] or "none", values["offload_parameters"] or "none") == (optimizer, parameters)
    assert load_reader("deepspeed").words.sort((), found.words.unread).is_understood


@pytest.mark.parametrize(
    ("section", "decides"),
    [
        ({"stage": 3, "stage3_max_live_parameters": 1e9, "stage3_param_persistence_threshold": 1e5}, []),
        ({"stage": 3, "stage3_max_live_parameters": 1e10, "stage3_max_reuse_distance": 1e10},
         ["stage3_max_live_parameters", "stage3_max_reuse_distance"]),
        ({"stage": 3, "stage3_param_persistence_threshold": 1e9}, ["stage3_param_persistence_threshold"]),
        ({"stage": 2, "stage3_param_persistence_threshold": 1e9}, []),
    ],
)  # fmt: skip
def test_parameters_that_stay_gathered_decide(section, decides):
    """Limits above the defaults, in which a layer is gathered at a time, under ZeRO-3 alone."""
    data = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": section}
    account = load_reader("deepspeed").words.sort((), read(json.dumps(data), "a.json", "deepspeed").words.unread)
    assert list(account.deciding) == [f"zero_optimization.{name}" for name in decides]
    assert not account.unknown


@pytest.mark.parametrize("key", ["bf16_master_weights_and_grads", "bf16_optimizer_states"])
def test_states_of_16_bits_decide(key):
    """They are no part of what its config says of bf16 else."""
    data = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True, key: True}}
    account = load_reader("deepspeed").words.sort((), read(json.dumps(data), "a.json", "deepspeed").words.unread)
    assert list(account.deciding) == [f"bf16.{key}"]

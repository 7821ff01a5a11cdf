"""torchtune: configs and tune run as a plan."""

import json

import pytest

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.torchtune_read import BUILT_IN

RUN = "tune run --nproc_per_node 4 full_finetune_distributed --config llama3_1/8B_full"


def imported(command: str) -> object:
    """What is read of a command."""
    return read(command, "job.sh", "torchtune")


def test_a_built_in_config() -> None:
    """Its values by name, and those of the command over them."""
    result = imported(f"{RUN} batch_size=4 gradient_accumulation_steps=2")
    plan = result.plan
    assert (plan.stack, plan.model, plan.zero, plan.micro_batch) == ("torchtune", "llama-3.1-8b", 3, 4)
    assert (plan.recompute, plan.precision, plan.optimizer_kernels) == ("full", "bf16", "fused")
    assert (result.per_replica, result.assumed[0].key) == (8, "seq_len")


def test_a_word_for_a_component_names_another() -> None:
    """``optimizer=NAME`` is ``optimizer._component_=NAME`` (torchtune/config/_utils.py)."""
    result = imported(f"{RUN} optimizer=bitsandbytes.optim.PagedAdamW8bit")
    account = load_reader("torchtune").words.sort(result.words.used, result.words.unread)
    assert (result.plan.optimizer, account.unknown) == ("paged_adamw_8bit", ())


def test_adapters_on_one_device() -> None:
    """Its own recipe is one rank; QLoRA freezes 4 bits."""
    command = "tune run lora_finetune_single_device --config llama3_1/8B_qlora_single_device"
    result = imported(f"{command} dataset.packed=True tokenizer.max_seq_len=4096")
    plan = result.plan
    assert (plan.dp, plan.zero, plan.lora_rank, plan.frozen_dtype) == (1, 0, 8, "nf4")
    assert plan.lora_targets == ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert plan.training == {"seq_len": 4096}
    assert [(each.key, each.value, each.others) for each in result.assumed] == [("documents.mean", 4096, (1024, 256))]
    known = imported(
        f"{command} dataset.packed=True tokenizer.max_seq_len=4096 "
        "dataset._component_=torchtune.datasets.alpaca_cleaned_dataset"
    )
    assert known.plan.training == {"seq_len": 4096, "documents": {"mean": 170, "spread": 0.724}}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("optimizer_in_bwd=True", {"update_in_backward": True}),
        ("compile=True", {"fused_kernels": "compiled"}),
        ("fsdp_cpu_offload=True", {"offload_parameters": "cpu", "offload_optimizer": "cpu"}),
        ("optimizer._component_=bitsandbytes.optim.PagedAdamW8bit", {"optimizer": "paged_adamw_8bit"}),
        ("enable_activation_checkpointing=False", {"recompute": "none"}),
        ("enable_activation_offloading=True", {"offload_activations": 1.0}),
        ("tensor_parallel_dim=2", {"tp": 2, "sequence_parallel": False}),
        ("dtype=fp32", {"precision": "fp32"}),
        ("loss._component_=torch.nn.CrossEntropyLoss", {"loss_chunks": 1}),
    ],
)
def test_words_of_its_own(words: str, expected: dict[str, object]) -> None:
    """Each option that a plan has a word for."""
    values = imported(f"{RUN} {words}").plan.flat_values()
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (RUN.replace("8B_full", "9B_full"), "llama3_1/9B_full"),
        (RUN.replace("full_finetune_distributed", "ppo_full_finetune_single_device"), "recipe ppo_full"),
        (f"{RUN} optimizer._component_=x.Shampoo", "optimizer._component_ = Shampoo"),
        (f"{RUN} model._component_=torchtune.models.llama3_1.lora_llama3_1_8b model.use_dora=True", "model.use_dora"),
        (f"{RUN} loss._component_=torchtune.rlhf.loss.DPOLoss", "preferences are not modelled"),
        (
            f"{RUN} teacher_model._component_=torchtune.models.llama3_1.llama3_1_8b",
            "teacher_model._component_: a teacher",
        ),
    ],
)
def test_what_no_plan_has_is_refused(command: str, message: str) -> None:
    """By name."""
    with pytest.raises(UserError) as error:
        imported(command)
    assert message in str(error.value)


def test_a_config_that_trains_nothing_is_refused() -> None:
    """Evaluations have a model and a batch, too."""
    config = {"model": {"_component_": "torchtune.models.llama2.llama2_7b"}, "batch_size": 8, "tasks": ["x"]}
    with pytest.raises(UserError, match="no optimizer: a config that trains nothing"):
        read(json.dumps(config), "eval.yaml", "torchtune")


def test_every_built_in_config_is_read() -> None:
    """Each names a shipped model, and none is left to chance but the length of documents."""
    for name, config in json.loads(BUILT_IN.read_text()).items():
        if "dora" in name:
            continue  # refused by name
        result = read(json.dumps(config), f"{name}.yaml", "torchtune")
        assert result.plan.model, name
        assert load_reader("torchtune").owns(config), name
        assert result.words.unread.keys() <= {"custom_sharded_layers"} or all(
            word.startswith(("model.", "loss.", "optimizer.")) for word in result.words.unread
        ), name


@pytest.mark.parametrize(
    ("component", "sizes", "parameters"),
    [
        ("llama2.llama2", "embed_dim: 2048, num_heads: 32, num_kv_heads: 4, num_layers: 22", 1.1),  # TinyLlama
        ("qwen2.qwen2", "embed_dim: 896, num_heads: 14, num_kv_heads: 2, num_layers: 24, intermediate_dim: 4864", 0.42),
        ("llama2.lora_llama2", "embed_dim: 2048, num_heads: 32, num_kv_heads: 4, num_layers: 22", 1.1),
    ],
)
def test_a_builder_of_layers_has_the_sizes_that_are_said(component: str, sizes: str, parameters: float) -> None:
    """Never those of the shipped model of its name; the width of Llama's MLP follows from its own."""
    model = f"{{_component_: torchtune.models.{component}, vocab_size: 32000, {sizes}}}"
    text = f"model: {model}\nbatch_size: 1\noptimizer: {{_component_: torch.optim.AdamW}}\n"
    found = read(text, "a.yaml", "torchtune")
    assert (found.plan.model, found.asks) == (None, {"model": ""})
    assert read_config(found.config).num_parameters() / 1e9 == pytest.approx(parameters, rel=0.02)
    with pytest.raises(UserError, match=r"model\.num_heads is missing"):
        read(text.replace("num_heads: 32, ", "").replace("num_heads: 14, ", ""), "a.yaml", "torchtune")
    with pytest.raises(UserError, match="gemma2 with sizes of its own"):
        read(text.replace(component, "gemma2.gemma2"), "a.yaml", "torchtune")


def test_the_device_decides_and_offloading_has_an_earlier_name() -> None:
    """Processors are no devices; ``fsdp.cpu_offload`` is the switch before 0.2."""
    for device, decides in (("cuda", False), ("cpu", True)):
        words = read(f"{RUN} device={device}", "job.sh", "torchtune").words
        assert ("device" in load_reader("torchtune").words.sort((), words.unread).deciding) is decides
    plan = read(f"{RUN} fsdp.cpu_offload=True", "job.sh", "torchtune").plan.flat_values()
    assert (plan["offload_optimizer"], plan["offload_parameters"]) == ("cpu", "cpu")

"""Launches of trainers on Hugging Face's: proposals, assumptions, arguments of scripts."""

import json
import re

import pytest
import yaml

from simpar.cli import run
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words
from tests.preflight.test_check import SFT, checked

ARGUMENTS = "--model_max_length 1024 --packing --bf16 true --attn_implementation sdpa"
DEEPSPEED_AUTO = {"bf16": {"enabled": "auto"}, "train_micro_batch_size_per_gpu": "auto",
                  "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}  # fmt: skip


@pytest.mark.parametrize("kind", ["flags", "file"])
def test_a_launch_of_deepspeed_is_patched_where_its_arguments_are(tmp_path, capsys, kind):
    """In the command, or in the file of arguments that it names; never by options of FSDP or of another stage."""
    (tmp_path / "z3.json").write_text(json.dumps(DEEPSPEED_AUTO))
    script, file = tmp_path / "train.sh", tmp_path / "sft.yaml"
    settings = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "deepspeed": "z3.json", "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": 8, "gradient_checkpointing": True}  # fmt: skip
    flags = " ".join(f"--{name} {value}" for name, value in settings.items())
    file.write_text(yaml.safe_dump({**settings, "max_length": 1024, "packing": True, "dataset_name": "x"}))
    start = "torchrun --nproc-per-node 8 sft.py"
    script.write_text(f"{start} {flags} {ARGUMENTS}\n" if kind == "flags" else f"{start} --config sft.yaml\n")
    assert run(["check", "--hardware", "dgx-h100", "--patch", str(script)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"--- a/{script if kind == 'flags' else file}")
    assert "fsdp" not in said
    assert re.search(r"\+.*per_device_train_batch_size:? 2", said)
    assert re.search(r"\+.*gradient_checkpointing:? false", said)


@pytest.mark.parametrize("stage", [2, 3])
def test_buckets_that_are_reduced_in_turn_have_neighbours(tmp_path, capsys, stage):
    """``overlap_comm: false``, as LLaMA-Factory ships its configs: batch and checkpointing may change all the same."""
    config = {**DEEPSPEED_AUTO, "zero_optimization": {"stage": stage, "overlap_comm": False}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    file = tmp_path / "full.yaml"
    file.write_text(yaml.safe_dump({
        "model_name_or_path": "Qwen/Qwen2.5-0.5B", "stage": "sft", "do_train": True, "finetuning_type": "full",
        "deepspeed": "ds.json", "dataset": "x", "cutoff_len": 1024, "packing": True, "bf16": True,
        "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}))  # fmt: skip
    code, found = checked(capsys, "--hardware", "dgx-h100", "--gpus", "8", str(file))
    assert (code, found["plan"]["data_parallel"]["overlap_grad_reduce"]) == (0, False)
    assert all(one["patched"] and not one["unsaid"] for one in found["neighbours"])
    assert {edit for one in found["neighbours"] for edit in one["edits"]} >= {
        "disable_gradient_checkpointing true", "per_device_train_batch_size 2"}  # fmt: skip
    assert found["least_s"] is None or found["least_s"] < found["step_time_s"]


def test_what_is_assumed_of_fine_tuned_routing_leaves_flags_to_paste(capsys):
    """A power law of loads is no choice of a neighbour either."""
    tuned = (
        "CUDA_VISIBLE_DEVICES=0 python sft.py --model_name_or_path allenai/OLMoE-1B-7B-0924 --use_peft --lora_r 8 "
        "--lora_target_modules q_proj v_proj --bf16 --packing --max_length 1024 --per_device_train_batch_size 1 "
        "--gradient_accumulation_steps 2 --gradient_checkpointing"
    )
    _, found = checked(capsys, "--hardware", "dgx-h100", "--", tuned)
    assert found["plan"]["experts"]["expert_distribution"] == "power_law"
    assert found["neighbours"]
    assert all(one["patched"] and not one["unsaid"] for one in found["neighbours"])


@pytest.mark.usefixtures("no_neighbours")
def test_a_word_that_decides_leaves_no_verdict_of_a_misfit(tmp_path, capsys):
    """What is not modelled may be what makes it fit: GaLore's gradients of low rank."""
    file = tmp_path / "galore.yaml"
    galore = {"model_name_or_path": "meta-llama/Meta-Llama-3-8B", "stage": "sft", "do_train": True,
              "finetuning_type": "full", "use_galore": True, "galore_layerwise": True, "galore_target": "mlp,self_attn",
              "cutoff_len": 512, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}  # fmt: skip
    file.write_text(yaml.safe_dump(galore))
    assert run(["check", "--hardware", "dgx-h100", "--gpus", "1", str(file)]) == 3
    said = capsys.readouterr().out
    assert "verdict    DOES NOT FIT as far as it is modelled: words of the text decide that are not (wanted" in said
    file.write_text(yaml.safe_dump({**galore, "use_galore": False}))
    assert run(["check", "--hardware", "dgx-h100", "--gpus", "1", str(file)]) == 3
    assert "verdict    DOES NOT FIT (wanted" in capsys.readouterr().out


CHAT = """#!/bin/bash
STAGE=$2
if [ "$STAGE" == "" ]; then STAGE=2; fi
deepspeed --num_gpus 2 main.py --model_name_or_path facebook/opt-1.3b --per_device_train_batch_size 8 \\
  --max_seq_len 512 --zero_stage $STAGE --deepspeed {}
"""


def test_a_script_with_defaults_is_read_as_started_without_arguments(tmp_path, capsys, no_neighbours):
    """DeepSpeed-Chat's: the stage is an argument, the config its script's; one that is missing is asked for."""
    script = tmp_path / "run.sh"
    script.write_text(CHAT.format(""))
    code, found = checked(capsys, "--hardware", "dgx-h100", str(script))
    plan = found["plan"]
    assert code == 0
    assert (plan["stack"], plan["data_parallel"]["zero"], plan["numerics"]["precision"]) == ("deepspeed", 2, "fp16")
    assert any("started without arguments" in note for note in found["notes"])
    _, found = checked(capsys, "--hardware", "dgx-h100", "--", str(script), "out", "3")
    assert found["plan"]["data_parallel"]["zero"] == 3
    script.write_text(CHAT.format("--lora_dim 8"))
    code, found = checked(capsys, "--hardware", "dgx-h100", "--", str(script), "out", "2")
    tuning = found["plan"]["tuning"]
    assert (code, tuning["lora_rank"], len(tuning["lora_targets"]), tuning["lora_dropout"]) == (3, 8, 7, 0)
    assert "--lora_dim" in found["words"]["not_modelled"]
    script.write_text(CHAT.format("--lora_dim 8 --only_optimize_lora --lora_module_name self_attn"))
    _, found = checked(capsys, "--hardware", "dgx-h100", str(script))
    assert (len(found["plan"]["tuning"]["lora_targets"]), found["words"]["not_modelled"]) == (4, {})
    script.write_text(CHAT.format("--lora_dim 8 --lora_module_name nothing"))
    assert run(["check", "--hardware", "dgx-h100", str(script)]) == 2
    assert "--lora_module_name = 'nothing'" in capsys.readouterr().err
    for words in ("--output_dir ./output_step2_llama", "--num_padding_at_beginning 0"):
        script.write_text(CHAT.format(words))
        assert run(["check", "--hardware", "dgx-h100", str(script)]) == 2
        assert "preferences and rewards are not modelled; allowed: the first step" in capsys.readouterr().err
    script.write_text(CHAT.replace("if", "#").format(""))
    assert run(["check", "--hardware", "dgx-h100", str(script)]) == 2
    assert "--zero_stage = '${2}'" in capsys.readouterr().err


def test_another_name_of_hardware_is_noted(capsys, no_neighbours):
    """With what it is taken for; a number before it is that of the devices."""
    code, found = checked(
        capsys, "--hardware", "4xH100", "--", *f"accelerate launch {SFT.partition('python ')[2]}".split()
    )
    assert code in (0, 3)
    assert any(note.startswith("4xH100 is taken for 4 of dgx-h100: 4 x h100") for note in found["notes"])
    assert found["plan"]["mesh"]["dp"] == 4


def test_values_of_adapters_are_assumed_with_their_own_memory(capsys, no_neighbours):
    """Frozen weights in 32 bits take twice the memory of 16, more targets more time."""
    command = "python train.py --model_name_or_path Qwen/Qwen3-8B --model_max_length 512 --bf16 --use_lora"
    _, found = checked(capsys, "--hardware", "dgx-h100", "--", *command.split(), "--per_device_train_batch_size", "1")
    assumed = {each["key"]: each["others"] for each in found["assumed"]}
    assert set(assumed) == {"seq_len", "attention_kernel", "lora_rank", "lora_targets", "lora_dropout", "frozen_dtype"}
    assert assumed["frozen_dtype"][0]["peak_reserved_bytes"] > 1.6 * found["peak_reserved_bytes"]
    assert assumed["lora_targets"][0]["step_time_s"] > found["step_time_s"]
    assert assumed["lora_dropout"][0]["peak_reserved_bytes"] < found["peak_reserved_bytes"]
    ranks = [each["value"] for each in assumed["lora_rank"]]
    assert sorted([*ranks, found["plan"]["tuning"]["lora_rank"]]) == [8, 16, 64]  # what is assumed is no other value


def test_accelerates_flags_win_over_its_config(tmp_path, capsys, no_neighbours):
    """Processes of the command; a script that nothing reads is named, and one on preferences refused."""
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\nmixed_precision: bf16\n")
    start = f"accelerate launch --config_file {tmp_path / 'acc.yaml'} --num_processes 4"
    shape = ["--model", "qwen2.5-0.5b", "--seq-len", "512", "--global-batch", "8"]
    _, found = checked(capsys, "--hardware", "dgx-h100", *shape, "--", *start.split(), "train.py", "--x", "1")
    assert found["plan"]["mesh"]["dp"] == 4
    assert any("train.py and its own arguments are not read" in note for note in found["notes"])
    assert run(["check", "--hardware", "dgx-h100", *shape, "--", *start.split(), "train_grpo.py"]) == 2
    assert "train_grpo.py: its reinforcement learning is not read" in capsys.readouterr().err
    for launcher in (start, "torchrun --nproc-per-node 4", "deepspeed --num_gpus 4"):  # NeMo-RL's starts with Ray
        command = [*launcher.split(), "scripts/run_grpo.py", "--model_name_or_path", "gpt2", "--use_peft"]
        assert run(["check", "--hardware", "dgx-h100", "--", *command]) == 2
        assert "run_grpo.py: its reinforcement learning is not read" in capsys.readouterr().err


AXOLOTL = {
    "base_model": "Qwen/Qwen2.5-0.5B", "micro_batch_size": 1, "gradient_accumulation_steps": 1, "sequence_len": 512,
    "sample_packing": True, "model_type": "AutoModelForCausalLM",
}  # fmt: skip


@pytest.mark.parametrize(
    ("hardware", "told", "precision"),
    [
        ("dgx-h100", {}, "bf16"),
        ("dgx-v100", {}, "fp16"),
        ("dgx-v100", {"bf16": "auto"}, "fp16"),
        ("dgx-v100", {"bf16": True}, "bf16"),
        ("dgx-h100", {"bf16": False, "fp16": False, "float16": True}, "fp16"),
        ("dgx-h100", {"bf16": False}, "fp32"),
    ],
)
def test_axolotl_takes_the_16_bits_of_the_device(tmp_path, capsys, no_neighbours, hardware, told, precision):
    """``bf16: auto`` where nothing is said, which is fp16 on devices without bf16 units; what is said is what runs."""
    (tmp_path / "a.yml").write_text(yaml.safe_dump({**AXOLOTL, **told}))
    _, found = checked(capsys, "--hardware", hardware, "--gpus", "1", str(tmp_path / "a.yml"))
    assert found["plan"]["numerics"]["precision"] == precision
    is_open = told.get("bf16", "auto") == "auto"
    assert any("is assumed: the text does not say a dtype" in note for note in found["notes"]) == (
        is_open and hardware == "dgx-v100"
    )
    assert not any("may be meant" in note for note in found["notes"])


def test_a_config_is_found_from_a_folder_above_the_text(tmp_path, capsys, no_neighbours):
    """Files name others as they are seen from the root of a checkout, wherever check is started."""
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "z3.json").write_text(json.dumps(DEEPSPEED_AUTO))
    (tmp_path / "examples" / "full").mkdir(parents=True)
    file = tmp_path / "examples" / "full" / "a.yaml"
    settings = {"model_name_or_path": "gpt2", "stage": "sft", "finetuning_type": "full", "bf16": True,
                "deepspeed": "ds/z3.json", "cutoff_len": 512, "packing": True}  # fmt: skip
    file.write_text(yaml.safe_dump(settings))
    code, found = checked(capsys, "--hardware", "dgx-h100", "--gpus", "2", str(file))
    assert (code, found["plan"]["data_parallel"]["zero"]) == (0, 3)
    file.write_text(yaml.safe_dump({**settings, "mixture_of_depths": "convert"}))
    code, found = checked(capsys, "--hardware", "dgx-h100", "--gpus", "2", str(file))
    assert (code, set(found["words"]["not_modelled"])) == (3, {"mixture_of_depths"})
    file.write_text(yaml.safe_dump({**settings, "expert_model_parallel_size": 2}))
    assert run(["check", "--hardware", "dgx-h100", "--gpus", "2", str(file)]) == 2
    assert "expert_model_parallel_size: LLaMA-Factory on Megatron-Core" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["swift sft", "megatron sft", "deepspeed --num_gpus 2 sft.py"])
@pytest.mark.usefixtures("no_neighbours")
def test_a_folder_of_models_need_not_be_said(tmp_path, capsys, program):
    """Of a path, the last name tells the model; a flag names one that the text leaves to a variable."""
    script = tmp_path / "run.sh"
    key = "--model_name_or_path" if "deepspeed" in program else "--model"
    text = f"export NPROC_PER_NODE=2\n{program} {key} MODEL --max_length 256 --bf16 true --torch_dtype bfloat16\n"
    script.write_text(text.replace("MODEL", "$WEIGHTS/Qwen/Qwen3-0.6B"))
    _, found = checked(capsys, "--hardware", "dgx-h100", str(script))
    assert (found["plan"]["model"], found["words"]["not_modelled"]) == ("qwen3-0.6b", {})
    script.write_text(text.replace("MODEL", "$WEIGHTS"))
    assert run(["check", "--hardware", "dgx-h100", str(script)]) == 2
    assert "${WEIGHTS}" in (said := capsys.readouterr().err)
    assert "give --model" in said
    _, found = checked(capsys, "--hardware", "dgx-h100", "--model", "qwen3-0.6b", str(script))
    assert found["words"]["not_modelled"] == {}


def test_trl_starts_accelerate_with_a_config_by_its_name(tmp_path, capsys, no_neighbours):
    """In its words, or in its file, beside all other flags of the launcher; a file of that name is read."""
    base = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --packing --per_device_train_batch_size 1"
    for told, devices, zero, stack in (
        ("--accelerate_config fsdp2 --num_processes 4", 4, 3, "huggingface"),
        ("--accelerate_config zero2", 8, 2, "deepspeed"),
        ("--accelerate_config single_gpu", 1, 0, "huggingface"),
        ("--use_fsdp --fsdp_version 2 --fsdp_reshard_after_forward false --num_processes 2", 2, 2, "huggingface"),
    ):  # fmt: skip
        _, found = checked(capsys, "--hardware", "dgx-h100", "--", *base.split(), *told.split())
        assert (found["cluster"]["devices"], found["plan"]["data_parallel"]["zero"]) == (devices, zero)
        assert (found["plan"]["stack"], found["words"]["unknown"]) == (stack, [])
    file = tmp_path / "sft.yaml"
    file.write_text(yaml.safe_dump({
        "model_name_or_path": "Qwen/Qwen2.5-0.5B", "dataset_name": "x", "packing": True, "num_processes": 4,
        "per_device_train_batch_size": 1, "accelerate_config": "own.yaml"}))  # fmt: skip
    fsdp = {"version": 2, "reshard_after_forward": False, "activation_checkpointing": True}  # prefixes may be left out
    own = {"distributed_type": "FSDP", "mixed_precision": "bf16", "num_processes": 8, "fsdp_config": fsdp}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    for start in ([str(file)], ["--", "trl", "sft", "--config", str(file)]):
        _, found = checked(capsys, "--hardware", "dgx-h100", *start)
        assert (found["cluster"]["devices"], found["plan"]["data_parallel"]["zero"]) == (4, 2)
    assert run(["check", "--hardware", "dgx-h100", "--", *base.split(), "--accelerate_config", "zero4"]) == 2
    assert "--accelerate_config = 'zero4': allowed: zero1, zero2, zero3, fsdp1" in capsys.readouterr().err


def test_flags_of_accelerate_are_changed_where_they_say_it(capsys):
    """Checkpointing by FSDP's plugin is no argument of the script."""
    command = (
        "accelerate launch --num_processes 2 --use_fsdp --fsdp_version 2 --fsdp_activation_checkpointing true sft.py "
        "--model_name_or_path Qwen/Qwen3-4B --per_device_train_batch_size 4 --packing --max_length 4096 --bf16"
    )
    _, found = checked(capsys, "--hardware", "dgx-h100", "--", *command.split())
    best = next(one for one in found["neighbours"] if one["patched"])
    assert ("--fsdp_activation_checkpointing false" in best["edits"], best["unsaid"]) == (True, [])
    assert "--fsdp_activation_checkpointing false sft.py" in best["patched"]


HSDP = {
    "base_model": "Qwen/Qwen3-8B",
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "sequence_len": 4096,
    "bf16": True,
    "fsdp_version": 2,
    "fsdp_config": {"reshard_after_forward": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"},
}


@pytest.mark.parametrize(
    ("said", "devices", "copies", "shards"),
    [
        ({"dp_shard_size": 4}, 16, 4, 4),
        ({"dp_shard_size": 4, "dp_replicate_size": 1}, 16, 4, 4),
        ({"dp_shard_size": 4, "tensor_parallel_size": 2}, 16, 2, 4),
        ({"dp_shard_size": 8}, 8, 1, 8),
        ({"dp_shard_size": 1}, 8, 1, None),
        ({"dp_shard_size": 4, "dp_replicate_size": 2}, 8, 2, None),
    ],
)
def test_ranks_beyond_axolotls_shards_have_copies(said, devices, copies, shards):
    """As many as are left, which only the number of devices tells."""
    found = read(json.dumps({**HSDP, **said}), "a.json", "axolotl")
    plan = found.placed(devices)
    assert (plan.data_parallel.hsdp, plan.data_parallel.zero) == (copies, 3)
    assert found.sized.shard_ranks == shards
    assert (f"{shards} data-parallel ranks share" in str(found.notes)) == (shards is not None)
    if shards:
        with pytest.raises(UserError, match=r"allowed: a divisor of the \d data-parallel ranks"):
            found.placed(6 * plan.mesh.tp)


def test_copies_of_axolotls_shards_are_checked(tmp_path, capsys):
    """On the devices of the command."""
    file = tmp_path / "axolotl.yaml"
    file.write_text(yaml.safe_dump({**HSDP, "base_model": "Qwen/Qwen3-0.6B", "dp_shard_size": 4}))
    _, found = checked(capsys, "--hardware", "dgx-h100", "--gpus", "8", str(file))
    assert found["plan"]["data_parallel"]["hsdp"] == 2
    assert run(["check", "--hardware", "dgx-h100", "--gpus", "6", str(file)]) == 2
    assert f"{file}: gives plan.data_parallel: states shared by 4 ranks" in capsys.readouterr().err


FSDP, ZERO_3 = {"fsdp": "full_shard auto_wrap"}, {"deepspeed": DEEPSPEED_AUTO}


@pytest.mark.parametrize(
    ("beside", "axes", "values"),
    [
        (FSDP, {"dp_replicate_size": 2, "dp_shard_size": 4}, {"hsdp": 2, "dp": 8, "zero": 3}),
        (FSDP, {"parallelism_config_cp_size": 2, "dp_shard_size": 4}, {"cp": 2, "dp": 4, "cp_balance": "zigzag"}),
        (FSDP, {"tp_size": 2, "dp_shard_size": 4, "cp_backend": "torch"}, {"tp": 2, "dp": 4}),
        (FSDP, {"sp_size": 4, "dp_shard_size": 2}, {"cp": 4, "dp": 2, "cp_method": "ulysses"}),
        (ZERO_3, {"sp_size": 4, "dp_shard_size": 2, "sp_backend": "deepspeed"}, {"cp": 4, "zero": 3}),
        ({}, {"dp_replicate_size": 8}, {"dp": 8, "zero": 0}),
        ({}, {"dp_shard_size": 8}, None),
        (FSDP, {"dp_shard_size": 4, "ep_size": 2}, None),
    ],
)
def test_axes_of_a_trainers_parallelism_config(beside, axes, values, tmp_path):
    """Those of Accelerate, in YAML and on a command line; what nothing shards, and other axes, decide."""
    own = {"model_name_or_path": "Qwen/Qwen3-8B", "per_device_train_batch_size": 1, "max_length": 4096, "bf16": True,
           "packing": True, **beside}  # fmt: skip
    script = (
        f"torchrun --nproc-per-node 8 sft.py --config {tmp_path / 'sft.yaml'} --parallelism_config '{json.dumps(axes)}'"
    )
    texts = (("a.yaml", yaml.safe_dump({**own, "parallelism_config": axes})), ("a.sh", script))
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(own))
    for name, text in texts:
        found = read(text, name, "transformers")
        words = load_reader("transformers").words.sort((), found.words.unread)
        decides = any(word.lstrip("-").startswith("parallelism_config") for word in (*words.deciding, *words.unknown))
        assert decides is (values is None)
        plan = found.plan.flat_values()
        assert {key: plan.get(key, 0) for key in values or {}} == (values or {})


def test_axes_that_are_no_numbers_are_named():
    """With the file and the axis."""
    with pytest.raises(UserError, match=r"a.yaml: .*tp_size = 0.5: allowed: an integer"):
        read("per_device_train_batch_size: 1\nparallelism_config: {tp_size: 0.5}\n", "a.yaml", "transformers")


def test_a_path_with_spaces_is_a_file(tmp_path):
    """A launch in one word is a command as before."""
    command = "torchrun --nproc-per-node 2 sft.py --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 3"
    folder = tmp_path / "my runs"
    folder.mkdir()
    (folder / "run me.sh").write_text(command)
    (folder / "my sft.yaml").write_text("model_name_or_path: Qwen/Qwen3-0.6B\nper_device_train_batch_size: 3\n")
    for given in (folder / "run me.sh", folder / "my sft.yaml", command):
        assert given_words([str(given)]).found.plan.micro_batch == 3


OF_FILE = {"model_name_or_path": "meta-llama/Llama-3.2-1B", "per_device_train_batch_size": 4, "bf16": True}


def test_a_file_of_arguments_is_read_with_the_script_that_gets_it(tmp_path, monkeypatch, capsys, no_neighbours):
    """Its own defaults, what it trains on, its launcher's nodes and its variables: the file alone says none of them."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "args.json"
    start, ranks = ["--hardware", "dgx-h100", "--"], ["torchrun", "--nproc_per_node", "8"]
    file.write_text(json.dumps({**OF_FILE, "max_length": 1024}))
    assert run(["check", *start, *ranks, "train_dpo.py", file.name]) == 2
    assert "train_dpo.py: preferences and rewards are not modelled" in capsys.readouterr().err
    file.write_text(json.dumps({**OF_FILE, "dataset_name": "wikitext"}))
    _, found = checked(capsys, *start, *ranks, "run_clm.py", file.name)
    assert (found["plan"]["training"]["seq_len"], found["plan"]["memory"]["recompute"]) == (1024, "none")
    file.write_text(json.dumps(OF_FILE))
    _, found = checked(capsys, *start, "python", "qlora.py", file.name)
    assert (found["plan"]["tuning"]["lora_rank"], found["plan"]["tuning"]["frozen_dtype"]) == (64, "nf4")
    file.write_text(json.dumps({**OF_FILE, "model_max_length": 1024, "fsdp": "hybrid_shard auto_wrap"}))
    _, found = checked(capsys, *start, *ranks, "--nnodes", "4", "train.py", file.name)
    assert found["plan"]["data_parallel"]["hsdp"] == 4


@pytest.mark.parametrize("command", ["llamafactory-cli train c.yaml", "cd sub && llamafactory-cli train ../c.yaml",
                                     "torchrun --nproc_per_node 8 src/train.py c.yaml"])  # fmt: skip
def test_variables_shard_beside_a_file_of_arguments(command, tmp_path, monkeypatch, capsys):
    """Those of Accelerate, before a front end that starts the ranks itself; edits are made in the file all the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({
        "model_name_or_path": "Qwen/Qwen2.5-0.5B", "stage": "sft", "do_train": True, "finetuning_type": "full",
        "dataset": "x", "output_dir": "o", "cutoff_len": 1024, "per_device_train_batch_size": 1, "bf16": True,
        "gradient_accumulation_steps": 8}))  # fmt: skip
    for variables, zero in (("", 0), ("ACCELERATE_USE_FSDP=true FSDP_VERSION=2", 3)):
        script = tmp_path / "train.sh"
        script.write_text(f"export {variables}\n{command}\n" if variables else f"{command}\n")
        _, found = checked(capsys, "--hardware", "dgx-h100", str(script))
        assert (found["plan"]["data_parallel"]["zero"], found["cluster"]["devices"]) == (zero, 8)
        edits = [edit for one in found["neighbours"] for edit in one["edits"] if one["patched"]]
        assert edits or variables
        assert not any(edit.startswith("--") for edit in edits)

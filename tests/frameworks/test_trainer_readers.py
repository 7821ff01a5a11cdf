"""Launches of trainers on Hugging Face's: their arguments, files that these name, and exports that come back."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, read
from simpar.frameworks.match import find_released
from simpar.preflight.given import given_words

from .conftest import TRAINING, checked, exported

TRAIN = "python train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2"
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
}
FSDP = """
distributed_type: FSDP
fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_version: 2, fsdp_reshard_after_forward: true}
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""


def plan(command, target="transformers", name="the command"):
    """Values of the plan of a command, by name."""
    return read(command, name, target).plan.flat_values()


def kinds(text):
    """The reader that a command is told to be of."""
    words = text.split()
    return next((name for name in READERS if load_reader(name).starts(words)), None)


def test_a_deepspeed_config_of_auto_is_filled_in_from_the_arguments(tmp_path):
    """Micro-batch, accumulation and precision are the arguments'; buckets follow from the width of the model."""
    (tmp_path / "z3.json").write_text(json.dumps(AUTO))
    command = (
        "deepspeed --num_gpus 8 sft.py --deepspeed z3.json --model_name_or_path meta-llama/Llama-2-7b-hf "
        "--model_max_length 4096 --per_device_train_batch_size 4 --gradient_accumulation_steps=2 "
        "--gradient_checkpointing True --bf16 True"
    )
    found = read(command, str(tmp_path / "train.sh"), "transformers")
    values = found.plan.flat_values()
    assert (found.plan.model, found.plan.stack, values["micro_batch"]) == ("llama-2-7b", "deepspeed", 4)
    assert (values["zero"], values["recompute"], values["precision"]) == (3, "full", "bf16")
    assert values["bucket_bytes"] == f"{4096 * 4096 * 2} B"
    assert found.global_batch(8) == 64
    assert found.plan.training == {"seq_len": 4096}
    assert found.assumed[0].key == "seq_len"
    wrong = {**AUTO, "train_micro_batch_size_per_gpu": 1}
    (tmp_path / "z3.json").write_text(json.dumps(wrong))
    with pytest.raises(
        UserError, match="train_micro_batch_size_per_gpu = 1: allowed: auto, or what the arguments say, 4"
    ):
        read(command, str(tmp_path / "train.sh"), "transformers")


def test_a_deepspeed_config_that_the_script_writes_is_read():
    """Before the launch, by a here-document; it need not be on the disk."""
    arguments = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 1 --deepspeed $C"
    command = f"torchrun --nproc_per_node 8 run_clm.py {arguments}"
    script = f'C=/data/ds.json\ncat <<EOF > $C\n{{"zero_optimization": {{"stage": 2}}}}\nEOF\n{command}\n'
    result = read(script, "train.sh", "transformers")
    assert (result.plan.stack, result.plan.zero) == ("deepspeed", 2)
    with pytest.raises(UserError, match=r"/data/ds\.json: no such file"):
        read(f"C=/data/ds.json\n{command}\n", "train.sh", "transformers")


@pytest.mark.parametrize(
    "launcher", ["accelerate launch", "srun -N 1 accelerate launch", "mpirun -n 1 python -m accelerate.commands.launch"]
)
def test_accelerates_config_and_the_arguments_are_one_plan(tmp_path, launcher):
    """Sharding is the config's, batch and checkpointing are the script's, whatever starts the launcher."""
    (tmp_path / "fsdp.yaml").write_text(FSDP)
    command = f"{launcher} --config_file fsdp.yaml {TRAIN.removeprefix('python ')} --gradient_checkpointing"
    found = read(command, str(tmp_path / "train.sh"), "transformers")
    values = found.plan.flat_values()
    assert (values["dp"], values["zero"], values["micro_batch"], values["recompute"]) == (8, 3, 2, "full")
    assert values["precision"] == "bf16"
    assert kinds(command) == "transformers"
    assert kinds("accelerate launch --config_file fsdp.yaml train.py") == "accelerate"


@pytest.mark.parametrize(
    ("flags", "rank", "targets", "dtype"),
    [
        ("--use_peft --lora_r 16 --lora_target_modules all-linear --load_in_4bit", 16, 7, "nf4"),
        ("--lora_r 64", 64, 2, "bf16"),
        ("--use_peft False --lora_r 16", None, 7, "bf16"),
        ("--use_lora True --lora_target_modules=q_proj,k_proj", 8, 2, "bf16"),
        ("--q_lora True --use_lora True", 8, 2, "nf4"),
        ("--use_qlora --lora_rank 4 --trainable q_proj,v_proj,o_proj", 4, 3, "nf4"),
        ("--use_peft_lora True --lora_r 4 --use_4bit_quantization True", 4, 2, "nf4"),
        ("--use_peft_lora True --lora_r 4 --use_4bit_quantization False --bits 4", 4, 2, "nf4"),
        ("--bf16 --use_lora --torch_dtype float32", 8, 2, "fp32"),
        ("--model_name_or_path unsloth/Qwen3-8B-unsloth-bnb-4bit --use_lora --bf16", 8, 2, "nf4"),
        ("--use_lora --load_in_8bit True --bf16", 8, 2, "int8"),
        ("--use_peft_lora True --lora_r 4 --bits 8", 4, 2, "int8"),
        ("--model_name_or_path Qwen/Qwen2.5-7B-Instruct-AWQ --lora_r 4 --bf16", 4, 2, "nf4"),
        ("--model_name_or_path Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8 --lora_r 4 --bf16", 4, 2, "bf16"),
        (r"--lora_r 8 --lora_target_modules 'model.layers.[\d]+.(mlp|self_attn).(up|down|q|k|v|o)_proj'", 8, 6, "bf16"),
    ],
)  # fmt: skip
def test_adapters_are_never_read_as_full_training(flags, rank, targets, dtype):
    """Rank, targets and bits of the frozen weights."""
    values = plan(f"{TRAIN} {flags}")
    assert values.get("lora_rank") == rank
    assert values["frozen_dtype"] == dtype
    assert rank is None or len(values["lora_targets"]) == targets


def test_bits_in_a_models_name_are_said():
    """4 bits of groups are taken for nf4, which is assumed; 8 bits are not modelled, and decide."""
    four, eight, own = (
        read(f"{TRAIN} --lora_r 4 --bf16 --model_name_or_path Qwen/Qwen2.5-7B-Instruct-{name}", "-", "transformers")
        for name in ("GPTQ-Int4", "GPTQ-Int8", "bnb-4bit")
    )
    told = [[each.value for each in found.assumed if each.key == "frozen_dtype"] for found in (four, eight, own)]
    assert told == [["nf4"], ["bf16"], []]
    words = load_reader("transformers").words
    assert [list(words.sort((), found.words.unread).deciding) for found in (four, eight)] == [
        [],
        ["--model_name_or_path"],
    ]


def test_a_model_that_an_argument_names_is_asked_for():
    """As one that is not here; the rest of the launch is read."""
    result = read(
        f"{TRAIN} --bf16 --model_name_or_path $3".replace("--model_name_or_path a/b", ""), "-", "transformers"
    )
    assert (result.plan.model, result.asks["model"]) == (
        None,
        "The model is ${3}, which the text does not say: give --model.",
    )


def test_targets_below_a_towers_language_model():
    """Patterns of names as MiniCPM-V's scripts have them; 2 bits of AQLM are taken for the nearest, 4."""
    pattern = r"'llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj)'"
    result = read(f"{TRAIN} --use_lora --bf16 --lora_target_modules {pattern}", "-", "transformers")
    assert result.plan.lora_targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    few = read(f"{TRAIN} --lora_r 4 --bf16 --model_name_or_path x/Meta-Llama-3-8B-AQLM-2Bit-1x16", "-", "transformers")
    assert [each.value for each in few.assumed if each.key == "frozen_dtype"] == ["nf4"]


def test_a_script_of_4_bits_has_its_own_habits():
    """Arguments of qlora.py are adapters beside 4 bits even if they say none of it; --full_finetune trains all."""
    command = "python qlora.py --model_name_or_path huggyllama/llama-7b"
    found = read(command, "the command", "transformers")
    values = found.plan.flat_values()
    assert (values["lora_rank"], len(values["lora_targets"]), values["frozen_dtype"]) == (64, 7, "nf4")
    assert found.plan.training == {"seq_len": 1280}
    assert read(f"{command} --source_max_len 16 --target_max_len 512", "-", "transformers").plan.training == {
        "seq_len": 528
    }
    assert plan(f"{command} --full_finetune").get("lora_rank") is None


@pytest.mark.parametrize(
    ("flags", "target", "keys"),
    [
        ("--model_max_length 8 --group_texts", "transformers", {"precision", "attention_kernel"}),
        ("--block_size 8 --bf16 --fsdp full_shard", "transformers", {"seq_len", "attention_kernel"}),
        ("--lora_r 8 --packing --bf16", "transformers",
         {"attention_kernel", "lora_targets", "lora_dropout", "frozen_dtype", "recompute"}),
        ("--use_lora --lora_dropout 0 --torch_dtype auto --bf16", "transformers",
         {"attention_kernel", "lora_targets", "lora_rank"}),
        ("--use_lora --bf16 --fsdp full_shard", "transformers",
         {"attention_kernel", "lora_targets", "lora_rank", "lora_dropout", "frozen_dtype"}),
        ("--lora_rank 8 --finetuning_type lora --stage sft --neat_packing", "llama-factory", {"documents.mean"}),
    ],
)  # fmt: skip
def test_what_a_script_decides_itself_is_assumed(flags, target, keys):
    """Precision, bits of frozen weights, rank and targets, where no argument says them; habits of a tool are facts."""
    found = read(f"{TRAIN} {flags}", "the command", target)
    assert {each.key for each in found.assumed} == keys
    assert all(each.others for each in found.assumed)


def test_adapters_of_llama_factory_are_in_the_dtype_of_the_checkpoint():
    """Without bf16 or fp16, adapters are beside 16 bits; full training is in fp32. `trl sft` loads fp32."""
    command = "llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --stage sft"
    assert plan(command, "llama-factory")["precision"] == "bf16"
    assert plan(f"{command} --finetuning_type full", "llama-factory")["precision"] == "fp32"
    trl = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x --use_peft"
    assert plan(trl, "trl")["frozen_dtype"] == "fp32"
    assert plan(f"{trl} --dtype bfloat16", "trl")["frozen_dtype"] == "bf16"
    assert plan(f"{trl} --fsdp full_shard", "trl")["frozen_dtype"] == "fp32"  # of shards, which are gathered in 16 bits


def test_accelerates_precision_fills_in_a_deepspeed_config(tmp_path):
    """The launcher's precision is the script's, also where the config says "auto"."""
    (tmp_path / "z3.json").write_text(json.dumps(AUTO))
    command = (
        f"accelerate launch --mixed_precision bf16 --num_processes 4 --use_deepspeed --deepspeed_config_file z3.json "
        f"{TRAIN.removeprefix('python ')}"
    )
    values = plan(command, "transformers", str(tmp_path / "train.sh"))
    assert (values["precision"], values["zero"], values["dp"]) == ("bf16", 3, 4)


@pytest.mark.parametrize("launcher", ["mpiexec -n 8 -ppn 4", "horovodrun -np 8", "ibrun", "jsrun -n 8", ""])
def test_python_is_alone_unless_a_launcher_starts_it(launcher):
    """Of as many processes as it is told, whatever its name."""
    assert plan(f"{launcher} {TRAIN}", "transformers").get("dp") == (None if launcher else 1)


@pytest.mark.parametrize(("said", "precision"), [("", "bf16"), ("--fp16", "fp16"), ("--bf16 false", "bf16")])
def test_what_arguments_ask_for_wins_over_accelerates_precision(said, precision):
    """TrainingArguments put fp16 or bf16 into the environment that Accelerate reads."""
    start = "accelerate launch --multi_gpu --num_processes 4 --mixed_precision bf16"
    assert plan(f"{start} {TRAIN.removeprefix('python ')} {said}", "transformers")["precision"] == precision


FACTORY_1 = {
    "model": "Qwen/Qwen3-4B", "model_class": "llm", "cutoff_len": 1024, "micro_batch_size": 2, "global_batch_size": 32,
    "dist_config": {"name": "fsdp2", "dcp_path": None},
    "peft_config": {"name": "lora", "r": 16, "target_modules": "all"}, "quant_config": {"quantization_bit": 4},
}  # fmt: skip


def test_scripts_of_trl_are_its_command():
    """`python trl/scripts/sft.py` is `trl sft`; its other scripts are refused as its other commands are."""
    words = "trl/scripts/sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x"
    assert kinds(f"python {words}") == "trl"
    assert read(f"python {words}", "-", "trl").plan.training == {"seq_len": 1024}
    with pytest.raises(UserError, match="trl dpo: allowed: trl sft"):
        read(f"python {words.replace('sft.py', 'dpo.py')}", "-", "trl")


def test_unsloth_sends_activations_to_the_host():
    """Unless told otherwise."""
    command = "python unsloth-cli.py --model_name Qwen/Qwen3-8B"
    assert plan(command, "unsloth")["offload_activations"] == 1.0
    assert plan(f"{command} --use_gradient_checkpointing True", "unsloth")["offload_activations"] == 0.0


def test_configs_of_llama_factory_1_are_read():
    """Sections for adapters, bits and sharding; without adapters everything is trained."""
    found = read(json.dumps(FACTORY_1), "v1.yaml", "llama-factory")
    values = found.plan.flat_values()
    assert (values["lora_rank"], values["frozen_dtype"], values["zero"], values["precision"]) == (16, "nf4", 3, "bf16")
    assert found.plan.training == {"seq_len": 1024, "global_batch": 32}
    assert {"peft_config.r", "quant_config.quantization_bit"} <= set(found.words.used)
    whole = {key: value for key, value in FACTORY_1.items() if key not in ("peft_config", "quant_config")}
    assert read(json.dumps(whole), "v1.yaml", "llama-factory").plan.flat_values().get("lora_rank") is None


def test_plugins_of_axolotl_are_read_by_their_options():
    """The loss in pieces; a plugin whose effect is not known decides."""
    config = {"base_model": "Qwen/Qwen3-8B", "sequence_len": 512, "micro_batch_size": 1, "plugins": [
        "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}  # fmt: skip
    found = read(json.dumps(config), "a.yaml", "axolotl")
    assert found.plan.flat_values()["loss_chunks"] == 64
    assert "plugins" in found.words.used
    config["batch_size"] = 4  # of a rank: accumulated up to it (utils/config/__init__.py)
    assert read(json.dumps(config), "a.yaml", "axolotl").per_replica == 4
    with pytest.raises(UserError, match=r"a\.yaml:1: batch_size = 4: allowed: at least micro_batch_size, 8"):
        read(json.dumps({**config, "micro_batch_size": 8}), "a.yaml", "axolotl")
    config["plugins"].append("axolotl.integrations.diffusion.DiffusionPlugin")
    assert "plugins" in read(json.dumps(config), "a.yaml", "axolotl").words.unread


def test_words_of_other_sizes_are_left_to_the_table():
    """Optimizers, bits and kernels that are not modelled decide; idle words do not."""
    found = read(
        f"{TRAIN} --optim ademamix --use_lora --bits 3 --attn_implementation flex_attention --lr 1 "
        "--tf32 True --model_revision main --fp16 False --bf16 False",
        "-",
        "transformers",
    )
    account = load_reader("transformers").words.sort(found.words.used, found.words.unread)
    assert set(account.deciding) == {"--optim", "--bits", "--attn_implementation", "--tf32"}
    assert account.idle == ("--lr", "--model_revision")
    assert not account.unknown


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--fsdp 'full_shard auto_wrap offload'", {"zero": 3, "offload_parameters": "cpu"}),
        ("--fsdp shard_grad_op", {"zero": 2}),
        ("--optim adamw_torch_fused", {"optimizer": "adamw", "optimizer_kernels": "fused"}),
        ("--use_liger_kernel", {"fused_kernels": "norm+activation+rope", "loss_chunks": 16}),
        ("--torch_compile", {"fused_kernels": "compiled"}),
        ("--torch_empty_cache_steps 4", {"empty_cache_steps": 4}),
        ("--bf16 --attn_implementation flash_attention_2", {"precision": "bf16", "attention_kernel": "flash2"}),
        ("--torch_dtype bfloat16", {"parameter_dtype": "bf16", "master_weights": False}),
        ("--gradient_checkpointing=unsloth", {"recompute": "full", "offload_activations": 1.0}),
    ],
)
def test_arguments_say_the_plan(flags, expected):
    """One flag each."""
    values = plan(f"{TRAIN} {flags}")
    assert {key: values[key] for key in expected} == expected


FRONT_ENDS = {
    "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x": ("trl", "full", "bf16", None, 1024),
    "llamafactory-cli train --model_name_or_path Qwen/Qwen3-8B --stage sft --bf16 true": (
        "llama-factory", "full", "bf16", 8, 2048,
    ),
    "python unsloth-cli.py --model_name Qwen/Qwen3-8B --max_seq_length 512 --load_in_4bit --r 16": (
        "unsloth", "full", "bf16", 16, 512,
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", FRONT_ENDS)
def test_front_ends_have_their_own_habits(command):
    """What they do unless told otherwise."""
    target, recompute, precision, rank, length = FRONT_ENDS[command]
    assert kinds(command) == target
    found = read(command, "the command", target)
    values = found.plan.flat_values()
    assert (values["recompute"], values["precision"], values.get("lora_rank")) == (recompute, precision, rank)
    assert found.plan.training == {"seq_len": length}


def test_other_stages_are_refused_by_name():
    """Preferences and rewards run other passes than the next token's loss."""
    with pytest.raises(UserError, match="trl dpo: allowed: trl sft"):
        read("trl dpo --model_name_or_path x", "the command", "trl")
    for command in ("trl grpo --use_vllm", TRAIN.replace("train.py", "scripts/run_grpo.py")):
        with pytest.raises(UserError, match="its reinforcement learning is not read, only launches of verl"):
            read(command, "the command", command.split()[0] if command.startswith("trl") else "transformers")
    with pytest.raises(UserError, match=r"num_generations = 8.*reinforcement learning is not read"):
        read("model_name_or_path: x\nnum_generations: 8\n", "grpo.yaml", "trl")
    with pytest.raises(UserError, match=r"run_dpo\.py: preferences and rewards are not modelled"):
        read(TRAIN.replace("train.py", "scripts/run_dpo.py"), "the command", "transformers")
    with pytest.raises(UserError, match="stage = 'dpo'"):
        read("model_name_or_path: x\nstage: dpo\ncutoff_len: 8\n", "lf.yaml", "llama-factory")


FILES = {
    "trl": "sft.yaml",
    "axolotl": "axolotl.yaml",
    "llama-factory": "train.yaml",
    "transformers": "training_args.json",
}
SHARED = {"ddp": {"dp": 8}, "full": {"dp": 8, "zero": 3, "recompute": "full"}, "kept": {"dp": 8, "zero": 2},
          "host": {"dp": 8, "zero": 3, "offload_parameters": "cpu", "offload_optimizer": "cpu"},
          "checkpoints": {"dp": 8, "recompute": "full", "attention_kernel": "flash2"}}  # fmt: skip


@pytest.mark.parametrize("label", SHARED)
@pytest.mark.parametrize("target", FILES)
def test_exports_of_trainers_come_back(target, label):
    """What an exported config says is read as it was."""
    values = SHARED[label]
    if target == "axolotl":
        values = {"master_weights": False, **values} if "zero" in values else {"precision": "fp32", "dp": 8}
    if target == "transformers":
        values = {key: value for key, value in values.items() if key != "attention_kernel"}  # in its script
    given = checked("llama-3.1-8b", micro_batch=2, **values)
    found = read(exported(target, given)[FILES[target]], FILES[target], target)
    before, after = given.flat_values(), found.plan.flat_values()
    names = {"zero", "recompute", "precision", "micro_batch", "optimizer", "offload_parameters"} | set(values) - {"dp"}
    assert {name: after[name] for name in names} == {name: before[name] for name in names}
    assert found.global_batch(8) == TRAINING.global_batch
    if target != "transformers":
        assert found.plan.model == "llama-3.1-8b"
        assert found.plan.training == {"seq_len": TRAINING.seq_len}


def test_axolotls_replicas_of_shards_come_back():
    """dp_replicate_size and dp_shard_size."""
    given = checked("llama-3.1-8b", dp=8, zero=3, hsdp=2, master_weights=False)
    found = read(exported("axolotl", given)["axolotl.yaml"], "axolotl.yaml", "axolotl").plan.flat_values()
    assert (found["dp"], found["hsdp"]) == (8, 2)


def test_names_are_of_shipped_models_folders_or_the_cache(tmp_path, monkeypatch):
    """Offline: nothing is asked of the hub."""
    config = {"model_type": "llama", "hidden_size": 64}
    snapshot = tmp_path / "hub" / "models--acme--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    assert find_released("acme/tiny") == str(snapshot / "config.json")
    assert find_released("own", str(tmp_path / "train.sh")) == str(tmp_path / "own" / "config.json")
    assert find_released("Qwen/Qwen3-32B") == "qwen3-32b"
    assert find_released("acme/other") is None


def test_a_batch_of_all_ranks_is_one():
    """As alpaca-lora says it, which accumulates what is left of it."""
    command = "torchrun --nproc_per_node 8 finetune.py --base_model meta-llama/Llama-2-7b-hf --micro_batch_size 4 "
    found = read(f"{command} --batch_size 128 --cutoff_len 512 --lora_r 8", "the command", "transformers")
    assert found.plan.training == {"seq_len": 512, "global_batch": 128}
    assert found.plan.flat_values()["lora_rank"] == 8


@pytest.mark.parametrize(
    ("command", "target", "message"),
    [
        ("llamafactory-cli dpo v1.yaml", "llama-factory", "llamafactory-cli dpo: allowed: train, sft"),
        ("llamafactory-cli export --model_name_or_path Qwen/Qwen3-8B", "llama-factory", "llamafactory-cli export"),
        ("llamafactory-cli train --stage sft --model_name_or_path Qwen/Qwen3-8B --do_predict true", "llama-factory",
         "do_train is off: nothing is trained"),
        (f"{TRAIN} --do_predict", "transformers", "do_train is off: nothing is trained"),
        ("python train.py --model_name_or_path t5-large --do_eval --per_device_eval_batch_size 8 --max_length 64",
         "transformers", "do_train is off: nothing is trained"),
    ],
)  # fmt: skip
def test_what_trains_nothing_is_refused(command, target, message, tmp_path, monkeypatch):
    """Predictions, exports, and commands that train on preferences; never answered as training."""
    (tmp_path / "v1.yaml").write_text(json.dumps(FACTORY_1))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        read(command, "the command", target)
    with pytest.raises(UserError, match=message):
        given_words(command.split())
    assert plan(f"{TRAIN} --do_predict --do_train")["micro_batch"] == 2


def test_a_model_of_reference_decides():
    """ASFT keeps one beside the trained model."""
    found = read(json.dumps({**FACTORY_1, "use_asft_loss": True}), "v1.yaml", "llama-factory")
    account = load_reader("llama-factory").words.sort(found.words.used, found.words.unread)
    assert "use_asft_loss" in account.deciding


def test_arguments_of_a_script_end_the_values_of_a_flag():
    """A script that hands its own on is read as started without any."""
    found = read(f'{TRAIN} --bf16 --optim sgd "$@"\n', "train.sh", "transformers").plan.flat_values()
    assert (found["optimizer"], found["precision"]) == ("sgd", "bf16")


def test_a_dtype_of_weights_that_is_said_is_not_assumed():
    """fp32 parameters beside products of 16 bits, which scripts may load otherwise."""
    for said, open_ in (("--dtype float32", False), ("", True)):
        assumed = read(f"{TRAIN} --bf16 {said}", "train.sh", "transformers").assumed
        assert ("parameter_dtype" in [each.key for each in assumed]) is open_


def test_a_config_that_is_not_deepspeeds_is_none(tmp_path, monkeypatch):
    """Where it is named for that, by arguments, by Accelerate's config, or by its command: the stage was 0."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text('{"distributed_type": "DEEPSPEED"}')
    ours = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "other.json"}}
    (tmp_path / "a.yaml").write_text(json.dumps(ours))
    for start in (f"{TRAIN} --deepspeed other.json", TRAIN.replace("python", "accelerate launch --config_file a.yaml")):
        with pytest.raises(UserError, match=r"other\.json: no DeepSpeed config"):
            read(start, "job.sh", "transformers")
    with pytest.raises(UserError, match=r"other\.json: no DeepSpeed config"):
        read(json.dumps(ours), "a.yaml", "accelerate")


@pytest.mark.parametrize(
    ("told", "method", "balance"),
    [
        ("context_parallel_size: 2\nsample_packing: true\n", "all_gather", "contiguous"),
        ("sequence_parallel_degree: 2\n", "ring", "contiguous"),
        ("context_parallel_size: 2\nring_attn_func: batch_zigzag\n", "ring", "zigzag"),
        ("context_parallel_size: 1\n", None, None),
        ("context_parallel_size: 2\nring_attn_func: batch_stripe\n", None, None),
    ],
)  # fmt: skip
def test_axolotl_shares_sequences(told, method, balance):
    """By a ring of its own or by packing; what is left of eight devices are 2 shards, and 2 of a layer."""
    text = (
        "base_model: Qwen/Qwen3-8B\nsequence_len: 8192\nmicro_batch_size: 1\nflash_attention: true\nbf16: true\n"
        "fsdp_version: 2\nfsdp_config: {offload_params: false, auto_wrap_policy: TRANSFORMER_BASED_WRAP}\n"
        f"dp_shard_size: 2\ntensor_parallel_size: 2\n{told}"
    )
    result = read(text, "a.yaml", "axolotl")
    values, words = result.plan.flat_values(), load_reader("axolotl").words
    assert (values["cp"], values.get("cp_method"), values.get("cp_balance")) == (2 if method else 1, method, balance)
    assert (values["tp"], values["zero"], result.global_batch(8)) == (2, 3, 2 if method else 4)
    left = words.sort(result.words.used, result.words.unread)
    stripe = {"context_parallel_size", "ring_attn_func"} if "stripe" in told else set()
    assert ({*left.deciding}, left.unknown) == (stripe, ())


def test_axes_of_accelerate_have_as_many_ranks_as_processes():
    """Accelerate starts nothing else (``ParallelismConfig``); axes of one say nothing, and so do those of ALST."""
    axes = "parallelism_config: {{parallelism_config_dp_shard_size: {}, parallelism_config_tp_size: {}}}\n"
    found = read(FSDP + axes.format(4, 2), "a.yaml", "accelerate").plan.mesh
    assert (found.dp, found.tp) == (4, 2)
    assert read(FSDP + axes.format(1, 1), "a.yaml", "accelerate").plan.mesh.dp == 8
    for sizes, told in (((2, 2), "4 ranks (tp 2 x dp_shard 2)"), ((1, 2), "2 ranks (tp 2)"), ((16, 1), "16 ranks")):
        with pytest.raises(UserError, match=r"a\.yaml:6: num_processes = 8: parallelism_config") as error:
            read(FSDP + axes.format(*sizes), "a.yaml", "accelerate")
        assert f"has axes of {told}" in str(error.value)
    alst = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}\n"
    alst += "parallelism_config: {parallelism_config_sp_size: 2, parallelism_config_dp_shard_size: 1}\n"
    assert read(alst, "a.yaml", "accelerate").plan.mesh.cp == 2

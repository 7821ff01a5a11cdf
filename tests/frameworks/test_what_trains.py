"""Which commands of trainers train, on what, and what their launchers' own flags say."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, read
from simpar.preflight.given import given_words
from simpar.preflight.launcher import launch_of

TRAIN = "python train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2"


def kinds(text):
    """The reader that a command is told to be of."""
    words = text.split()
    return next((name for name in READERS if load_reader(name).starts(words)), None)


@pytest.mark.parametrize(
    ("script", "decides"),
    [
        ("run_swag_no_trainer.py", True), ("run_glue.py", True), ("run_ner.py", True), ("train_classifier.py", True),
        ("run_clm.py", False), ("sft.py", False), ("run_mlm.py", False),
    ],
)  # fmt: skip
def test_heads_of_classes_decide_by_the_name_of_the_script(script, decides):
    """Their logits are not those of a vocabulary."""
    start = f"python {script} --model_name_or_path bert-base-cased --max_seq_length 128"
    words = read(f"{start} --per_device_train_batch_size 4", "the command", "transformers").words
    account = load_reader("transformers").words.sort((), words.unread)
    assert ("the script's task" in account.deciding) is decides


@pytest.mark.parametrize("flag", ["--no_cuda", "--use_cpu True", "--use_mps_device True"])
def test_training_on_processors_decides(flag):
    """It is not what devices would take."""
    account = load_reader("transformers").words.sort(
        (), read(f"{TRAIN} {flag}", "the command", "transformers").words.unread
    )
    assert list(account.deciding.values()) == ["training runs on processors: time and memory"]
    off = read(f"{TRAIN} --use_cpu False", "the command", "transformers").words.unread
    assert not load_reader("transformers").words.sort((), off).deciding


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ("--dynamo_backend inductor", {"fused_kernels": "compiled"}),
        ("--dynamo_backend no", {"fused_kernels": None}),
        ("--use_megatron_lm --megatron_lm_tp_degree 2", {"stack": "megatron", "tp": 2, "dp": 1}),
    ],
)
def test_flags_of_a_launcher_without_a_config_count(flags, values):
    """They were taken as read, and had no effect."""
    found = read(
        f"accelerate launch {flags} --num_processes 2 {TRAIN.removeprefix('python ')}", "the command", "transformers"
    )
    plan = found.plan.flat_values()
    assert {key: plan.get(key) or getattr(found.plan, key, None) for key in values} == values
    assert flags.split()[0] in found.words.used


def test_a_launcher_on_processors_decides():
    """A word of the launcher alone."""
    words = read(
        f"accelerate launch --cpu --num_processes 2 {TRAIN.removeprefix('python ')}", "a", "transformers"
    ).words
    assert list(load_reader("transformers").words.sort((), words.unread).deciding) == ["--cpu"]


AXOLOTL_YAML = "base_model: Qwen/Qwen3-8B\nsequence_len: 2048\nmicro_batch_size: 1\nbf16: true\n"


@pytest.mark.parametrize(
    "command",
    [
        "axolotl inference a.yml", "axolotl preprocess a.yml", "axolotl merge-lora a.yml",
        "accelerate launch -m axolotl.cli.merge_lora a.yml", "python -m axolotl.cli.evaluate a.yml",
    ],
)  # fmt: skip
def test_commands_of_axolotl_that_train_nothing_are_refused(command, tmp_path, monkeypatch):
    """They take the config of a training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yml").write_text(AXOLOTL_YAML)
    with pytest.raises(UserError, match=r"axolotl [\w-]+: it trains nothing; allowed: axolotl train"):
        given_words(command.split())


def test_what_prepares_the_data_is_not_the_launch(tmp_path, monkeypatch):
    """Its one process is not that of the training behind it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yml").write_text(AXOLOTL_YAML)
    script = "CUDA_VISIBLE_DEVICES= python -m axolotl.cli.preprocess a.yml\n"
    script += "torchrun --nproc_per_node 4 -m axolotl.cli.train a.yml\n"
    (tmp_path / "run.sh").write_text(script)
    assert given_words(["run.sh"]).launch.per_node == 4
    (tmp_path / "other.sh").write_text(
        "python convert_checkpoint.py --model_name_or_path Qwen/Qwen3-8B --max_length 9\n"
        f"torchrun --nproc_per_node 2 {TRAIN.removeprefix('python ')}\n"
    )
    assert given_words(["other.sh"]).launch.per_node == 2


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ("adapter_name_or_path: saves/lora\nexport_dir: models/a\nexport_size: 2\n", True),  # examples/merge_lora
        ("adapter_name_or_path: saves/lora\ninfer_backend: vllm\n", True),  # examples/inference
        ("stage: sft\ncutoff_len: 1024\n", False),
        ("do_train: true\n", False),
    ],
)
def test_configs_of_llama_factory_that_train_nothing_are_refused(text, is_refused):
    """Its inference, merges and exports have YAML of the same names."""
    whole = f"model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: lora\ntemplate: qwen3\n{text}"
    if not is_refused:
        assert read(whole, "a.yaml", "llama-factory").plan.model == "qwen3-8b"
        return
    with pytest.raises(UserError, match="do_train is off: nothing is trained"):
        read(whole, "a.yaml", "llama-factory")


@pytest.mark.parametrize("script", ["inference.py", "generate.py", "merge_lora.py", "eval_model.py", "quantize.py"])
def test_scripts_that_use_a_model_are_no_launches(script):
    """By their name, where they have no argument of training."""
    start = f"python {script} --model_name_or_path Qwen/Qwen3-8B --load_in_4bit --max_length 2048"
    assert (kinds(start), kinds(f"{start} --learning_rate 1e-5")) == (None, "transformers")


@pytest.mark.parametrize("name", ["trl", "axolotl", "unsloth"])
@pytest.mark.parametrize("before", ["conda activate {}", "module load {}", "micromamba activate {}", "{} --version"])
def test_environments_have_the_names_of_frameworks(before, name):
    """What activates one starts nothing, nor does what runs a command in it."""
    text = f"{before.format(name)}\naccelerate launch --num_processes 2 {TRAIN.removeprefix('python ')}\n"
    (found,) = {read(text, "train.sh", kinds_of(text)).plan.model}
    assert (found, kinds_of(text)) == ("llama-3.1-8b", "transformers")


@pytest.mark.parametrize("before", ["uv run --with trl", "conda run -n axolotl", "uv run --extra unsloth"])
def test_commands_run_in_environments_of_such_names(before):
    """Of the command alone it depends whose it is."""
    assert kinds(f"{before} torchrun --nproc_per_node 2 {TRAIN.removeprefix('python ')}") == "transformers"


def kinds_of(text):
    """The reader of a script."""
    return launch_of(text, "train.sh").target


def test_forks_of_llama_factory_checkpoint_too():
    """Its first releases, and DB-GPT-Hub, have no cutoff_len: finetuning_type alone tells."""
    told = "python src/train_sft.py --model_name_or_path codellama/CodeLlama-13b-Instruct-hf --do_train --dataset x"
    command = f"{told} --max_source_length 2048 --max_target_length 512 --finetuning_type lora --lora_target q_proj"
    assert kinds(command) == "llama-factory"
    found = read(f"{command} --per_device_train_batch_size 1 --bf16", "the command", "llama-factory").plan
    assert (found.memory.recompute, found.training["seq_len"]) == ("full", 2560)


def test_a_file_of_arguments_that_is_not_here_is_named():
    """What a script trains is in it, and nobody knows the script without it."""
    with pytest.raises(UserError, match=r"/a/sft\.yaml: no such file, and src/train\.py is no script that is known"):
        given_words(["torchrun", "--nproc_per_node", "2", "src/train.py", "/a/sft.yaml"])


def test_masked_models_are_trained_on_joined_texts():
    """run_mlm.py cuts blocks as run_clm.py does, unless it is told --line_by_line."""
    start = "python run_mlm.py --model_name_or_path FacebookAI/roberta-base --do_train --per_device_train_batch_size 8"
    blocks, told = (
        read(start, "job.sh", "transformers"),
        read(f"{start} --max_seq_length 256", "job.sh", "transformers"),
    )
    lines = read(f"{start} --max_seq_length 256 --line_by_line", "job.sh", "transformers")
    assert [each.plan.training["seq_len"] for each in (blocks, told, lines)] == [512, 256, 256]
    assert [sum(one.key == "seq_len" for one in each.assumed) for each in (blocks, told, lines)] == [1, 0, 1]

"""Scripts and notebooks with a trainer's arguments in their code, and commands of them."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_file, given_words

MODEL = "AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.1-8B', attn_implementation='sdpa')"
ARGUMENTS = (
    "max_length=2048, per_device_train_batch_size=2, gradient_accumulation_steps=4, bf16=True, optim='adamw_torch'"
)
SFT = f"model = {MODEL}\nargs = SFTConfig(output_dir='o', {ARGUMENTS})\ntrainer = SFTTrainer(model, args=args)\n"
UNSLOTH = """model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Llama-3.2-3B-Instruct", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16)
trainer = SFTTrainer(model, args=SFTConfig(per_device_train_batch_size=2, optim="adamw_8bit"))
"""


@pytest.mark.parametrize(
    ("text", "finds"),
    [
        (SFT, {"model": "llama-3.1-8b", "micro_batch": 2, "recompute": "full", "lora_rank": None}),
        (SFT + "peft = LoraConfig(r=8, lora_dropout=0.1)\n", {"lora_rank": None}),  # which the trainer does not get
        (SFT.replace("(model, ", "(model, peft_config=LoraConfig(), "), {"lora_rank": 8, "lora_dropout": 0.0}),
        (SFT.replace("(model, ", "(model, peft_config=LoraConfig(lora_dropout=0.1, target_modules='all-linear'), "),
         {"lora_rank": 8, "lora_dropout": 0.1, "frozen_dtype": "bf16"}),
        (SFT.replace("bf16=True", "bf16=True, gradient_checkpointing=False"), {"recompute": "none"}),
        (SFT.replace("bf16=True", "bf16=True, fsdp='full_shard auto_wrap'"), {"zero": 3, "stack": "huggingface"}),
        # Unsloth loads 4 bits, adapts all projections and checkpoints to the host
        (UNSLOTH, {"model": "llama-3.2-3b", "lora_rank": 16, "frozen_dtype": "nf4", "optimizer": "adamw_8bit",
                   "recompute": "full", "micro_batch": 2}),
        (UNSLOTH.replace("2048)", "2048, load_in_8bit=True)"), {"frozen_dtype": "int8"}),
        (UNSLOTH.replace("2048)", "2048, load_in_4bit=False)"), {"frozen_dtype": "bf16"}),
        (UNSLOTH.replace("2048)", "2048, full_finetuning=True)").replace("model = F", "x = 1 #"),
         {"lora_rank": None, "parameter_dtype": "bf16"}),
    ],
)  # fmt: skip
def test_what_a_script_says(text, finds):
    """Every word of it is accounted for."""
    found = read(text, "train.py", "script")
    said = {"model": found.plan.model, "stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: said.get(key) for key in finds} == finds
    assert found.plan.training == {"seq_len": 2048}
    assert load_reader("script").words.sort(found.words.used, found.words.unread).unknown == ()


def test_what_only_running_tells():
    """What decides is asked for with its line; the rest leaves the verdict unsure, unless it has no effect."""
    with pytest.raises(UserError, match=r"train\.py:2: max_length = n: only running tells"):
        read(SFT.replace("2048", "n"), "train.py", "script")
    found = read(SFT.replace("bf16=True", "run_name=name, use_liger_kernel=is_on(), **more"), "train.py", "script")
    account = load_reader("script").words.sort(found.words.used, found.words.unread)
    assert "run_name" in account.idle
    assert {"use_liger_kernel", "**more"} <= {*account.deciding, *account.unknown}


@pytest.mark.parametrize("kind", ["DPO", "KTO", "Reward"])
def test_trainers_of_preferences_are_refused_by_name(kind):
    """They train on more than the next token."""
    text = f"model = {MODEL}\ntrainer = {kind}Trainer(model, args={kind}Config(per_device_train_batch_size=1))\n"
    with pytest.raises(UserError, match=f"{kind}(Config|Trainer): preferences"):
        read(text, "train.py", "script")


@pytest.mark.parametrize(
    ("command", "ranks", "alone"),
    [
        ("python train.py", None, True),
        ("torchrun --nproc_per_node 4 train.py", 4, False),
        ("accelerate launch --num_machines 2 --num_processes 16 train.py --seed 1", 16, False),
    ],
)
def test_commands(command, ranks, alone, tmp_path, monkeypatch):
    """The launcher says how many devices start, the script what they do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SFT)
    given = given_words(command.split())
    assert (given.text.target, given.launch.world_size, given.launch.is_single) == ("script", ranks, alone)
    assert given.found.plan.micro_batch == 2


def test_files(tmp_path):
    """A script or a notebook alone; a recipe with functions stays one."""
    (tmp_path / "train.py").write_text(SFT)
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": SFT}]}))
    assert {given_file(str(tmp_path / name)).text.target for name in ("train.py", "a.ipynb")} == {"script"}
    assert given_file(str(tmp_path / "train.py")).launch.is_single
    (tmp_path / "several.py").write_text(f"{SFT}\nnotebook_launcher(train, num_processes=2)\n")
    several = given_file(str(tmp_path / "several.py")).found
    assert (several.sized.several, several.plan.world_size) == (True, 2)
    (tmp_path / "launched.py").write_text(f"{SFT}\n# torchrun --nproc-per-node 2 launched.py\n")
    assert not given_file(str(tmp_path / "launched.py")).launch.is_single
    (tmp_path / "parsed.py").write_text(f"parser = HfArgumentParser(SFTConfig)\n{SFT}")
    with pytest.raises(UserError):
        given_file(str(tmp_path / "parsed.py"))


def test_a_notebook_that_starts_a_command(tmp_path):
    """Its file of arguments is written by a cell; devices are those of the command."""
    config = (
        "stage: sft\ndo_train: true\nmodel_name_or_path: meta-llama/Meta-Llama-3-8B\nfinetuning_type: lora\n"
        "dataset: x\ncutoff_len: 1024\nper_device_train_batch_size: 2\nfp16: true\noutput_dir: o\n"
    )
    cells = [
        f"%%writefile sft.yaml\n{config}",
        "!pip install x\n!CUDA_VISIBLE_DEVICES=0 llamafactory-cli train sft.yaml",
    ]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    given = given_file(str(path))
    assert (given.text.target, given.text.syntax, given.launch.world_size) == ("llama-factory", None, 1)
    assert (given.found.plan.micro_batch, given.found.plan.tuning.lora_rank) == (2, 8)
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": "trainer = GRPOTrainer(model='a/b')"}]}))
    with pytest.raises(UserError, match="GRPO"):
        given_file(str(path))

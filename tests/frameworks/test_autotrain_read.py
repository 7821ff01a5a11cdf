"""AutoTrain's YAML and commands as a plan."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words

PARAMS = {"block_size": 2048, "model_max_length": 4096, "batch_size": 2, "gradient_accumulation": 8, "padding": "right",
          "mixed_precision": "bf16", "optimizer": "paged_adamw_8bit", "peft": True}  # fmt: skip
CONFIG = {
    "task": "llm-sft", "base_model": "meta-llama/Llama-3.2-1B", "backend": "local", "log": "none", "params": PARAMS,
    "data": {"path": "a", "train_split": "train", "chat_template": None, "column_mapping": {"text_column": "text"}},
}  # fmt: skip
COMMAND = "autotrain llm --train --model meta-llama/Llama-3.2-1B --data-path a --mixed-precision bf16"


def imported(**params: object) -> object:
    """What is read of a config with other parameters; None removes one."""
    own = {key: value for key, value in {**PARAMS, **params}.items() if value is not None}
    return read(yaml.safe_dump({**CONFIG, "params": own}), "a.yml", "autotrain")


def test_a_config() -> None:
    """Adapters of all projections beside 4 bits, which is its default; texts are joined, so lengths are certain."""
    found = imported()
    values = found.plan.flat_values()
    assert (found.plan.model, found.plan.training, found.per_replica) == ("llama-3.2-1b", {"seq_len": 2048}, 16)
    assert (values["micro_batch"], values["optimizer"], values["recompute"]) == (2, "paged_adamw_8bit", "full")
    assert (values["lora_rank"], values["lora_dropout"], values["frozen_dtype"]) == (16, 0.05, "nf4")
    assert (len(values["lora_targets"]), values["precision"], found.assumed) == (7, "bf16", ())
    account = load_reader("autotrain").words.sort(found.words.used, found.words.unread)
    assert account.is_understood


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"quantization": "int8"}, {"frozen_dtype": "int8", "lora_rank": 16}),
        ({"quantization": "none", "lora_r": 64}, {"frozen_dtype": "fp32", "lora_rank": 64}),
        ({"peft": False, "quantization": "int4"}, {"lora_rank": None, "zero": 0}),
        ({"peft": None, "batch_size": None, "optimizer": None}, {"lora_rank": None, "micro_batch": 2}),
        ({"disable_gradient_checkpointing": True}, {"recompute": "none"}),
        ({"target_modules": "q_proj,v_proj"}, {"lora_targets": ["q_proj", "v_proj"]}),
        ({"mixed_precision": None, "peft": None}, {"precision": "fp32"}),
        ({"use_flash_attention_2": True}, {"attention_kernel": "flash2"}),
        ({"distributed_backend": "deepspeed", "peft": None}, {"stack": "deepspeed", "zero": 3, "precision": "bf16"}),
    ],
)
def test_parameters(params: dict[str, object], expected: dict[str, object]) -> None:
    """By their own names; what is not said is as ``trainers/clm/params.py`` has it."""
    plan = imported(**params).plan
    assert expected == {key: {"stack": plan.stack, **plan.flat_values()}.get(key) for key in expected}


@pytest.mark.parametrize(
    ("params", "length"),
    [({}, 2048), ({"block_size": -1}, 1024), ({"block_size": 8192}, 4096),
     ({"block_size": 4096, "model_max_length": None}, 2048)],
)  # fmt: skip
def test_blocks_are_no_longer_than_the_tokenizer_allows(params: dict[str, object], length: int) -> None:
    """1,024 tokens where nothing is said, and 2,048 at most without model_max_length."""
    assert imported(**params).plan.training == {"seq_len": length}


@pytest.mark.parametrize(
    ("command", "devices", "notes"),
    [
        (COMMAND, (1, None), "autotrain starts the devices of this machine"),
        (f"CUDA_VISIBLE_DEVICES=0,1 {COMMAND}", (1, 2), ""),
    ],
)
def test_a_command_starts_the_devices_of_one_machine(command: str, devices: object, notes: str, tmp_path) -> None:
    """Those that are shown to it."""
    script = tmp_path / "run.sh"
    script.write_text(f"{command} --peft --use_4bit --batch-size 4 --block_size 512 --trainer sft\n")
    given = given_words([str(script)])
    assert (given.text.target, given.found.plan.micro_batch) == ("autotrain", 4)
    assert (given.launch.nodes, given.launch.per_node) == devices
    assert notes in " ".join(given.launch.notes)
    assert given.found.plan.training == {"seq_len": 512}


def test_a_command_names_its_config(tmp_path) -> None:
    """Whose errors name it, with its own words."""
    (tmp_path / "a.yml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "run.sh").write_text("autotrain --config a.yml\n")
    assert given_words([str(tmp_path / "run.sh")]).found.per_replica == 16
    (tmp_path / "a.yml").write_text(yaml.safe_dump({**CONFIG, "params": {**PARAMS, "batch_size": "two"}}))
    with pytest.raises(UserError, match=r"batch_size = 'two': allowed: a positive integer"):
        given_words([str(tmp_path / "run.sh")])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"task": "llm-dpo"}, "task = llm-dpo: allowed: llm, lm_training, llm-sft, llm-generic; preferences"),
        ({"task": "image-classification"}, "task = image-classification: allowed"),
        ({"task": "llm", "params": {"trainer": "orpo"}}, "trainer = 'orpo': allowed: sft, default; preferences"),
        ({"params": {"quantization": "int3"}}, "quantization = 'int3': allowed: int4, int8, null"),
        ({"params": {"block_size": [512, 1024]}}, "block_size = [512, 1024]: allowed: a number"),
        ({"params": {"distributed_backend": "fsdp"}}, "distributed_backend = 'fsdp': allowed: ddp, deepspeed"),
        ({"params": [1]}, "params = [1]: allowed: a section"),
    ],
)
def test_what_is_not_modelled_is_refused(data: dict[str, object], message: str) -> None:
    """One line with file, word, value and what is allowed."""
    with pytest.raises(UserError, match=r"a\.yml(:\d+)?: ") as error:
        read(yaml.safe_dump({**CONFIG, **data}), "a.yml", "autotrain")
    assert message in str(error.value)
    for words in ("autotrain app --port 8080", "autotrain spacerunner --project-name a"):
        with pytest.raises(UserError, match="no command of autotrain that trains: allowed: autotrain llm"):
            read(words, "run.sh", "autotrain")

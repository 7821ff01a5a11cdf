"""GLM-4 and ChatGLM3: the nested YAML of finetune.py as a plan."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

CONFIG = {
    "data_config": {"train_file": "train.jsonl", "num_proc": 1}, "combine": True, "freezeV": True,
    "max_input_length": 512, "max_output_length": 256,
    "training_args": {"output_dir": "./output", "max_steps": 3000, "learning_rate": 5e-4,
                      "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "save_strategy": "steps",
                      "predict_with_generate": True, "generation_config": {"max_new_tokens": 512}},
    "peft_config": {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 32, "lora_dropout": 0.1,
                    "target_modules": ["q_proj", "k_proj", "v_proj"]},
}  # fmt: skip
START = "torchrun --standalone --nproc_per_node=4 {} data/ THUDM/glm-4-9b-chat lora.yaml"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lora.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def understood(found):
    """The account of the words."""
    return load_reader("glm").words.sort(found.words.used, found.words.unread)


@pytest.mark.parametrize("script", ["finetune.py", "finetune_hf.py"])
def test_a_command_with_a_model_and_a_config(folder, script):
    """The second word is the model; bf16 weights, checkpointing, one length of both."""
    found = read(START.format(script), "job.sh", "glm")
    values = {**found.plan.flat_values(), **(found.plan.training or {})}
    assert {
        "model": "glm-4-9b", "micro_batch": 2, "precision": "bf16", "recompute": "full", "seq_len": 768, "zero": 0,
        "lora_rank": 8, "lora_targets": ["q_proj", "k_proj", "v_proj"], "frozen_dtype": "bf16", "lora_dropout": 0.1,
    }.items() <= {**values, "model": found.plan.model}.items()  # fmt: skip
    assert found.global_batch(4) == 32
    assert understood(found).is_understood
    assert [each.key for each in found.assumed] == ["seq_len"]


def test_a_config_alone_asks_for_the_model(folder):
    """Without adapters all parameters are trained, in bf16 alone."""
    alone = {key: value for key, value in CONFIG.items() if key != "peft_config"}
    found = read(yaml.safe_dump(alone), "sft.yaml", "glm")
    assert "give --model" in found.asks["model"]
    assert found.plan.tuning.lora_rank is None
    assert found.plan.flat_values()["parameter_dtype"] == "bf16"


def test_a_tower_decides(folder):
    """The script for pictures is named."""
    assert list(understood(read(START.format("finetune_vision.py"), "job.sh", "glm")).deciding) == [
        "finetune_vision.py"
    ]


def test_a_command_with_another_config_names_that(folder):
    """Not the script."""
    (folder / "lora.yaml").write_text("seq_len: 512\n")
    with pytest.raises(UserError, match=r"lora\.yaml: no config of GLM-4"):
        read(START.format("finetune.py"), "job.sh", "glm")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peft_config": {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 128}}, "peft_config.num_virtual_tokens"),
        (
            {"training_args": {"per_device_train_batch_size": float("inf")}},
            r"lora.yaml:19: training_args.per_device_train_batch_size = inf: allowed: a positive integer",
        ),
        ({"max_input_length": "long"}, "max_input_length = 'long'"),
        ({"training_args": []}, "no config of GLM-4"),
    ],
)
def test_what_it_has_not_is_refused(changed, message):
    """By the name as it stands in the file."""
    with pytest.raises(UserError, match=message):
        read(yaml.safe_dump({**CONFIG, **changed}), "lora.yaml", "glm")

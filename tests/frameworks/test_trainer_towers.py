"""Towers that trainers leave as they are, or train beside adapters."""

import pytest

from simpar.frameworks.trainer_towers import ADAPTED, has_tower
from simpar.verbs import check

FACTORY = (
    "llamafactory-cli train --stage sft --do_train --bf16 --dataset x --cutoff_len 2048 --output_dir o "
    "--per_device_train_batch_size 1 --deepspeed examples/deepspeed/ds_z3_config.json"
)
SWIFT = "swift sft --dataset x --max_length 2048 --deepspeed zero3"
MEGATRON = (
    "megatron sft --dataset x --tensor_model_parallel_size 2 --micro_batch_size 1 --global_batch_size 8 "
    "--max_length 2048 --recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
)
SEES, READS = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"


def checked(command, model=SEES):
    """A launch on eight devices."""
    option = "--model_name_or_path" if "llamafactory" in command else "--model"
    return check(f"NPROC_PER_NODE=8 {command} {option} {model}", hardware="hgx-h200")


def deciding(command, model=SEES):
    """What decides of it."""
    return {*checked(command, model).account.deciding}


def frozen(command, model=SEES):
    """Whether its plan freezes a tower, and a connector."""
    tuning = checked(command, model).result.setup.plan["tuning"]
    return tuning["frozen_tower"], tuning["frozen_connector"]


def test_models_with_a_tower():
    """Images of a shipped model are seen by one; text alone is not."""
    assert [has_tower(name) for name in ("qwen2.5-vl-7b", "llava-1.5-7b", "qwen2.5-7b", "t5-3b", None)] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "full", "lora", "freezes"),
    [
        (FACTORY, "--finetuning_type full", "--finetuning_type lora",
         ("--freeze_vision_tower", "--freeze_multi_modal_projector")),
        (SWIFT, "--train_type full", "--train_type lora", ("--freeze_vit", "--freeze_aligner")),
        (MEGATRON, "--train_type full", "--train_type lora", ("--freeze_vit", "--freeze_aligner")),
    ],
)  # fmt: skip
def test_a_tower_is_left_unless_it_is_told(command, full, lora, freezes):
    """LLaMA-Factory's finetuning_args.py and ms-swift's tuner_args.py leave tower and projector as they are."""
    off = " ".join(f"{each} false" for each in freezes)
    assert frozen(f"{command} {full}") == (True, True)
    assert frozen(f"{command} {full} {freezes[0]} true {freezes[1]} false") == (True, False)
    assert frozen(f"{command} {full} {freezes[0]} false") == (False, True)
    assert frozen(f"{command} {full} {off}") == (False, False)
    assert deciding(f"{command} {full}") == set()
    assert deciding(f"{command} {lora}") == set()
    assert deciding(f"{command} {lora} {freezes[0]} false") == {ADAPTED}
    assert deciding(f"{command} {full}", READS) == set()
    assert frozen(f"{command} {full}", READS) == (False, False)


QWEN_VL = (
    "torchrun --nproc_per_node 8 qwenvl/train/train_qwen.py --model_name_or_path Qwen/Qwen2.5-VL-7B-Instruct --bf16 "
    "--per_device_train_batch_size 1 --model_max_length 2048 --deepspeed examples/deepspeed/ds_z3_config.json"
)


@pytest.mark.parametrize(
    ("switches", "parts"),
    [
        ("", (False, False)),
        ("--tune_mm_vision False --tune_mm_mlp True --tune_mm_llm True", (True, False)),
        ("--tune_mm_llm True --tune_mm_mlp True", (True, False)),  # what is not said is off
        ("--tune_mm_vision=True --tune_mm_mlp=False --tune_mm_llm True", (False, True)),
        ("--freeze_vision_tower True --freeze_llm False --freeze_merger False", (True, False)),
        ("--freeze_backbone True --freeze_llm False --freeze_mlp True", (True, True)),
    ],
)
def test_switches_of_scripts(switches, parts):
    """Qwen's and InternVL's scripts, and others with their names, say part by part what is trained, or is not."""
    result = check(f"{QWEN_VL} {switches}", hardware="hgx-h200")
    tuning = result.result.setup.plan["tuning"]
    assert (tuning["frozen_tower"], tuning["frozen_connector"]) == parts
    assert not result.account.deciding


def test_axolotl_freezes_both(tmp_path):
    """Its one switch is for towers and projectors; untold, both are trained."""
    path = tmp_path / "axolotl.yaml"
    for switch, is_frozen in ("freeze_mm_modules: true\n", True), ("", False):
        path.write_text(
            f"base_model: {SEES}\nsequence_len: 2048\nmicro_batch_size: 1\ngradient_accumulation_steps: 1\n"
            f"num_epochs: 1\ndatasets:\n  - path: x\n    type: alpaca\n{switch}"
        )
        tuning = check(str(path), hardware="hgx-h200", gpus=8).result.setup.plan["tuning"]
        assert (tuning["frozen_tower"], tuning["frozen_connector"]) == (is_frozen, is_frozen)


def test_a_tower_beside_adapters_of_a_script():
    """Its adapters are those of attention, and a projector that is trained beside them decides."""
    result = check(f"{QWEN_VL} --lora_enable True --tune_mm_mlp True", hardware="hgx-h200")
    assert {*result.account.deciding} == {ADAPTED}
    assert result.result.setup.plan["tuning"]["lora_targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_patches_of_images_decide():
    """Variables of ms-swift that say how many there are, where there is a tower."""
    assert deciding(f"MAX_PIXELS=1003520 {SWIFT}") == {"MAX_PIXELS"}
    assert deciding(f"MAX_PIXELS=1003520 {SWIFT}", READS) == set()
    assert deciding(f"{SWIFT} --max_pixels 1003520") == {"--max_pixels"}
    assert deciding(f"{SWIFT} --max_pixels 1003520", READS) == set()


def test_images_are_said():
    """How many a sequence has is assumed, and said."""
    notes = check(f"{SWIFT} --model {SEES}", hardware="hgx-h200").notes
    assert any("Assumed of the model: 1 image a sequence" in each for each in notes)

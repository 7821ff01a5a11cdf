"""Configs of launchers and of DeepSpeed beside the arguments of a trainer: what they say together."""

import json

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks.trainer_sharding import ACCUMULATES
from simpar.verbs import check

ARGUMENTS = (
    "train.py --model_name_or_path meta-llama/Llama-3.2-1B --per_device_train_batch_size 1 --model_max_length 1024 "
    "--gradient_accumulation_steps 4 --gradient_checkpointing true --bf16 true"
)
AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Checks a command beside configs that are written to its folder."""
    monkeypatch.chdir(tmp_path)

    def run(command, more="", **configs):
        for name, config in configs.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(config))
            (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
        return check(f"{command} {ARGUMENTS} {more}", hardware="dgx-h100")

    return run


MULTI = {"distributed_type": "MULTI_GPU", "num_processes": 8, "mixed_precision": "bf16"}
OF_FILE = {"distributed_type": "DEEPSPEED", "num_processes": 8,
           "deepspeed_config": {"deepspeed_config_file": "ds.json"}}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "more", "launcher"),
    [
        ("accelerate launch --config_file acc.yaml", "", OF_FILE),
        ("accelerate launch --config_file acc.yaml", "--deepspeed ds.json", MULTI),
        ("accelerate launch --num_processes 8", "--deepspeed ds.json", MULTI),
        ("deepspeed --num_gpus 8", "--deepspeed ds.json", MULTI),
    ],
)
def test_ranks_that_share_layers_are_among_the_processes(checked, command, more, launcher):
    """Eight processes of which four share layers are two replicas, wherever DeepSpeed's config is named."""
    ds = {**AUTO, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 4}}
    setup = checked(command, more, acc=launcher, ds=ds).result.setup
    assert (setup.plan["mesh"]["tp"], setup.plan["mesh"]["dp"], setup.cluster["devices"]) == (4, 2, 8)
    assert setup.training["global_batch"] == 8
    with pytest.raises(UserError, match=r"allowed: a multiple of|does not divide"):
        checked(command, more, acc=launcher, ds={**ds, "tensor_parallel": {"autotp_size": 3}})


@pytest.mark.parametrize(("half", "is_refused"), [("fp16", True), ("bf16", False)])
def test_another_half_precision_than_the_arguments_ask_for_is_refused(checked, half, is_refused):
    """As the Trainer does (integrations/deepspeed.py, fill_match)."""
    ds = {**AUTO, half: {"enabled": True}, "zero_optimization": {"stage": 3}}
    if is_refused:
        with pytest.raises(
            UserError, match=r"ds.json:1: fp16.enabled = true: allowed: auto, false, or what the arguments"
        ):
            checked("deepspeed --num_gpus 8", "--deepspeed ds.json", ds=ds)
    else:
        plan = checked("deepspeed --num_gpus 8", "--deepspeed ds.json", ds=ds).given.found.plan
        assert plan.data_parallel.zero == 3


@pytest.mark.parametrize(("steps", "decides"), [(1, True), (4, False), ("auto", False), (None, False)])
def test_accumulation_that_the_launcher_and_the_arguments_say(checked, steps, decides):
    """Where these differ the Trainer stops, and other scripts take the launcher's."""
    own = {"zero_stage": 2, **({} if steps is None else {"gradient_accumulation_steps": steps})}
    config = {"distributed_type": "DEEPSPEED", "num_processes": 8, "mixed_precision": "bf16", "deepspeed_config": own}
    result = checked("accelerate launch --config_file acc.yaml", acc=config)
    assert (ACCUMULATES in result.account.deciding) is decides
    assert not result.account.unknown


def test_llama_factory_packs_where_it_pretrains(tmp_path):
    """Sequences have the length that is cut, unlike those of its fine-tuning."""
    own = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "do_train": True, "finetuning_type": "full", "cutoff_len": 1024,
           "dataset": "x", "output_dir": "o", "per_device_train_batch_size": 1, "bf16": True}  # fmt: skip
    file = tmp_path / "a.yaml"
    for stage, more, assumed in (("pt", {}, []), ("pt", {"packing": False}, ["seq_len"]), ("sft", {}, ["seq_len"])):
        file.write_text(yaml.safe_dump({**own, "stage": stage, **more}))
        told = check(str(file), hardware="dgx-h100", gpus=8).given.found.assumed
        assert [each.key for each in told] == assumed

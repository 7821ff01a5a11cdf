"""A changed plan as changed options of a text: what the text means decides which edits are needed."""

import shutil
import subprocess

import pytest

import simpar
from simpar.planner import make_problem
from simpar.preflight.flags import make_patch
from simpar.preflight.given import given_text
from simpar.preflight.patch import unified

COMMAND = (
    "torchrun --nproc-per-node=8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 "
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 --vocab-size 32000 --seq-length 2048 "
    "--num-experts 8 --moe-router-topk 2 --tensor-model-parallel-size 2 --sequence-parallel "
    "--expert-model-parallel-size 2 --expert-tensor-parallel-size 2 --micro-batch-size 1 --global-batch-size 8 --bf16"
)


def test_experts_that_share_ranks_by_default_are_said() -> None:
    """Left open, an expert is on one rank where there are expert ranks: no text with two ranks of it means that."""
    given = given_text(COMMAND, "the command")
    before = given.found.plan.with_values(dp=4)
    assert (before.mesh.ep, before.mesh.etp) == (2, 2)
    training = simpar.Training(seq_len=2048, global_batch=8)
    problem = make_problem("mixtral-8x7b", simpar.Cluster("dgx-h100"), training, stack="megatron", base=before)
    for degree in (None, 1):
        change = make_patch(given.text, problem, before, before.with_values(etp=degree))
        assert [str(edit) for edit in change.edits] == ["--expert-tensor-parallel-size 1"]
        assert change.text == COMMAND.replace("--expert-tensor-parallel-size 2", "--expert-tensor-parallel-size 1")


def test_edits_that_change_nothing_or_contradict_each_other_are_none(tmp_path) -> None:
    """Where a config shards that is no part of the text, only the arguments that say what is wanted are edited."""
    config = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
    (tmp_path / "fsdp.yaml").write_text(f"{config}fsdp_config: {{fsdp_sharding_strategy: FULL_SHARD}}\n")
    text = (
        "accelerate launch --config_file fsdp.yaml finetune.py --model_name_or_path meta-llama/Llama-3.2-1B --bf16 "
        "--per_device_train_batch_size 1 --block_size 512 --torch_dtype bfloat16 --gradient_checkpointing 0"
    )
    given = given_text(text, str(tmp_path / "run.sh"))
    before = given.found.plan.with_values(dp=8)
    training = simpar.Training(seq_len=512, global_batch=8)
    problem = make_problem("llama-3.2-1b", simpar.Cluster("dgx-h100"), training, stack="huggingface", base=before)
    sharded = {"kind": "ddp", "zero": 0, "reshard_after_forward": False}
    for values, edits in (({}, []), ({"recompute": "full"}, ["--gradient_checkpointing true"])):
        change = make_patch(given.text, problem, before, before.with_values(**sharded, **values))
        assert ([str(edit) for edit in change.edits], change.text) == (edits, None)
        assert change.unsaid[0] == 'data_parallel.kind = "ddp"'
        assert not [each for each in change.unsaid if "recompute" in each]


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch")
def test_a_patch_leaves_the_end_of_a_file_as_it_is(tmp_path) -> None:
    """It applies to a file whose last line does not end, and to one with empty lines behind."""
    old = '{\n  "a": 1,\n  "b": false\n}'
    new = '{\n  "a": 1,\n  "b": true\n}\n'
    for end in ("", "\n", "\n\n\n"):
        path = tmp_path / "x.json"
        path.write_text(old + end)
        diff = unified(old + end, new, "x.json")
        assert diff.endswith("\\ No newline at end of file\n") == (not end)
        subprocess.run(["patch", "-p1", "-s"], input=diff, text=True, cwd=tmp_path, check=True)
        assert path.read_text() == new.rstrip() + end

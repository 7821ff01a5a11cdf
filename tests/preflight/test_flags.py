"""A changed plan as changed options of a text: what the text means decides which edits are needed."""

import simpar
from simpar.planner import make_problem
from simpar.preflight.flags import make_patch
from simpar.preflight.given import given_text

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

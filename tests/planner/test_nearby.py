"""Which layouts are near another one: choices counted one by one, and the neighbours of a launch."""

import shlex
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from simpar.plan.plan import Plan
from simpar.planner import nearby
from tests.preflight.test_check import COMMAND, HARDWARE, checked

PLAN = Plan(tp=2, pp=4, dp=2, micro_batch=1, zero=2, schedule="1f1b", vpp=1, recompute="none", sequence_parallel=True,
            overlap_grad_reduce=True, overlap_param_gather=True)  # fmt: skip
VALUES = {
    "tp": (2, 4), "pp": (2, 4), "micro_batch": (1, 2), "schedule": ("1f1b", "interleaved_1f1b"), "vpp": (1, 2),
    "zero": (1, 2), "sequence_parallel": (True, False), "recompute": ("none", "full"),
    "overlap_grad_reduce": (False, True), "overlap_param_gather": (False, True),
}  # fmt: skip
COMES_WITH = {
    "sequence_parallel": {"tp"}, "schedule": {"pp"}, "vpp": {"schedule", "pp"}, "overlap_grad_reduce": {"zero"},
    "overlap_param_gather": {"zero"},
}  # fmt: skip
"""What a choice comes with, in full."""
OWN = {
    "tp": 2, "pp": 4, "micro_batch": 1, "schedule": "1f1b", "vpp": 1, "zero": 2, "sequence_parallel": True,
    "recompute": "none", "overlap_grad_reduce": True, "overlap_param_gather": True,
}  # fmt: skip
LAUNCH = (
    "torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 "
    "--num-attention-heads 64 --group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 8192 "
    "--sequence-parallel --bf16 --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 8 --tp-comm-overlap --overlap-grad-reduce --overlap-param-gather "
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --pipeline-model-parallel-size 4"
)
HYBRID = (
    "torchrun --nproc-per-node 8 pretrain_mamba.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 "
    "--hybrid-override-pattern M-M* --tensor-model-parallel-size 2 --use-distributed-optimizer"
)


def rows_of(values):
    """All combinations of values, as columns of codes."""
    codes = np.array(list(product(*(range(len(domain)) for domain in values.values()))), dtype=np.int8)
    return SimpleNamespace(domain=values, count=len(codes), code=dict(zip(values, codes.T, strict=True)))


@pytest.mark.parametrize("least", [0, 1])
def test_choices_are_counted_once(least):
    """What comes with another change is none of its own, however many it comes with."""
    near = []
    for at, combination in enumerate(product(*VALUES.values())):
        changed = {name for name, value in zip(VALUES, combination, strict=True) if value != OWN[name]}
        alone = [name for name in changed if not COMES_WITH.get(name, set()) & changed]
        if least <= len(alone) <= 2:
            near.append(at)
    assert nearby._close(rows_of(VALUES), PLAN, least).tolist() == near


def test_choices_between_two_need_not_change():
    """Chunks come with another pipeline, also where the schedule stays."""
    rows = rows_of({"pp": (2, 4), "schedule": ("1f1b", "interleaved_1f1b"), "vpp": (1, 2)})
    assert len(nearby._close(rows, PLAN)) == 7  # all but its own


@pytest.mark.slow
def test_other_pipeline_with_chunks(capsys, monkeypatch):
    """Another pipeline, its schedule and its chunks are one choice, and here the best."""
    _, found = checked(capsys, "--hardware", "dgx-h100", "--", *LAUNCH.split())
    best = found["neighbours"][0]
    assert best["edits"] == ["--pipeline-model-parallel-size 2", "--num-virtual-stages-per-pipeline-rank 2"]
    monkeypatch.setattr(nearby, "_simulated", lambda *_: iter(()))
    _, again = checked(capsys, "--hardware", "dgx-h100", "--", *found["patched"].split())
    assert again["step_time_s"] == best["step_time_s"] < 0.93 * found["step_time_s"]


def test_neighbours_share_the_heads_of_states(capsys, monkeypatch):
    """Context ranks exchange tokens for heads of layers that carry a state, 8 of them with the hidden size of 256."""
    seen = []
    monkeypatch.setattr(nearby, "_simulated", lambda frontier, *_: seen.append(frontier.rows) or iter(()))
    words = f"{HYBRID} --micro-batch-size 1 --global-batch-size 8 --bf16 --seq-length 512 --vocab-size 256"
    code, _ = checked(capsys, "--hardware", "dgx-h100", "--", *words.split())
    assert code == 0
    (rows,) = seen
    assert rows.count > 10
    assert {rows.domain["cp"][code] for code in rows.code["cp"]} <= {1, 2, 4, 8}


def test_an_overlap_alone_is_a_neighbour(capsys, monkeypatch):
    """What memory does not depend on may be all that changes."""
    seen = []
    monkeypatch.setattr(nearby, "_simulated", lambda frontier, *_: seen.append(frontier.rows) or iter(()))
    checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND))
    (rows,) = seen
    own = {"tp": 2, "cp": 1, "pp": 1, "micro_batch": 1, "zero": 1, "recompute": "none", "sequence_parallel": True}
    same = np.logical_and.reduce([rows.one_of(name, value) for name, value in own.items()])
    overlaps = ("tp_overlap", "overlap_grad_reduce", "overlap_param_gather")
    changed = np.array([rows.one_of(name, True) for name in overlaps])[:, same].sum(axis=0)
    assert set(changed) == {1, 2}


def test_neighbours_of_too_many_ops_are_bounded_only(capsys, monkeypatch):
    """They end no check, and are not waited for."""
    monkeypatch.setattr(nearby, "MOST_ALONE", 10)
    code, found = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND))
    assert code == 0
    assert not found["neighbours"]
    assert found["least_s"] > 0


def test_the_first_neighbour_may_be_large(capsys, monkeypatch):
    """The one with the lowest bound is simulated whatever others have; with it, the ops for others are spent."""
    _, usual = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND))
    monkeypatch.setattr(nearby, "MOST_OPS", 1)
    code, found = checked(capsys, *HARDWARE, "--", *shlex.split(COMMAND))
    assert code == 0
    assert len(usual["neighbours"]) > 1
    (large,) = found["neighbours"]
    assert large in usual["neighbours"]

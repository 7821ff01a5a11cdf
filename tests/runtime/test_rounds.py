"""Local SGD and DiLoCo on real ranks: the same parameters as replicas that one process trains one by one."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime.prepare import prepare
from tests.gate import some

SHARP = 1e-11
CASES = [
    {"dp": 2, "sync": "local-sgd", "sync_every": 2, "precision": "fp32", "short": True},
    {"dp": 2, "sync": "diloco", "sync_every": 2, "precision": "fp32", "model": "gpt2", "short": True},
]
WIDE = [
    {"dp": 2, "pp": 2, "sync": "local-sgd", "sync_every": 3, "precision": "fp32"},
    {"dp": 4, "sync": "diloco", "sync_every": 2, "precision": "fp32", "model": "gpt2"},
    {"dp": 4, "zero": 3, "hsdp": 2, "sync": "diloco", "sync_every": 2, "precision": "fp32"},
    {"dp": 4, "sync": "local-sgd", "sync_every": 2, "precision": "fp32"},
    {"dp": 2, "tp": 2, "sync": "diloco", "sync_every": 2, "precision": "fp32", "optimizer": "sgd"},
]


@pytest.mark.parametrize(("cases", "ranks"), some([(CASES, 2), (WIDE, 4)], 1, tuples=True), ids=["gate", "wide"])
def test_replicas_on_ranks_train_like_replicas_one_by_one(run_rounds, cases, ranks):
    """After two rounds and a step every rank holds what its replica has in one process; replicas are apart again."""
    results = run_rounds(cases, ranks)
    assert [result for result in results if result["difference"] > SHARP] == []
    assert all(result["spread"] > 1e-4 for result in results)


@pytest.mark.slow
def test_averaging_every_step_of_sgd_is_data_parallelism(run_matrix):
    """The mean of parameters after one step of SGD is the step of the mean gradient."""
    cases = [{"dp": 4, "sync": "local-sgd", "sync_every": 1, "optimizer": "sgd", "precision": "fp32"}]
    (result,) = run_matrix(cases, 4)
    assert max(result["loss"], result["parameter"]) <= SHARP


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"dp": 4, "zero": 1, "hsdp": 2, "sync": "local-sgd"}, "zero 2 or 3 with hsdp"),
        ({"dp": 2, "cp": 2, "sync": "diloco"}, "zero 0 without cp"),
    ],
)
def test_what_torch_cannot_do_alone_is_refused(plan, words):
    """Replicas that still share gradients."""
    with pytest.raises(UserError, match=words):
        prepare(Plan(**plan), load_model("gpt2"), Training(seq_len=16, global_batch=8), 4)

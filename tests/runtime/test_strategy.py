"""Which layouts run how, and which are refused with the reason."""

import pytest

from simpar.errors import UserError
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import Schedule, rank_actions
from simpar.runtime.prepare import prepare
from simpar.runtime.strategy import refuse_schedule

TRAINING = Training(seq_len=64, global_batch=16)


def strategy(world_size=4, model="tiny-llama", **values):
    """The strategy of a plan in fp32."""
    plan = Plan(**{"precision": "fp32", **values})
    return prepare(plan, load_model(model), TRAINING, world_size).strategy


@pytest.mark.parametrize(
    ("values", "reduction"),
    [
        ({"dp": 4}, "ddp"),
        ({"pp": 4}, "none"),
        ({"pp": 2, "dp": 2}, "ddp"),
        ({"pp": 2, "dp": 2, "schedule": "interleaved"}, "explicit"),
        ({"pp": 2, "dp": 2, "schedule": "zb-h1"}, "explicit"),
        ({"tp": 2, "dp": 2}, "explicit"),
        ({"tp": 2, "dp": 2, "zero": 3}, "fsdp"),
        ({"dp": 4, "zero": 2}, "fsdp"),
        ({"kind": "single_process"}, "one_process"),
        ({"model": "mixtral-8x7b", "ep": 4}, "explicit"),
        ({"model": "mixtral-8x7b", "zero": 3}, "fsdp"),
        ({"model": "mixtral-8x7b", "ep": 2, "zero": 3, "hsdp": 2}, "fsdp"),
        ({"model": "mixtral-8x7b", "tp": 2, "etp": 2, "capacity_factor": 1.5}, "explicit"),
        ({"model": "mixtral-8x7b", "ep": 2, "zero": 1, "hsdp": 2}, "explicit"),
    ],
)
def test_every_layout_has_its_reduction(values, reduction):
    """DDP where it can, one explicit reduction where it cannot, fully_shard for ZeRO 2 and 3."""
    assert strategy(**values).reduction == reduction


def test_zero_decides_what_is_sharded():
    """ZeRO-1 shards the optimizer, 2 keeps parameters after forward, 3 drops them."""
    assert strategy(zero=1).shard_optimizer
    assert not strategy(zero=2).reshard
    assert strategy(zero=3).reshard
    assert strategy(zero=3, hsdp=2).replicas == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pp": 2, "dp": 2, "zero": 3, "schedule": "zb-v"}, "plan.zero = 3 with schedule zb-v: .*silently"),
        ({"precision": "fp16"}, "plan.precision = fp16: .*allowed in a real run: bf16, fp32"),
        ({"precision": "fp8"}, "plan.precision = fp8"),
        ({"tp": 8, "world_size": 8}, "plan.tp = 8: .*key-value heads; allowed: a divisor of 4"),
        ({"model": "nemotron-3-nano"}, "nemotron-3-nano: has state-space layers and experts"),
        ({"model": "nemotron-h-8b", "tp": 2}, "plan.tp = 2: the runtime does not split state-space layers"),
        ({"model": "t5-3b"}, "model t5-3b: has two towers; the runtime trains decoders"),
        ({"dp": 3}, "plan.dp = 3: .*leaves 4"),
        (
            {"model": "mixtral-8x7b", "pp": 2, "ep": 2, "zero": 3, "schedule": "zb-v"},
            "plan.zero = 3 with schedule zb-v: .*silently",
        ),
        (
            {"model": "mixtral-8x7b", "tp": 2, "ep": 2, "sequence_parallel": False},
            "experts with tp > 1 take each token from one rank",
        ),
        ({"pp": 4, "schedule": "dualpipe"}, "dualpipe"),
        ({"model": "deepseek-v3", "pp": 4, "schedule": "zb-h1"}, "predicts further tokens: .*without W"),
        (
            {"model": "deepseek-v3", "pp": 4, "layers": [30, 16, 16, 0]},
            "the last stage has 0, .*allowed: a last stage of 1 or more",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(values, words):
    """One line says what, why, and what is allowed instead."""
    with pytest.raises(UserError, match=words):
        strategy(**values)


def test_a_model_of_ones_own_is_data_parallel_only():
    """Without a graph nothing can be split but the batch."""
    assert prepare(Plan(zero=3, precision="fp32"), None, TRAINING, 4).strategy.reduction == "fsdp"
    with pytest.raises(UserError, match=r"plan.tp = 2: .*only data parallel"):
        prepare(Plan(tp=2, precision="fp32"), None, TRAINING, 4)


def test_losses_must_come_in_order():
    """A table whose last stage runs microbatch 1 before 0 is refused: torch numbers losses as they come."""
    good = make_schedule("1f1b", 2, 2)
    refuse_schedule(good)
    first = rank_actions([(0, 0, 1), (0, 0, 0), (1, 0, 1), (1, 0, 0)])
    last = rank_actions([(0, 1, 1), (1, 1, 1), (0, 1, 0), (1, 1, 0)])
    with pytest.raises(UserError, match="out of order"):
        refuse_schedule(Schedule("custom", 2, (0, 1), (first, last)))

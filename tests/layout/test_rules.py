"""Rules in columns: many layouts at once keep exactly the rules that each of them keeps."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.layout.check import keeps_rules
from simpar.layout.layout import Layout
from simpar.layout.rules import RULES
from simpar.plan.choices import AXES, OPTIONAL_AXES
from simpar.plan.choices.target import Workload
from tests.gate import some

NAMES = {name for axis in (*AXES, *OPTIONAL_AXES) for rules in getattr(axis, "rules", ()) for name in rules.names}
SIZES = {
    "tp": (1, 2, 3, 8),
    "cp": (1, 2, 3),
    "pp": (1, 2),
    "dp": (1, 4),
    "ep": (1, 4, 16),
    "etp": (0, 2),
    "zero": (0, 1, 3),
    "hsdp": (1, 2),
    "sequence_parallel": (False, True),
}
MODELS = ("llama-3.2-1b", "tiny-mixture")
OTHERS = [
    {},
    {"cp_method": "ulysses", "schedule": "terapipe", "expert_imbalance": 0.5, "expert_load": "sampled"},
    {"ulysses": 2, "cp_balance": "contiguous", "slices": (256, 254), "offload_parameters": "cpu"},
    {"sync": "local-sgd", "kind": "fsdp", "optimizer": "muon"},
    {"servers": 1, "optimizer": "muon", "offload_optimizer": "cpu", "offload_gradients": True},
    {"kind": "single_process", "recompute": "full", "recompute_early": True, "reshard_after_forward": True},
    {"recompute": "full", "recompute_early": True, "offload_activations": 0.5, "offload_ratio": 0.5},
]


def test_searches_ask_rules_that_there_are() -> None:
    """Choices name rules; every one of them computes in columns."""
    assert set(RULES) >= NAMES


@pytest.mark.parametrize(
    ("model", "others"),
    some(product(MODELS, OTHERS), list(zip(cycle(MODELS), OTHERS, strict=False)), tuples=True),
    ids=str,
)
def test_columns_keep_the_rules_that_each_row_keeps(model: str, others: dict[str, object]) -> None:
    """Number by number, or all at once."""
    target = Workload(load_model(model), Training(seq_len=510, global_batch=64), 8, 8)
    rows = list(product(*SIZES.values()))
    layout = Layout(**others)
    columns = layout.with_columns(
        {name: np.array(column) for name, column in zip(SIZES, zip(*rows, strict=True), strict=True)}
    )
    for name in sorted({*NAMES, "tensor", "batch"}):
        at_once = np.broadcast_to(keeps_rules(columns, target, name), len(rows))
        for at in range(0, len(rows), 7):
            alone = layout.with_columns(dict(zip(SIZES, rows[at], strict=True)))
            assert at_once[at] == bool(keeps_rules(alone, target, name)), (name, rows[at])

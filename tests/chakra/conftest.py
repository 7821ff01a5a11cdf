"""Steps of a tiny model, exported once for all tests of a module."""

from __future__ import annotations

from functools import cache

import simpar
from simpar.architectures.catalogue import load_model
from simpar.chakra.write import export_traces
from simpar.plan.plan import Plan
from simpar.simulation import make_job

TRAINING = simpar.Training(seq_len=512, global_batch=8)
PLANS = {
    "one": {"dp": 1},
    "ddp": {"dp": 8},
    "zero-3": {"dp": 8, "zero": 3, "recompute": "full"},
    "hsdp": {"dp": 8, "zero": 3, "hsdp": 2},
    "3d": {"tp": 2, "pp": 2, "dp": 2, "zero": 1},
    "interleaved": {"pp": 2, "vpp": 2, "dp": 2, "tp": 2, "zero": 1},
    "zero-bubble": {"pp": 2, "dp": 2, "tp": 2, "schedule": "zb-v"},
    "ring": {"cp": 4, "dp": 2, "zero": 1, "cp_method": "ring", "cp_balance": "zigzag", "micro_batch": 2},
    "gathered": {
        "tp": 2,
        "cp": 2,
        "dp": 2,
        "zero": 3,
        "cp_method": "all_gather",
        "cp_balance": "zigzag",
        "micro_batch": 2,
    },
    "experts": {"dp": 8, "ep": 4, "etp": 1, "zero": 1},
    "experts-pp": {"pp": 2, "dp": 4, "ep": 2, "etp": 1, "zero": 1},
    "mirrored": {"pp": 2, "dp": 2, "tp": 2, "schedule": "dualpipe"},
    "slices": {"pp": 2, "dp": 2, "tp": 2, "schedule": "terapipe"},
    "stages": {
        "pp": 2,
        "micro_batch": 4,
        "pipeline": {
            "stages": [
                {"layers": 2, "first_device": 0, "mesh": (2, 2)},
                {"layers": 2, "first_device": 4, "mesh": (1, 4)},
            ]
        },
    },
    "ulysses": {"cp": 4, "dp": 2, "zero": 3, "cp_method": "ulysses", "cp_balance": "zigzag", "micro_batch": 2},
}
"""On eight devices, but for the first; of a mixture where there is expert parallelism."""


@cache
def job_and_cluster(label, stack="megatron", model="", hardware="dgx-h100"):
    """A plan of the table, decided."""
    model = model or ("tiny-mixture" if "ep" in PLANS[label] else "tiny-llama")
    plan = Plan.model_validate(PLANS[label])
    cluster = simpar.Cluster("laptop-cpu" if label == "one" else hardware, nodes=1)
    return make_job(load_model(model), cluster, plan, TRAINING, stack), cluster


@cache
def exported(label, **kinds):
    """Its files."""
    return export_traces(*job_and_cluster(label, **kinds))

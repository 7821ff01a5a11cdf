"""Plans, models and shapes that every export is tried with."""

from __future__ import annotations

from simpar.models.training import Training

TRAINING = Training(seq_len=1024, global_batch=64)
PLANS = {
    "ddp": {"dp": 8},
    "tp": {"tp": 4, "dp": 2, "sequence_parallel": True},
    "tp-without-sp": {"tp": 4, "dp": 2, "sequence_parallel": False, "zero": 1},
    "pp": {"pp": 4, "dp": 2, "zero": 1},
    "pp-uneven": {"pp": 4, "dp": 2, "layers": (7, 9, 9, 7)},
    "interleaved": {"pp": 4, "vpp": 2, "dp": 2, "zero": 1},
    "gpipe": {"pp": 4, "dp": 2, "schedule": "gpipe"},
    "zero-bubble": {"pp": 4, "dp": 2, "schedule": "zb-v"},
    "3d": {"tp": 2, "pp": 2, "dp": 2, "zero": 1, "recompute": "full"},
    "pp-before-dp": {"tp": 2, "pp": 2, "dp": 2, "rank_order": "tp-cp-pp-dp"},
    "zero-2": {"dp": 8, "zero": 2},
    "zero-3": {"dp": 8, "zero": 3, "recompute": "full"},
    "hsdp": {"dp": 8, "zero": 3, "hsdp": 2},
    "tp-fsdp": {"tp": 2, "dp": 4, "zero": 3},
    "selective": {"dp": 8, "zero": 1, "recompute": "selective"},
    "every-second": {"pp": 2, "dp": 4, "recompute": "every:2"},
    "fp8": {"tp": 2, "dp": 4, "zero": 1, "precision": "fp8"},
    "fp16": {"dp": 8, "zero": 1, "precision": "fp16"},
    "fp32": {"dp": 8, "precision": "fp32", "optimizer": "sgd"},
    "buckets": {"dp": 8, "zero": 1, "bucket_bytes": "25 MiB"},
    "serial": {"dp": 8, "zero": 1, "overlap_grad_reduce": False, "overlap_param_gather": False},
    "bf16-gradients": {"dp": 8, "zero": 1, "grad_dtype": "bf16"},
}

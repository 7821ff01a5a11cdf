"""Plans, models and shapes that every export is tried with."""

from __future__ import annotations

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.frameworks import export, load_target, read
from simpar.frameworks.subject import settle
from simpar.layout.decide import complete_plan
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan

TRAINING = Training(seq_len=1024, global_batch=64)
PLANS = {
    "ddp": {"dp": 8},
    "tp": {"tp": 4, "dp": 2, "sequence_parallel": True},
    "tp-without-sp": {"tp": 4, "dp": 2, "sequence_parallel": False, "zero": 1},
    "tp-overlapped": {"tp": 4, "dp": 2, "zero": 2, "sequence_parallel": True, "tensor_parallel": {"overlap": True}},
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
    "pp-fsdp": {"pp": 2, "dp": 4, "zero": 2},
    "interleaved-fsdp": {"pp": 2, "vpp": 2, "dp": 4, "zero": 3, "layers": (7, 9, 9, 7)},
    "zb-h1-alone": {"pp": 8, "dp": 1, "schedule": "zb-h1"},
    "v-half-alone": {"tp": 2, "pp": 4, "dp": 1, "schedule": "v-half"},
    "tp-fsdp": {"tp": 2, "dp": 4, "zero": 3},
    "cp-ring": {"cp": 4, "dp": 2, "zero": 1, "cp_method": "ring", "cp_balance": "zigzag"},
    "cp-gathered": {"tp": 2, "cp": 2, "dp": 2, "zero": 3, "cp_method": "all_gather", "cp_balance": "zigzag"},
    "cp-ulysses": {"cp": 4, "dp": 2, "zero": 3, "cp_method": "ulysses", "cp_balance": "zigzag"},
    "cp-hybrid": {"cp": 8, "dp": 1, "zero": 1, "cp_method": "ring", "cp_balance": "zigzag", "ulysses": 2},
    "selective": {"dp": 8, "zero": 1, "recompute": "selective"},
    "modules": {"dp": 8, "zero": 1, "recompute": "modules:core_attn+layernorm"},
    "every-second": {"pp": 2, "dp": 4, "recompute": "every:2"},
    "fp8": {"tp": 2, "dp": 4, "zero": 1, "precision": "fp8"},
    "fp8-blockwise": {"tp": 2, "dp": 4, "zero": 1, "precision": "fp8_blockwise"},
    "mxfp8": {"tp": 2, "dp": 4, "zero": 1, "precision": "mxfp8"},
    "fp16": {"dp": 8, "zero": 1, "precision": "fp16"},
    "fp32": {"dp": 8, "precision": "fp32", "optimizer": "sgd"},
    "buckets": {"dp": 8, "zero": 1, "bucket_bytes": "25 MiB"},
    "serial": {"dp": 8, "zero": 1, "overlap_grad_reduce": False, "overlap_param_gather": False},
    "offloaded": {"dp": 8, "zero": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    "offloaded-states": {"dp": 8, "zero": 2, "offload_optimizer": "cpu"},
    "on-drives": {"dp": 8, "zero": 3, "offload_optimizer": "nvme", "offload_parameters": "nvme"},
    "offloaded-partly": {"dp": 8, "zero": 3, "offload_optimizer": "cpu", "offload_ratio": 0.5},
    "offloaded-late": {"dp": 8, "zero": 1, "offload_optimizer": "cpu", "offload_delayed": True},
    "offloaded-activations": {"dp": 8, "zero": 2, "offload_activations": 0.5},
    "bf16-gradients": {"dp": 8, "zero": 1, "grad_dtype": "bf16"},
    "lora": {"dp": 8, "lora_rank": 16, "lora_targets": ("q_proj", "v_proj")},
    "qlora-sharded": {"dp": 8, "zero": 3, "lora_rank": 16, "frozen_dtype": "nf4"},
}

MIXTURES = {
    "experts": {"dp": 8, "ep": 8, "zero": 1, "etp": 1},
    "experts-tp": {"tp": 2, "dp": 4, "ep": 4, "etp": 1, "zero": 1, "sequence_parallel": True},
    "experts-overlapped": {"dp": 8, "ep": 8, "etp": 1, "zero": 1, "ep_overlap": True, "recompute": "selective"},
    "experts-per-node": {"dp": 8, "ep": 8, "etp": 1, "zero": 1, "token_dispatch": "per_node"},
    "experts-pp": {"pp": 2, "dp": 4, "ep": 4, "etp": 1, "zero": 1, "capacity_factor": 1.5},
}


def checked(model="llama-3-8b", world_size=8, **values):
    """A plan of the matrix as an export gets it."""
    plan = Plan.model_validate({**values, "model": model, "training": TRAINING.model_dump()})
    return complete_plan(plan, Workload(load_model(model), TRAINING, world_size, 8))


def exported(target, plan, *, lossy=False):
    """The files of a plan."""
    return export(plan, load_model(plan.model), TRAINING, target, lossy=lossy).files


def written_and_lost(target, **value):
    """Files of a plan of a small dense model that says one field, without plan and page, and what is lost of it."""
    (field,) = value
    model, shape = load_model("llama-3.2-1b"), Training(seq_len=512, global_batch=16)
    found = export(Plan(dp=8, **value), model, shape, target, lossy=True)
    files = {name: text for name, text in found.files.items() if name not in ("plan.json", "README.md")}
    return files, [str(loss) for loss in found.lost if loss.field == field]


def comes_back(target, plan, name):
    """Whether a plan survives export and import: everything that stack and file together say is equal."""
    back = read(exported(target, plan)[name], name, target).plan
    whole = complete_plan(back, Workload(load_model(plan.model), TRAINING, plan.mesh.world_size, 8))
    if (
        plan.offload.offload_gradients is None
    ):  # the stack of a plan without one keeps them; that of the target does not
        whole = whole.with_values(offload_gradients=None)
    stack = load_target(target).stack
    found, expected = settle(whole, stack)[0], settle(plan, stack)[0]
    assert load_model(found.model).dims == load_model(expected.model).dims
    return found.model_copy(update={"model": expected.model}) == expected

"""What rows share is keyed by all that it depends on: a row is bounded alike among others and alone.

Rows that differ in one axis are bounded in one frontier, and each in a frontier of its own, in which nothing can be
shared. An axis that were missing in a key would give one of them what belongs to the other.
"""

import numpy as np
import pytest

import simpar
from simpar.architectures.hf_config import read
from simpar.planner import Constraints, make_problem
from simpar.planner.bound import data_parallel, keys
from simpar.planner.certify.frontier import STEP, SWEPT, Frontier
from simpar.planner.space.axes import ALL_NAMES
from simpar.planner.space.fit import needs
from simpar.planner.space.rows import enumerate_space
from simpar.planner.space.table import factorize
from tests.gate import some
from tests.planner.bound.test_sharing import IN_GATE as IN_SHARING

MODEL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 256, "num_attention_heads": 8,
    "num_hidden_layers": 8, "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 4096,
    "rms_norm_eps": 0.00001, "hidden_act": "silu", "max_position_embeddings": 4096, "num_local_experts": 4,
    "num_experts_per_tok": 2,
}  # fmt: skip
DENSE = {
    **{name: value for name, value in MODEL.items() if "num_local" not in name and "per_tok" not in name},
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
}  # fmt: skip
SHARING = {
    **DENSE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
VALUES = {
    "tp": (1, 2), "cp": (1, 2), "pp": (1, 2), "ep": (1, 2), "micro_batch": (1, 2), "vpp": (2, 4),
    "schedule": ("1f1b", "gpipe", "zb-h1"), "zero": (0, 1, 2, 3), "hsdp": (1, 2), "sequence_parallel": (False, True),
    "tp_overlap": (False, True), "recompute": ("none", "selective", "full", "every:2"),
    "overlap_grad_reduce": (True, False), "overlap_param_gather": (True, False),
    "order": ("tp-cp-dp-pp", "tp-cp-pp-dp"), "precision": ("bf16", "fp32", "fp16"),
    "optimizer": ("adamw", "sgd", "muon"), "moment_dtype": ("fp32", "bf16"), "grad_dtype": ("fp32", "bf16"),
    "reduce_dtype": ("fp32", "bf16", "fp8"), "gather_dtype": ("fp32", "fp8"),
    "cp_method": ("ring", "all_gather"), "cp_balance": ("zigzag", "contiguous"), "ulysses": (1, 2),
    "etp": (1, 2), "capacity_factor": (1.0, 2.0), "ep_overlap": (True, False),
    "token_dispatch": ("per_expert", "per_rank", "per_node"), "shared_expert_overlap": (False, True),
    "sync": ("bsp", "local-sgd"), "sync_every": (4, 16),
    "staleness": (1, 3), "servers": (1, 2), "reshard_after_forward": (True, False),
    "offload_optimizer": ("none", "cpu"), "offload_ratio": (0.5, 1.0), "offload_delayed": (False, True),
    "offload_gradients": (False, True), "offload_parameters": ("none", "cpu"), "offload_activations": (0.0, 0.5),
    "recompute_early": (False, True), "bucket_bytes": ("1 MB", "100 MB"),
    "attention_kernel": ("eager", "flash3"), "loss_chunks": (1, 4), "expandable_segments": (False, True),
    "graphs": ("none", "attention", "step"), "dispatcher": ("all_gather", "all_to_all", "deepep"),
    "parameter_dtype": ("fp32", "bf16"),
    "fused_kernels": ("none", "norm+activation"),
    "optimizer_kernels": ("fused", "foreach"), "defer_grad_reduce": (False, True),
}  # fmt: skip
USUAL = {
    "tp": 1, "cp": 1, "pp": 1, "ep": 1, "micro_batch": 1, "schedule": "1f1b", "hsdp": 1, "zero": 1,
    "sequence_parallel": False, "tp_overlap": False, "recompute": "none", "overlap_grad_reduce": True,
    "overlap_param_gather": True, "order": "tp-cp-dp-pp",
}  # fmt: skip
TENSOR = {"tp": 4, "sequence_parallel": True}
STAGES = {"pp": 2, "tp": 2, "sequence_parallel": True}
WITH = {
    "vpp": {"pp": 2, "schedule": "interleaved"}, "schedule": {"pp": 4}, "hsdp": {"zero": 3},
    "sequence_parallel": {"tp": 2},
    "tp_overlap": TENSOR, "recompute": {"pp": 2}, "order": STAGES,
    "cp_method": {"cp": 4},
    "cp_balance": {"cp": 4}, "ulysses": {"cp": 4}, "etp": {**STAGES, "ep": 2}, "capacity_factor": {"ep": 2},
    "ep_overlap": {"ep": 2}, "token_dispatch": {"ep": 2}, "shared_expert_overlap": {"ep": 2},
    "dispatcher": {"ep": 2}, "sync": {"zero": 0},
    "sync_every": {"zero": 0, "sync": "local-sgd"}, "staleness": {"zero": 0, "sync": "ssp"},
    "servers": {"zero": 0, "sync": "asp"}, "reshard_after_forward": {"zero": 3},
    "defer_grad_reduce": {"zero": 3},
    "offload_ratio": {"offload_optimizer": "cpu"}, "offload_delayed": {"offload_optimizer": "cpu"},
    "offload_gradients": {"offload_optimizer": "cpu", "zero": 2},
    "offload_parameters": {"zero": 3, "offload_optimizer": "cpu"},
    "recompute_early": {"pp": 2, "recompute": "full"}, "moment_dtype": {"optimizer": "adamw"},
    "gather_dtype": {"zero": 3}, "overlap_grad_reduce": {"pp": 2}, "overlap_param_gather": {"pp": 2},
}  # fmt: skip
"""What an axis must be looked at with to make a difference."""
OF_EXPERTS = ("ep", "etp", "capacity_factor", "ep_overlap", "token_dispatch", "dispatcher")


def rows_of(axis, stack="megatron"):
    """Rows that differ in one axis."""
    models = dict.fromkeys(OF_EXPERTS, MODEL) | {"shared_expert_overlap": SHARING}
    graph = read(models.get(axis, DENSE), name="small")
    training = simpar.Training(seq_len=512, global_batch=32)
    fixed = {**USUAL, **WITH.get(axis, {}), axis: VALUES[axis]}
    constraints = Constraints(fixed=fixed)
    return enumerate_space(
        make_problem(graph, simpar.Cluster("rtx-3090-8"), training, stack=stack, constraints=constraints)
    )


def bounds_of(rows):
    """Needed bytes, and bounds by kernels, whole steps and the sweep, float64[4, rows]."""
    needed = needs(rows).needed_bytes
    frontier = Frontier.of(rows, needed)
    found = [needed, frontier.bound_s.copy()]
    for level in (STEP, SWEPT):
        for row in range(rows.count):
            while frontier.level[row] < level:
                frontier.raise_bound(row)
        found.append(frontier.bound_s.copy())
    return np.array(found)


def alone(rows):
    """The same, every row in a frontier of its own."""
    return np.concatenate([bounds_of(rows.subset([row])) for row in range(rows.count)], axis=1)


def test_every_axis_is_looked_at():
    """A new axis needs two values here."""
    assert set(VALUES) == set(ALL_NAMES)


@pytest.mark.parametrize("axis", some(ALL_NAMES, [name for name in ALL_NAMES if name not in IN_SHARING][::4]))
def test_a_row_is_bounded_among_others_as_it_is_alone(axis):
    """In memory and at every level of bounds, to the last bit of seconds."""
    rows = rows_of(axis)
    assert len(set(rows.code[axis].tolist())) > 1, "two values stand side by side"
    np.testing.assert_allclose(bounds_of(rows), alone(rows), rtol=1e-12)


@pytest.mark.parametrize(
    ("where", "key", "axis"),
    [
        (data_parallel, "CONFIGURATION_AXES", "reduce_dtype"),
        (data_parallel, "CONFIGURATION_AXES", "bucket_bytes"),
        (keys, "KEY_AXES", "precision"),
    ],
)
def test_a_key_without_an_axis_is_found_out(where, key, axis, monkeypatch):
    """The test above can fail: an axis left out of a key lets rows share what differs."""
    monkeypatch.setattr(where, key, tuple(name for name in getattr(where, key) if name != axis))
    rows = rows_of(axis)
    assert not np.allclose(bounds_of(rows), alone(rows), rtol=1e-12)


def test_ranks_of_another_order_are_bounded_as_they_are_alone():
    """Groups of experts that cross nodes cost what they cost there, whatever row stands beside theirs."""
    orders = "tp-cp-dp-pp", "tp-cp-pp-dp"
    fixed = {"tp": 4, "pp": 2, "ep": 8, "token_dispatch": "per_rank", "schedule": "1f1b", "order": orders}
    problem = make_problem(
        "olmoe-1b-7b",
        simpar.Cluster("dgx-a100-80gb", 2),
        simpar.Training(seq_len=512, global_batch=16),
        stack="torchtitan",
        constraints=Constraints(portable="any", fixed=fixed),
    )
    every = enumerate_space(problem)
    _, kind = factorize(*(column for name, column in every.code.items() if name != "order"))
    pair = np.flatnonzero(kind == 0)
    assert [every.domain["order"][code] for code in every.code["order"][pair]] == list(orders)
    rows = every.subset(pair)
    each = alone(rows)
    np.testing.assert_allclose(bounds_of(rows), each, rtol=1e-12)
    assert len(set(each[-1].tolist())) == 2, "a step of one order is longer"

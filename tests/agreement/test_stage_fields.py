"""What a plan says beside its stages counts as it does without them, or is refused: nothing is dropped in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import BaseModel

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.files import parse
from simpar.plan.plan import Plan, Record
from simpar.plan.schedules import make_schedule
from simpar.simulation import make_job, simulate
from tests.as_stages import as_stages
from tests.gate import some

TRAINING = simpar.Training(seq_len=512, global_batch=32)
CLUSTER = simpar.Cluster("dgx-h100", nodes=2)
DENSE = ("gpt2-medium", {"tp": 2, "pp": 4, "zero": 1, "schedule": "zb-h1"})
MIXTURE = ("qwen1.5-moe-a2.7b", {"tp": 2, "pp": 2, "zero": 1, "ep": 2, "sequence_parallel": True})

CASES = {
    "micro_batch": {"": [{"micro_batch": 8}]},
    "mesh": {
        "tp": [{"tp": 4}],
        "cp": [{"cp": 2}],
        "dp": [{"dp": 16}],
        "pp": [{"pp": 8}],
        "ep": [{"ep": 4}],
        "etp": [{"etp": 2}],
        "order": [{"order": ("pp", "tp", "cp", "dp")}],
    },
    "pipeline": {
        "schedule": [{"schedule": "gpipe"}],
        "vpp": [{"vpp": 2, "schedule": "interleaved"}],
        "layers": [{"layers": (1, 3)}, {"layers": (0, 2, 1, 1)}],
        "actions": [{"actions": make_schedule("gpipe", ranks, 8).to_csv(), "schedule": None} for ranks in (2, 4)],
        "slices": [{"slices": (256, 256)}],
        "pass_costs": [{"pass_costs": (3.0, 1.0, 2.0)}],
        "encoder_in_bubbles": [{"encoder_in_bubbles": True}],
        "stages": [],
    },
    "data_parallel": {
        "kind": [{"kind": "fsdp"}, {"kind": "fsdp", "zero": 2}],
        "zero": [{"zero": 0}, {"zero": 2}, {"zero": 3}],
        "hsdp": [{"hsdp": 2}],
        "bucket_bytes": [{"bucket_bytes": 10_000_000}],
        "first_bucket_bytes": [{"first_bucket_bytes": 1_000_000}],
        "overlap_grad_reduce": [{"overlap_grad_reduce": False}],
        "overlap_param_gather": [{"overlap_param_gather": False}],
        "reshard_after_forward": [{"reshard_after_forward": False, "zero": 3}],
        "defer_grad_reduce": [{"defer_grad_reduce": True, "zero": 3}, {"defer_grad_reduce": True, "zero": 2}],
        "sync": [{"sync": "local-sgd", "zero": 0}],
        "sync_every": [{"sync": "local-sgd", "sync_every": 2, "zero": 0}],
        "staleness": [{"sync": "ssp", "staleness": 1, "zero": 0}],
        "servers": [{"servers": 2, "zero": 0}],
    },
    "tensor_parallel": {"sequence_parallel": [{"sequence_parallel": False}], "overlap": [{"overlap": True}]},
    "context_parallel": {
        "cp_method": [{"cp_method": "ulysses"}],
        "cp_balance": [{"cp_balance": "striped"}],
        "ulysses": [{"ulysses": 2}],
    },
    "experts": {
        "capacity_factor": [{"capacity_factor": 1.5}],
        "expert_imbalance": [{"expert_imbalance": 0.5}],
        "expert_distribution": [{"expert_imbalance": 1.2, "expert_distribution": "power_law"}],
        "expert_load": [{"expert_imbalance": 0.5, "expert_load": "sampled"}],
        "ep_overlap": [{"ep_overlap": True}],
        "token_dispatch": [{"token_dispatch": "per_rank"}, {"token_dispatch": "per_node"}],
        "shared_expert_overlap": [{"shared_expert_overlap": True}],
    },
    "memory": {
        "recompute": [{"recompute": "selective"}, {"recompute": "full"}, {"recompute": "every:2"}],
        "recompute_early": [{"recompute": "full", "recompute_early": True}, {"recompute_early": True}],
    },
    "execution": {
        "attention_kernel": [{"attention_kernel": "eager"}],
        "loss_chunks": [{"loss_chunks": 4}],
        "expandable_segments": [{"expandable_segments": True}],
        "graphs": [{"graphs": "attention+mlp"}],
        "dispatcher": [{"dispatcher": "all_gather"}, {"dispatcher": "deepep"}],
        "parameter_dtype": [{"parameter_dtype": "fp32"}],
        "fused_kernels": [{"fused_kernels": "none"}, {"fused_kernels": "compiled"}],
        "optimizer_kernels": [{"optimizer_kernels": "foreach"}],
        "update_in_backward": [{"update_in_backward": True}],
        "fused_permutation": [{"fused_permutation": False}],
        "document_loops": [{"document_loops": True}],
        "empty_cache_steps": [{"empty_cache_steps": 1}],
        "gradient_accumulation_fusion": [{"gradient_accumulation_fusion": False}],
        "kept_outputs": [{"kept_outputs": 2}],
        "quantized_weights": [{"precision": "fp8", "quantized_weights": "none"}],
        "matrix_layout": [{"optimizer": "muon", "matrix_layout": "duplicated"}, {"matrix_layout": "duplicated"}],
    },
    "offload": {
        "offload_optimizer": [{"offload_optimizer": "cpu"}],
        "offload_ratio": [{"offload_ratio": 0.5}, {"offload_optimizer": "cpu", "offload_ratio": 0.5}],
        "offload_gradients": [{"offload_gradients": True}],
        "offload_delayed": [{"offload_delayed": True}, {"offload_optimizer": "cpu", "offload_delayed": True}],
        "offload_parameters": [{"offload_parameters": "cpu"}],
        "offload_activations": [{"offload_activations": 0.5}],
    },
    "tuning": {
        "lora_rank": [{"lora_rank": 4}],
        "lora_targets": [{"lora_rank": 4, "lora_targets": ("q_proj",)}],
        "lora_dropout": [{"lora_rank": 4, "lora_dropout": 0.1}],
        "frozen_layers": [{"frozen_layers": 1}],
        "frozen_tower": [{"frozen_tower": True}],  # which these models do not have
        "frozen_connector": [{"frozen_connector": True}],
        "frozen_dtype": [{"frozen_layers": 1, "frozen_dtype": "nf4"}],
    },
    "numerics": {
        "precision": [{"precision": "fp32"}],
        "grad_dtype": [{"grad_dtype": "bf16"}],
        "reduce_dtype": [{"reduce_dtype": "bf16"}],
        "gather_dtype": [{"gather_dtype": "fp32"}],
        "master_weights": [{"master_weights": False}],
        "optimizer": [{"optimizer": "sgd"}, {"optimizer": "muon"}],
        "master_dtype": [{"master_dtype": "remainder"}, {"master_dtype": "fp16"}],
        "moment_dtype": [{"moment_dtype": "bf16"}],
    },
}
WITHOUT_EFFECT = {"cp_method", "cp_balance", "stages", "document_loops"}
"""How context ranks work together, of which stages have none; what all others are beside; and loops over documents, of
which these jobs have none."""
ROLES_SAY = {"sequence_parallel"}
"""False in resolved plans whose stages have a role for every operator: whether rows are spread is in the roles."""


def test_every_field_of_a_plan_has_a_case():
    """A new one has to be given a value that counts."""
    found = {}
    for name, field in Plan.model_fields.items():
        if name not in Record.model_fields:
            kind = field.annotation
            part = isinstance(kind, type) and issubclass(kind, BaseModel)
            found[name] = set(kind.model_fields) if part else {""}
    assert {section: set(fields) for section, fields in CASES.items()} == found


def outcome(graph, plan, section="", values=None):
    """What a plan takes, in time and memory, with other values in one of its sections; None where it is refused."""
    whole = plan.model_dump()
    inside = values if section in ("", "micro_batch") else {section: {**whole[section], **values}}
    try:
        changed = parse(Plan, {**whole, **(inside or {})})
        result = simulate(graph, CLUSTER, changed, TRAINING)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return None
    memory = result.memory
    return result.step_time_s, result.time_breakdown_s, memory.peak_memory_bytes, memory.peak_reserved_bytes


def beside(plan, graph, *, roles):
    """A layout as a user writes it in stages, other keys left alone."""
    stages = as_stages(make_job(graph, CLUSTER, plan, TRAINING, "megatron").layout.to_plan(), graph, roles=roles)
    rows = plan.tensor_parallel.sequence_parallel
    return Plan(
        micro_batch=stages.micro_batch,
        zero=1,
        schedule=plan.schedule,
        ep=plan.mesh.ep,
        sequence_parallel=None if roles else rows,
        pipeline={"stages": stages.pipeline.stages, "schedule": plan.schedule},
    )


@pytest.mark.parametrize("section", some(CASES, ["pipeline"]))
def test_nothing_beside_stages_is_dropped(section):
    """What changes a uniform plan, or is refused there, changes its stages, or is refused; each counts somewhere."""
    counting = set()
    for model, values in (DENSE, MIXTURE):
        graph = replace(load_model(model), layers=load_model(model).layers[:4])
        uniform = Plan(**values)
        ways = [False] if graph.is_mixture else [True, False]
        forms = {roles: beside(uniform, graph, roles=roles) for roles in ways}
        usual = outcome(graph, uniform)
        assert usual is not None
        assert all(outcome(graph, form) == usual for form in forms.values())
        for field, cases in CASES[section].items():
            for case in cases:
                if outcome(graph, uniform, section, case) == usual:
                    continue
                counting.add(field)
                same = [roles for roles, form in forms.items() if outcome(graph, form, section, case) == usual]
                assert not same or (same == [True] and field in ROLES_SAY), (model, case, same)
    assert set(CASES[section]) - counting == WITHOUT_EFFECT & set(CASES[section])

"""Policies of recomputation, and what chosen modules drop and run again."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.flops import hardware_flop_per_token, model_flop_per_token
from simpar.architectures.recompute import (
    ALLOWED,
    MODULES,
    OPTIMAL,
    SIMPLE,
    by_layer,
    is_known,
    joint_mode,
    last_of,
    modes,
    module_names,
    of_layer,
    of_modules,
    operators,
    policy_of_every,
    says_layers,
    segment,
)
from simpar.architectures.training import Training
from simpar.cost.activations import block_activations
from simpar.hardware.catalogue import load_cluster
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.layout.sharding import rank_dims
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import block_steps
from simpar.simulation import make_job
from simpar.stacks.stack import load_stack

TRAINING = Training(seq_len=4096, global_batch=64)
DEEPSEEK = load_model("deepseek-v3")


def saved(policy: str) -> float:
    """Bytes a DeepSeek-V3 layer with experts keeps for a token."""
    habits = load_stack("megatron").model_copy(
        update={"memory": load_stack("megatron").memory.model_copy(update={"pins_packed_qkv": False})}
    )
    plan = resolve(Plan(dp=8, ep=8), habits)
    dims = rank_dims(DEEPSEEK, Layout.of(plan), TRAINING)
    block = DEEPSEEK.blocks["layer_moe"]
    return float(block_activations(block, dims, habits, plan.numerics, policy).saved_bytes) / 4096


def test_names() -> None:
    """Known policies, and what they mean for a layer."""
    assert all(
        is_known(p) for p in ("none", "selective", "full", "every:3", "segments:4", "modules:moe_act+mla_up_proj")
    )
    assert not any(is_known(p) for p in ("every:0", "segments:0", "modules:", "modules:attention", "moe_act"))
    assert (of_layer("every:2", 4), of_layer("every:2", 5), of_layer("selective", 5)) == ("full", "none", "selective")
    assert module_names("modules:mlp+moe") == ("mlp", "moe")
    assert operators("modules:moe_act") == {"expert_clamp", "expert_activation"}
    assert operators("full") == frozenset()


def test_what_is_built_is_read_again() -> None:
    """Policies of modules, of every C-th layer, of segments and by layer."""
    chosen = [("none", 2), (joint_mode(3), 6), (of_modules(["mlp", "moe"]), 1), ("full", 1), ("full", 2)]
    policy = by_layer(chosen)
    assert policy == "layers:none*2,full:3*6,modules:mlp+moe*1,full*3"
    assert is_known(policy)
    assert says_layers(f"full,{policy}")
    assert [of_layer(policy, layer) for layer in (0, 2, 4, 8, 9)] == [
        "none", "full:0/3", last_of(3), "modules:mlp+moe", "full",
    ]  # fmt: skip
    assert segment(last_of(3)) == (2, 3)
    assert modes(policy) == ("none", "full:0/3", "full:1/3", "full:2/3", "modules:mlp+moe", "full")
    assert modes(policy_of_every(3)) == ("full", "none")
    thirds = "segments:3"
    assert [of_layer(thirds, layer) for layer in (0, 4, 8)] == ["full:0/3", "full:1/3", last_of(3)]
    assert {*modes(thirds)} == {of_layer(thirds, layer) for layer in range(9)}
    assert modes("segments:1") == ("full",)
    assert (of_modules([]), joint_mode(1)) == ("none", "full")


@pytest.mark.parametrize("policy", [*SIMPLE, OPTIMAL, of_modules(["mlp"])])
def test_other_policies_are_what_they_mean_for_a_layer(policy: str) -> None:
    """They choose for no layer by itself, and their words are in what a refusal lists."""
    assert modes(policy) == (policy,)
    assert is_known(policy)
    assert not says_layers(policy)
    assert policy.partition(":")[0] in ALLOWED


def test_modules_name_operators_that_exist() -> None:
    """Every module stands for operators of some layer of the catalogue's models."""
    known = {
        op.name
        for name in ("deepseek-v3", "deepseek-v3.2", "gpt-oss-20b", "llama-3-8b", "minimax-m3", "deepseek-v4-flash")
        for block in load_model(name).blocks.values()
        for op in block.operators
    }
    assert all(names <= known for names in MODULES.values())


def test_latent_attention_drops_its_expansions() -> None:
    """Of 164 kB a token in DeepSeek-V3's attention, recomputing the up-projections drops queries, keys and values.

    That is 2 (2 x 192 + 128) bytes for each of 128 heads.
    """
    assert saved("none") - saved("modules:mla_up_proj") == 2 * (2 * 192 + 128) * 128


def test_expert_activations_are_two_bytes_a_routed_feature() -> None:
    """moe_act drops 2 x topk x f_e bytes a token."""
    assert saved("none") - saved("modules:moe_act") == 2 * 8 * 2048


def test_modules_add_up_and_full_drops_more() -> None:
    """Two modules drop what each drops; full recompute keeps only the boundary."""
    both = saved("modules:moe_act+mla_up_proj")
    drops = [saved("none") - saved(f"modules:{name}") for name in ("moe_act", "mla_up_proj")]
    assert saved("none") - both == pytest.approx(sum(drops))
    assert saved("full") == 2 * 7168 < saved("modules:moe+mla_up_proj") < both


def test_only_the_modules_run_again() -> None:
    """The backward repeats the forward kernels of the module's operators, and an exchange where tokens travel."""
    job = make_job(DEEPSEEK, load_cluster("dgx-h100", 1), Plan(ep=8, zero=1), TRAINING)
    block, view = DEEPSEEK.blocks["layer_moe"], RankView.of(job)
    again = {
        policy: [
            s for s in block_steps(RankBlock.of(block, view), recompute=policy).backward.steps if s.kind == "recompute"
        ]
        for policy in ("modules:moe_act", "modules:moe")
    }
    assert [step.name for step in again["modules:moe_act"]] == ["expert_activation"]
    names = {step.name for step in again["modules:moe"]}
    assert names == MODULES["moe"] - {"expert_clamp", "shared_clamp"}  # no limit on its activations
    sent = [
        s.collective.op
        for s in block_steps(RankBlock.of(block, view), recompute="modules:moe").backward.steps
        if s.collective and s.collective.group == "ep"
    ]
    assert sent == ["all_to_all"] * 6  # tokens and their scores out and outputs back: again, and backward


def test_hardware_flop_count_what_runs_again() -> None:
    """Recomputing the up-projections of 61 + 1 layers adds their products once."""
    extra = hardware_flop_per_token(DEEPSEEK, 4096, "modules:mla_up_proj") - model_flop_per_token(DEEPSEEK, 4096)
    assert extra == 62 * 2 * 128 * (1536 * 192 + 512 * 256)

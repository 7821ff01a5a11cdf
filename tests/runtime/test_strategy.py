"""Which layouts run how, and which are refused with the reason."""

import json
from math import prod

import pytest

from simpar import cli
from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.plan.megatron_roles import with_roles
from simpar.plan.plan import Plan
from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import Schedule, rank_actions
from simpar.plan.stages import StagePlan
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
        ({"precision": "fp16", "servers": 1, "dp": 4}, "plan.precision = fp16 with servers"),
        ({"precision": "mxfp8"}, "plan.precision = mxfp8"),
        ({"tp": 8, "world_size": 8}, "plan.tp = 8: .*key-value heads; allowed: a divisor of 4"),
        ({"model": "nemotron-3-super"}, "nemotron-3-super: predicts further tokens behind state-space layers"),
        ({"model": "mamba2-1.3b", "tp": 2}, "plan.tp = 2: does not divide the groups of state-space layers 1"),
        ({"model": "t5-3b"}, "model t5-3b: has two towers, or layers that are not causal; the runtime trains decoders"),
        ({"dp": 3}, "plan.dp = 3: .*leaves 4"),
        (
            {"model": "mixtral-8x7b", "pp": 2, "ep": 2, "zero": 3, "schedule": "zb-v"},
            "plan.zero = 3 with schedule zb-v: .*silently",
        ),
        (
            {"model": "mixtral-8x7b", "tp": 2, "ep": 2, "sequence_parallel": False},
            "experts with tp > 1 take each token from one rank",
        ),
        ({"model": "mixtral-8x7b", "ep": 4, "ep_overlap": True}, "plan.ep_overlap = true: a rank waits for its tokens"),
        ({"model": "mixtral-8x7b", "ep": 4, "shared_expert_overlap": True}, "plan.shared_expert_overlap = true"),
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


def test_encoders_in_the_bubbles_are_refused():
    """No pipeline of torch's has a stage whose rank depends on the microbatch."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    tower, text = {**sizes, "image_size": 56, "patch_size": 14}, {**sizes, "model_type": "llama", "vocab_size": 96}
    graph = read({"model_type": "llava", "vision_config": tower, "text_config": text}, "seeing")
    with pytest.raises(UserError, match="a stage on one rank; allowed in a real run: false"):
        prepare(Plan(pp=2, precision="fp32", encoder_in_bubbles=True), graph, TRAINING, 2)


def test_dropout_of_attention_is_refused_in_parts_of_a_sequence(tmp_path):
    """Parts of a sequence go through kernels that drop nothing; whole sequences drop."""
    path = tmp_path / "config.json"
    sizes = {"vocab_size": 96, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64}
    path.write_text(json.dumps({"model_type": "gpt2", "attn_pdrop": 0.1, **sizes}))
    assert strategy(model=str(path), dp=4)
    with pytest.raises(UserError, match=r"plan.cp = 2 with dropout of attention: .*allowed: 1"):
        strategy(model=str(path), cp=2, dp=2)


def test_a_part_of_a_model_that_no_run_computes_is_named(tmp_path):
    """Apertus is simulated; its activation has parameters of its own, which no run has."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "apertus", "num_attention_heads": 4, **sizes}))
    with pytest.raises(UserError, match=r"xIELU, whose shape is learnt: simulated, no run computes it"):
        strategy(model=str(path), dp=4)


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


def with_roles_of(model, mesh, **operators):
    """One stage of all layers in Megatron's roles, but for some operators of its layers."""
    graph = load_model(model)
    plain = StagePlan(layers=len(graph.layers), first_device=0, mesh=mesh)
    stage = with_roles(plain, graph, sequence_parallel=False).model_dump()
    for block in stage["sharding"].values():
        block["operators"] |= {name: words for name, words in operators.items() if name in block["operators"]}
    return {"pipeline": {"stages": [stage]}, "micro_batch": 4, "zero": 1, "model": model}


def test_stages_of_their_own_have_their_own_reduction():
    """By role, with optimizer states shared out as ZeRO-1 does."""
    found = strategy(**with_roles_of("tiny-llama", (2, 2)))
    assert (found.reduction, found.shard_optimizer) == ("stages", True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"zero": 3}, "plan.kind = fsdp, zero = 3"),
        ({"zero": 1, "offload_optimizer": "cpu"}, "plan.offload"),
        ({"zero": 1, "optimizer": "muon"}, "plan.optimizer = muon has states by the shape of matrices"),
    ],
)
def test_stages_without_a_sharding_are_refused_for_what_a_real_run_does_with_them(values, words):
    """Nobody is told that a stage has a sharding that he did not write."""
    stage = StagePlan(layers=len(load_model("tiny-llama").layers), first_device=0, mesh=(2, 1))
    plain = {"pipeline": {"stages": [stage.model_dump()]}, "micro_batch": 4, "model": "tiny-llama"}
    with pytest.raises(UserError) as caught:
        strategy(world_size=2, **plain, **values)
    cause = ", with plan.stages: a real run gives every operator its role; allowed there: "
    assert str(caught.value).startswith(words + cause)


@pytest.mark.parametrize(
    ("model", "mesh", "operators", "words"),
    [
        ("tiny-llama", (1, 8), {}, "stages[0].sharding.layer.qkv as batch, column on mesh (1, 8): the runtime"),
        ("olmo-2-7b", (1, 4), {}, "qk_norm as batch, features on mesh (1, 4): it normalises over all heads at once"),
        ("gpt2", (4,), {"attention": ("sequence",)}, "attention as sequence on mesh (4,): attention across parts"),
        ("tiny-llama", (1, 3), {}, "qkv as batch, column on mesh (1, 3): slices of 4 sequences of 64 tokens"),
        ("tiny-llama", (8,), {}, "stages[0].sharding.embedding.token_embedding as batch on mesh (8,): slices of 4"),
        ("tiny-llama", (4,), {"mlp_norm": ("partial_gradient",)}, "mlp_up: mlp_norm is written as X and read as B"),
    ],
)
def test_operators_that_do_not_run_in_their_role_are_named(
    monkeypatch, tmp_path, capsys, model, mesh, operators, words
):
    """One line with the stage, the operator and its role, from `simpar run` too, which starts and writes nothing."""
    with pytest.raises(UserError) as caught:
        strategy(world_size=prod(mesh), **with_roles_of(model, mesh, **operators))
    assert words in str(caught.value)
    assert "allowed" in str(caught.value)
    plan = {**with_roles_of(model, mesh, **operators), "training": TRAINING.model_dump(), "precision": "fp32"}
    (tmp_path / "plan.json").write_text(json.dumps({"version": "1", **plan}))
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", "plan.json", "--nproc", str(prod(mesh)), "--steps", "1"]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]

"""Vision towers before language models: rows and FLOP of their own, tokens that travel past them, what is assumed."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.graph import evaluate
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.steps import block_steps
from simpar.simulation import make_job

VISION = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8}
TEXT = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 128, "num_attention_heads": 8,
    "intermediate_size": 256, "num_hidden_layers": 4,
}  # fmt: skip
PATCHES = (336 // 14) ** 2
CLUSTER, TRAINING = simpar.Cluster("dgx-h100"), simpar.Training(seq_len=1024, global_batch=16)
STACKED = {
    "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 16},
    "vision_config": {
        "hidden_size": 64, "intermediate_size": 128, "depth": 3, "num_heads": 4, "deepstack_visual_indexes": [0, 1],
    },
}  # fmt: skip


def llava(**more):
    """A small vision tower before a small Llama."""
    return read({"model_type": "llava", "vision_config": VISION, "text_config": TEXT, **more}, "small-llava")


def odd(**more):
    """The same with a tower of four heads, as many as eight ranks cannot divide."""
    return llava(vision_config={**VISION, "num_attention_heads": 4}, **more)


def stacked(**more):
    """A small Qwen 3 with vision, which taps two layers of its tower."""
    return read({"model_type": "qwen3_vl", **STACKED, **more}, "small-qwen3-vl")


def test_a_vision_tower_counts_its_own_rows():
    """A vision layer's FLOP grow with the images of a sequence, a text layer's do not."""
    one, four = llava(), llava(images_per_sequence=4)
    seq, h, f = 4096, VISION["hidden_size"], VISION["intermediate_size"]
    matmuls = 3 * (4 * h * h + 2 * h * f) + 3 * 14 * 14 * h + h * 128 + 128 * 128
    grown = matmul_flop_per_token(four, seq) - matmul_flop_per_token(one, seq)
    assert grown * seq == pytest.approx(2 * matmuls * 3 * PATCHES)
    seen = attention_flop_per_token(four, seq) - attention_flop_per_token(one, seq)
    assert seen * seq == pytest.approx(3 * 4 * h * PATCHES * 3 * PATCHES)  # within an image only


def test_windows_of_a_tower_bound_its_attention():
    """Qwen 2.5's layers see 8 x 8 patches, but for those that see the whole image."""
    graph = read({**DECLARED["qwen2_5_vl"].tiny, "model_type": "qwen2_5_vl"}, "tiny")
    text = read({**DECLARED["qwen2"].tiny, "model_type": "qwen2"}, "tiny")
    patches, seq = 56 * 56, 4096
    seen = attention_flop_per_token(graph, seq) - attention_flop_per_token(text, seq)
    assert seen * seq == pytest.approx(4 * 32 * patches * (64 + patches))


def test_tokens_and_tapped_features_travel_past_the_tower():
    """Behind each block go its rows, the text's tokens until they are joined, and features until they are added."""
    graph = stacked()
    dims = shape_dims(graph, 1024, batch=2)
    text, vision, visual = 2 * 1024 * 128, 2 * 2304 * 64, 2 * 576 * 128
    sent = [graph.blocks[name].output_elements(dims) for name in graph.layers]
    assert sent == [
        *[vision + text] * 2, *[vision + text + visual] * 2, *[vision + text + 2 * visual] * 2,
        text + 2 * visual, text + visual, text, text, text,
    ]  # fmt: skip


def test_pipelines_cut_towers_anywhere_and_tied_tables_are_trained_at_both_ends():
    """A stage that ends inside the tower sends the text's tokens on; both ends hold a tied table."""
    tied = stacked(tie_word_embeddings=True)
    assert stacked().num_parameters() - tied.num_parameters() == 512 * 128
    cut = simpar.simulate(tied, CLUSTER, simpar.Plan(pp=2, layers=(3, 8)), TRAINING)
    sent = cut.communication["pp"].bytes_per_rank
    one = tied.blocks["tap_1"].output_elements(shape_dims(tied, 1024)) * 2
    table = 512 * 128 * 4  # its gradient in fp32
    assert sent == pytest.approx(one * 4 + table)  # 4 microbatches


def test_parallel_plans_do_the_same_work():
    """FLOP of a step are those of the model whatever the tensor, sequence and context parallelism."""
    plans = ({}, {"tp": 2, "sequence_parallel": True, "pp": 2}, {"cp": 2, "zero": 3}, {"pp": 4, "recompute": "full"})
    results = [simpar.simulate(stacked(), CLUSTER, simpar.Plan(**plan), TRAINING) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1


def test_a_frozen_tower_is_not_trained_and_keeps_nothing():
    """The layers up to the connector, and the table: no gradients, states or backward."""
    graph, count = stacked(), stacked().layers.index("connector")
    free, frozen = (
        simpar.simulate(graph, CLUSTER, simpar.Plan(zero=3, frozen_layers=layers), TRAINING) for layers in (0, count)
    )
    assert frozen.step_time_s < free.step_time_s
    assert frozen.memory.static_memory_bytes < free.memory.static_memory_bytes
    tower = [graph.blocks[name] for name in graph.layers[:count]]
    dims = shape_dims(graph, 1024)
    ops = [(op, block.view(dims)) for block in tower for op in block.operators]
    products = sum(
        2 * evaluate(op.rows, own) * evaluate(op.contraction, own) * evaluate(op.columns, own)
        for op, own in ops if op.kind == "matmul"
    )  # fmt: skip
    scores = 3 * 4 * 64 * 2304 * 2304
    saved = free.speed.model_flops_per_step - frozen.speed.model_flops_per_step
    assert saved == pytest.approx(16 * 2 * (products + scores))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("patches", [576, 577])
def test_a_tower_that_eight_ranks_cannot_divide_is_whole_on_each(patches, sequence_parallel):
    """Its parameters are held by all ranks; only gradients of visual tokens move, where the text's rows are spread."""
    plan = simpar.Plan(tp=8, sequence_parallel=sequence_parallel)
    seen, text = (
        simpar.simulate(odd(images_per_sequence=images, patches_per_image=patches), CLUSTER, plan, TRAINING)
        for images in (1, 0)
    )
    tower = odd().num_parameters() - odd(images_per_sequence=0).num_parameters()
    held = [each.memory.stages[0].parts_bytes["parameters"] for each in (seen, text)]
    assert held[0] - held[1] == 2 * tower
    moved = [each.communication["tp"].bytes_per_rank for each in (seen, text)]
    assert moved[0] - moved[1] == sequence_parallel * 16 * 2 * 128 * patches  # microbatches, bf16, hidden size
    assert any("vision tower whole on every tensor-parallel rank" in said for said in seen.setup.model["assumed"])
    alone = simpar.simulate(odd(patches_per_image=patches), CLUSTER, simpar.Plan(), TRAINING)
    assert not any("whole" in said for said in alone.setup.model["assumed"])
    assert seen.speed.model_flops_per_step == pytest.approx(alone.speed.model_flops_per_step)


def test_ranks_do_all_work_of_a_tower_that_they_do_not_divide():
    """The layers of the tower take a rank as long with 8 ranks as with one; those of a divided one do not."""
    whole, divided = odd(), llava()
    seconds = {}
    for name, graph in (("whole", whole), ("divided", divided)):
        for tp in (1, 8):
            job = make_job(graph, CLUSTER, simpar.Plan(tp=tp, micro_batch=1), TRAINING, "megatron")
            view = RankView.of(job)
            block = graph.blocks["vision_layer"]
            steps = block_steps(RankBlock.of(block, view)).forward.steps
            seconds[name, tp] = sum(step.duration_s for step in steps if step.collective is None)
            assert any(step.collective for step in steps) == ((name, tp) == ("divided", 8))
    assert seconds["whole", 8] == seconds["whole", 1]
    assert seconds["divided", 8] < seconds["divided", 1]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_tower_has_a_mesh_of_its_own(frozen):
    """Two replicas of the tower before three of the language model, each in two: tokens of all go over."""
    graph, training = stacked(), simpar.Training(seq_len=1024, global_batch=24)
    ends = graph.layers.index("connector") + 1
    stages = [
        {"layers": ends, "first_device": 0, "mesh": (2,)},
        {"layers": len(graph.layers) - ends, "first_device": 2, "mesh": (3, 2)},
    ]
    plan = simpar.Plan(micro_batch=6, pipeline={"stages": stages}, frozen_layers=ends if frozen else 0)
    result = simpar.simulate(graph, CLUSTER, plan, training)
    tower, text = result.memory.stages
    assert (tower.parts_bytes["optimizer_states"] == 0) == frozen
    assert text.parts_bytes["optimizer_states"] > 0
    alike = simpar.simulate(graph, CLUSTER, simpar.Plan(frozen_layers=ends if frozen else 0), training)
    assert result.speed.model_flops_per_step == alike.speed.model_flops_per_step


def test_what_is_assumed_is_said():
    """The images of a sequence, a tower that is left out, and a tower of an unknown family."""
    said = "1 image a sequence (images_per_sequence) of 576 patches each (patches_per_image), 576 visual tokens in all"
    assert llava().assumed == (said,)
    assert "256 visual tokens" in llava(images_per_sequence=4, patches_per_image=64).assumed[0]
    alone = llava(images_per_sequence=0)
    assert alone.num_parameters() == read(TEXT, "text").num_parameters()
    assert alone.assumed[0].startswith("text only (images_per_sequence = 0)")
    other = read({"model_type": "unknown_vl", "text_config": TEXT, "vision_config": VISION}, "other")
    assert other.assumed == ("text only: vision_config is of no family that is known with it",)
    result = simpar.simulate(llava(), CLUSTER, simpar.Plan(), TRAINING)
    assert result.setup.model["assumed"] == [said]
    patched = read({"model_type": "unknown_lm", "text_config": TEXT}, "patched")
    assert patched.assumed == ("text only: what unknown_lm has beside its language model is not known",)


@pytest.mark.parametrize("tied", [True, False])
def test_tables_of_an_unknown_whole_are_tied_as_it_says(tied):
    """DeepSeek-VL's section says that they are not, in transformers' form, and the whole that they are."""
    text = {**TEXT, "tie_word_embeddings": not tied}
    whole = {"model_type": "unknown_vl", "text_config": text, "vision_config": VISION, "tie_word_embeddings": tied}
    assert read(whole, "whole").tied_embeddings is tied


def test_fields_of_the_tower_that_are_not_understood_are_named():
    """Beside those of the language model."""
    graph = llava(vision_config={**VISION, "num_registers": 4})
    assert graph.details.unread == ("vision_config.num_registers",)


@pytest.mark.parametrize(
    ("plan", "seq_len", "words"),
    [
        ({"tp": 8}, 4096, "attention heads 4"),
        ({}, 512, "seq_len = 512: small-qwen3-vl has 576 visual tokens a sequence"),
    ],
)
def test_what_a_tower_does_not_allow_is_refused(plan, seq_len, words):
    """A tower of 4 heads that is tapped refuses tp = 8 although the language model has 8."""
    with pytest.raises(UserError, match=words):
        simpar.simulate(stacked(), CLUSTER, simpar.Plan(**plan), simpar.Training(seq_len=seq_len, global_batch=8))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vision_config": {**VISION, "num_attention_heads": 5}}, "num_attention_heads = 5 does not divide"),
        ({"text_config": None}, "model_type = 'llava': text_config is needed"),
        ({"patches_per_image": 0}, "patches_per_image = 0"),
    ],
)
def test_configs_that_make_no_sense_are_refused(changes, words):
    """With the field and its value."""
    with pytest.raises(UserError, match=words):
        llava(**changes)

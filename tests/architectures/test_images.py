"""Models of images alone: ViT and DiT, their published sizes and FLOP, and plans on them."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import find_model, load_model
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import attention_flop_per_token, matmul_flop_per_token, shape_dims
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

PUBLISHED = {  # of the released checkpoints, and of DiT's own class
    "vit-base-patch16-224": 86_567_656, "vit-large-patch16-224": 304_326_632, "vit-huge-patch14-224": 632_045_800,
    "dit-xl-2-256": 675_129_632,
}  # fmt: skip
MILLIONS = {"dit-s-2": 33, "dit-b-2": 130, "dit-l-2": 458, "dit-xl-2-256": 675}
"""Parameters in DiT's table 4."""
GMAC = {"dit-s-2": 6.06, "dit-b-2": 23.01, "dit-l-2": 80.71, "dit-xl-2-256": 118.64, "dit-xl-2-512": 524.60}
"""Products of DiT's table 4 and section 5, by the image; DiT's README rounds those of XL to 119 and 525."""


@pytest.mark.filterwarnings("ignore")
def test_parameters_of_vit_are_those_of_transformers():
    """With the class token, its position and ten labels."""
    counted_alike("vit", dict(DECLARED["vit"].tiny), "AutoModelForImageClassification")


@pytest.mark.parametrize("name", PUBLISHED)
def test_released_models_have_the_published_parameters(name):
    """To the parameter, positions that are not trained among them."""
    assert load_model(name).num_parameters() == PUBLISHED[name]
    assert find_model(f"google/{name}") == name


@pytest.mark.parametrize("name", MILLIONS)
def test_diffusion_transformers_have_the_sizes_of_the_paper(name):
    """In millions."""
    assert load_model(name).num_parameters() / 1e6 == pytest.approx(MILLIONS[name], abs=0.6)


@pytest.mark.parametrize("name", GMAC)
def test_diffusion_transformers_have_the_published_flop(name):
    """Forward of an image, a multiplication and an addition counted as one."""
    graph = load_model(name)
    seq = graph.facts["longest"]
    flop = seq * (matmul_flop_per_token(graph, seq) + attention_flop_per_token(graph, seq))
    assert flop / 2e9 == pytest.approx(GMAC[name], rel=0.002)


def test_flop_of_vit_are_those_of_the_closed_form():
    """Layers work on every row, the classifier on one of an image."""
    h, ffn, rows, labels = 32, 48, 17, 10
    graph = read({**DECLARED["vit"].tiny, "model_type": "vit"}, "tiny")
    expected = 2 * (rows * (3 * 16**2 * h + 2 * (4 * h * h + 2 * h * ffn)) + h * labels)
    assert matmul_flop_per_token(graph, rows) * rows == pytest.approx(expected)


def test_time_and_label_travel_beside_the_patches():
    """One row for each image, up to the last layer."""
    graph = read({**DECLARED["dit"].tiny, "model_type": "dit"}, "tiny")
    dims = shape_dims(graph, 16, batch=3)
    assert [each.output_elements(dims) for each in (graph.embedding, graph.blocks["layer"])] == [3 * 17 * 32] * 2


@pytest.mark.parametrize(("name", "seq"), [("vit-base-patch16-224", 196), ("dit-b-2", 256)])
def test_every_kind_of_plan_answers(name, seq):
    """Model FLOP are the same under any; weights are split by tensor parallelism, stages and shards."""
    training = simpar.Training(seq_len=seq, global_batch=64)
    plans = ({}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "zero": 1}, {"zero": 3})
    results = [simpar.simulate(name, "dgx-h100", plan, training) for plan in plans]
    assert len({result.speed.model_flops_per_step for result in results}) == 1
    assert all(result.memory.static_memory_bytes < results[0].memory.static_memory_bytes for result in results[1:])


@pytest.mark.parametrize("target", ["transformers", "deepspeed", "accelerate"])
@pytest.mark.parametrize("name", ["dit-s-2", "whisper-tiny"])
def test_scripts_of_language_models_are_not_written(name, target):
    """They would build another class and feed it tokens."""
    with pytest.raises(UserError, match=f"{target} cannot express model = {name}: the script trains causal language"):
        simpar.export(simpar.Plan(dp=8), target, model=name, seq_len=64, global_batch=8, hardware="dgx-h100")


@pytest.mark.parametrize(
    ("seq", "plan", "words"),
    [
        (512, {}, "seq_len = 512: dit-xl-2-256 has 256 positions; allowed: as many or fewer"),
        (256, {"loss_chunks": 4}, "plan.loss_chunks = 4: dit-xl-2-256 has no vocabulary; allowed: 1"),
    ],
)
def test_longer_images_and_pieces_of_a_vocabulary_are_refused(seq, plan, words):
    """With what is allowed."""
    with pytest.raises(UserError, match=words):
        simpar.simulate("dit-xl-2-256", "dgx-h100", plan, simpar.Training(seq_len=seq, global_batch=64))

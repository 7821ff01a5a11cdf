"""Images in rows of responses: a packed row has those of all of its responses."""

import pytest

import simpar
from simpar.posttraining.served import image_tokens
from simpar.posttraining.trained import with_images

MODEL = "qwen2.5-vl-3b"
LENGTHS = {"prompt": {"fixed": 800}, "response": {"fixed": 224}}
SECTION = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 1}


def stepped(model=MODEL, **lengths):
    """A small step of a model."""
    section = {**SECTION, "lengths": {**LENGTHS, **lengths}}
    plan, training = {"zero": 3, "recompute": "full"}, {"seq_len": 4096, "global_batch": 32}
    return simpar.post_train(model, "dgx-h100", plan, training, section)


def test_a_row_has_the_images_of_its_responses():
    """Four responses in a row, four images; a model of text and a row of one response stay as they are."""
    graph = simpar.Model(MODEL)
    four = with_images(graph, 4.0)
    for name in ("vision.seq", "visual.seq"):
        assert four.dims[name] == pytest.approx(4 * graph.dims[name], rel=0.03)
    assert {key: four.dims[key] for key in ("hidden", "vision.context")} == {
        key: graph.dims[key] for key in ("hidden", "vision.context")
    }
    assert with_images(graph, 1.0) is graph
    text = simpar.Model("qwen2.5-1.5b")
    assert with_images(text, 4.0) is text


def test_packing_does_not_lose_images():
    """32 responses of 1,024 tokens in 8 rows see as many patches as in 32 padded ones: only the rest of a row is less.

    Without its tower the model's update is shorter by the same time for either.
    """
    packed, padded = stepped(), stepped(padding="longest")
    assert packed.figures.setup["packed_rows"] == 8
    assert padded.figures.setup["packed_rows"] == 32
    assert packed.figures.parts_s.training == pytest.approx(padded.figures.parts_s.training, rel=0.25)
    assert any("1 image a sequence" in each for each in packed.figures.assumed)


def test_prompts_are_no_shorter_than_their_images():
    """A prompt of 100 tokens cannot hold 784 of an image: it has these, and one of text, which is said."""
    made = image_tokens(simpar.Model(MODEL))
    short = stepped(prompt={"fixed": 100})
    assert short.figures.lengths.prompt_mean == made + 1
    assert any(f"at least {made + 1:,} tokens" in each for each in short.figures.assumed)
    own = stepped(prompt={"fixed": 100}, least_prompt=2000)
    assert own.figures.lengths.prompt_mean == 2000
    with pytest.raises(simpar.UserError, match=r"lengths\.prompt: 4096 tokens: allowed: below the context"):
        stepped(least_prompt=4096)

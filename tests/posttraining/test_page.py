"""The page of a step: its charts hold what the answer says, and names stay text."""

import numpy as np
import pytest

import simpar
from simpar.posttraining.memory import RESERVED
from simpar.posttraining.page import page_data, render, series
from simpar.posttraining.simulate import post_train
from simpar.units import GIB, KIB

LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 200, "p99": 800}}


@pytest.fixture(scope="module", params=["colocated", "split"])
def result(request):
    """Two steps, in turns or on pools of their own."""
    rollout = {"nodes": 1} if request.param == "split" else {}
    section = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 2}
    section |= {"placement": request.param, "rollout": rollout}
    training = {"seq_len": 2048, "global_batch": 16}
    return post_train("qwen2.5-0.5b", simpar.Cluster("dgx-h100"), {"zero": 3}, training, section)


def test_rows_of_the_chart_add_up_to_the_answer(result):
    """Seconds by kind of the training row and of all replicas are those of the report, on policy over whole steps."""
    data, figures = series(result), result.figures
    assert data["step_ns"] / 1e9 == pytest.approx(figures.speed.step_time_s * 2)

    def seconds(rows, name):
        code = next(at for at, kind in enumerate(data["kinds"]) if kind["name"] == name)
        blocks = [row["blocks"] for row in rows]
        spans = [
            span for each in blocks for span, kind in zip(each["duration"], each["kind"], strict=True) if kind == code
        ]
        return sum(spans) / 1e9 / 2

    training, *replicas, links = data["stages"]
    assert seconds([links], "weights on links") > 0
    assert seconds([training], "updates") == pytest.approx(figures.parts_s.training)
    assert seconds([training], "passes over responses") == pytest.approx(sum(figures.parts_s.passes.values()))
    assert len(replicas) == figures.generation.replicas
    assert seconds(replicas, "responses") / len(replicas) == pytest.approx(figures.generation.generating)
    for row in data["stages"]:
        starts, durations = np.cumsum(row["blocks"]["start"]), np.array(row["blocks"]["duration"])
        assert (starts[1:] >= (starts + durations)[:-1]).all()
        assert starts[-1] + durations[-1] <= data["step_ns"]


def test_curves_of_the_chart_stay_inside_those_of_the_answer(result):
    """In steps of a thousandth: never above the highest point, and as high as the flat peak of training."""
    stages = [stage for stage in series(result)["stages"] if stage["memory"]]
    assert [stage["name"] for stage in stages] == ["training", f"replica {result.fullest_replica}"]
    generation = stages[1]["memory"]["parts"]
    whole = max(size for _, size in result.memory[RESERVED]) / KIB
    drawn = np.array(generation[1]) + np.array(generation[2])
    assert {*drawn.tolist()} <= {0, *range(int(whole) - 1, int(whole) + 3)}
    assert max(generation[2]) > 0.5 * whole  # of a short step's cache most is not in use
    for at, side in enumerate(("training", "generation")):
        curve = result.memory[side]
        drawn = stages[at]["memory"]["parts"][at]
        highest = max(size for _, size in curve) / KIB
        assert max(drawn) <= highest + 1
        assert sum(stages[at]["memory"]["time"]) <= series(result)["step_ns"]
        if side == "training":
            assert max(drawn) == pytest.approx(highest, abs=1)


def test_names_in_the_page_are_text(result):
    """A model may call itself anything."""
    evil = "<img src=x onerror=alert(1)>"
    setup = {**result.figures.setup, "model": evil}
    figures = result.figures.model_copy(update={"setup": setup})
    page = render(type(result)(figures, result.timeline, result.memory, result.fullest_replica))
    assert "<img" not in page
    assert "default-src 'none'" in page


def test_what_does_not_fit_is_said(result):
    """In the figure, and in the row of the side that does not."""
    full = result.figures.memory.training.model_copy(update={"fits": False, "capacity_bytes": GIB})
    memory = result.figures.memory.model_copy(update={"training": full})
    figures = result.figures.model_copy(update={"memory": memory})
    page = page_data(type(result)(figures, result.timeline, result.memory, result.fullest_replica))
    assert not page["fits"]
    assert next(each for each in page["figures"] if each["name"] == "memory")["value"] == "does not fit"
    assert [side["fits"] for side in page["memory"]["sides"] if side["name"] == "training"] == [False]
    assert all(0 < bar["share"] <= 1 for side in page["memory"]["sides"] for bar in side["bars"])

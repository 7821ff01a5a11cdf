"""Two results side by side: differences sum, sentences name the parts, equal results say so."""

import json

import pytest

import simpar
from simpar import cli
from simpar.report.compare import differences


def simulate(**plan):
    """A small model on two nodes."""
    training = simpar.Training(seq_len=2048, global_batch=plan.pop("global_batch", 64))
    return simpar.simulate("llama-3-8b", simpar.Cluster("dgx-h100", nodes=2), simpar.Plan(**plan), training)


@pytest.fixture(scope="module")
def pair():
    """The same job with tensor parallelism and with a pipeline."""
    return simulate(tp=4, zero=1), simulate(pp=4, tp=1, zero=1, recompute="full")


def test_differences_sum(pair):
    """Parts of the step sum to its change, parts of memory to the peak's."""
    a, b = pair
    found = differences(a, b)
    assert sum(found.time_change_s.values()) == pytest.approx(b.step_time_s - a.step_time_s, rel=1e-9)
    peaks = [max(stage.peak_bytes for stage in result.memory.stages) for result in (a, b)]
    assert sum(found.memory_change_bytes.values()) == pytest.approx(peaks[1] - peaks[0], rel=1e-6)


def test_what_was_asked_differently_is_listed(pair):
    """Plan fields that differ and no others; the sentences name the parts that changed."""
    found = differences(*pair)
    assert found.asked["plan.mesh.tp"].model_dump() == {"a": 4, "b": 1}
    assert found.asked["plan.memory.recompute"].b == "full"
    assert not any(key.startswith(("model", "cluster", "training")) for key in found.asked)
    text = " ".join(found.sentences)
    assert "less exposed tensor-parallel communication" in text
    assert "pipeline bubble" in text


def test_turned_round_it_says_the_opposite(pair):
    """B - A is minus A - B."""
    there, back = differences(*pair), differences(*reversed(pair))
    for name, change in there.time_change_s.items():
        assert back.time_change_s[name] == pytest.approx(-change)
    assert ("faster" in there.sentences[0]) != ("faster" in back.sentences[0])


def test_equal_results_are_equal(pair):
    """Nothing asked, nothing changed."""
    found = differences(pair[0], pair[0])
    assert found.asked == {}
    assert set(found.time_change_s.values()) == {0.0}
    assert "takes as long" in found.sentences[0]


def test_steps_of_different_size_are_compared_per_token():
    """Twice the batch is no slowdown."""
    found = differences(simulate(zero=1, tp=2), simulate(zero=1, tp=2, global_batch=128))
    assert found.per == "million tokens"
    assert sum(found.time_change_s.values()) < 0
    assert found.asked["training.global_batch"].b == 128


def test_on_the_command_line(pair, tmp_path, capsys):
    """A saved result and a scenario; JSON with the same content."""
    pair[0].save(tmp_path / "a.json")
    pair[1].save(tmp_path / "b.json")
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert cli.run(["compare", *files]) == 0
    out = capsys.readouterr().out
    assert "plan.mesh.tp" in out
    assert "step time" in out
    assert cli.run(["compare", *files, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["per"] == "step"
    assert cli.run(["compare", "gpt2-laptop", "gpt2-laptop"]) == 0
    assert "asked: the same" in capsys.readouterr().out
    assert cli.run(["compare", "gpt2-laptop", "gpt2-laptob"]) == 2
    assert "did you mean 'gpt2-laptop'" in capsys.readouterr().err

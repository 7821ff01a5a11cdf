"""``simpar calibrate`` as a user types it: ranks are measured, and simulate reads what they say."""

import json

import pytest

from simpar.calibrate import measure
from tests.gate import some

pytest.importorskip("torch")


def be_brief(monkeypatch):
    """Have a calibration measure on one core, whose threads never wait for a busy one, each for two milliseconds."""
    standard = measure.quick
    monkeypatch.setattr(measure, "usable_cores", lambda: 1)
    monkeypatch.setattr(measure, "quick", lambda *given: standard(*given).model_copy(update={"window_s": 0.002}))


@pytest.mark.parametrize(
    ("ranks", "brief"), some([(1, True), (1, False), (2, False)], 1, tuples=True), ids=["brief", "1", "2"]
)
def test_a_calibration_predicts_a_step(forked, tmp_path, monkeypatch, ranks, brief):
    """Ranks are measured; the profiles name torch and samples, and a plan is simulated on them."""
    if brief:
        be_brief(monkeypatch)
    done = forked("calibrate", "-o", "here.yaml", "--ranks", ranks, "--quick", "--json", "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ranks"] == ranks
    parts = {"products", "attention", "memory-bound operators", "optimizer"}
    assert parts <= set(found["quality"])
    assert ({"collectives", "steps beside each other"} <= set(found["quality"])) == (ranks > 1)
    assert ranks == 1 or found["cluster"]["host"]["compute_capacity"] >= 1
    assert f"samples on {ranks} rank(s)" in found["cluster"]["provenance"]
    assert "too slow for an idle machine" in found["cluster"]["provenance"]
    assert (len(found["quiet"]["repeats_s"]), found["quiet"]["width"] >= 0) == (3, True)
    assert "torch" in found["cluster"]["sources"][0]
    flags = ["--model", "tiny-llama", "--hardware", "here.yaml", "--stack", "here.stack.yaml", "--json", "-"]
    shape = ["--seq-len", "64", "--global-batch", "8", "--dp", str(ranks), "--precision", "fp32"]
    result = forked("simulate", *flags, *shape)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["step_time_s"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.json", "here.stack.yaml", "here.yaml"]

"""``simpar calibrate`` as a user types it where it cannot measure: one clear line."""

import pytest

from simpar import cli
from simpar.calibrate.measure import make_request
from simpar.runtime.job import Machine

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "here.txt"], "--output here.txt: allowed: a name that ends in .yaml"),
        (["-o", "here.yaml", "--device", "tpu"], "--device tpu: allowed: cpu, cuda"),
        (["-o", "here.yaml", "--device", "cuda", "--ranks", "99"], "99 ranks, "),
        (["-o", "here.yaml", "--ranks", "0"], "ranks"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    """Bad input ends with exit code 2 and writes nothing."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["calibrate", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_quick", [False, True])
def test_ranks_wait_for_one_that_measures_alone(is_quick):
    """On a machine that others load that takes longer than a rank of a run is waited for, which is then called dead."""
    request = make_request(2, "cpu", is_quick=is_quick)
    assert request.machine.timeout_s >= 10 * Machine().timeout_s

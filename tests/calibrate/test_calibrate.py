"""``simpar calibrate`` as a user types it where it cannot measure: one clear line."""

import pytest

from simpar import cli

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

"""Traces that real runs leave, in several layouts on gloo: explained without a rest, axes as the layout has them."""

import subprocess
import sys

import pytest

from simpar.diagnosis.answer import explain

LAYOUTS = {
    "dp": (["--dp", "4"], {"dp"}), "pp": (["--pp", "2", "--dp", "2", "--zero", "0"], {"pp", "dp"}),
    "tp": (["--tp", "2", "--dp", "2", "--zero", "0"], {"tp", "dp"}), "fsdp": (["--dp", "4", "--zero", "3"], {"dp"}),
    "tp alone": (["--tp", "4", "--dp", "1", "--zero", "0"], {"tp"}),
    "pp alone": (["--pp", "4", "--dp", "1", "--zero", "0"], {"pp"}),
    "cp alone": (["--cp", "4", "--dp", "1"], {"cp", "dp"}),
}  # fmt: skip
TINY = [
    "gpt2-laptop", "--model", "tiny-llama", "--seq-len", "64", "--global-batch", "8", "--micro-batch", "2",
    "--steps", "4", "--trace-steps", "2", "--threads", "1", "--nproc", "4", "--set", "cluster=null", "-o", "ran",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_traces_of_simpar_run(tmp_path, name):
    """Parts sum to every rank's step, which is the reported one; collectives are matched between the ranks."""
    pytest.importorskip("torch")
    from tests.runtime.conftest import LIMIT_S, environment

    flags, axes = LAYOUTS[name]
    defaults = [] if "--pp" in flags else ["--pp", "1"]
    command = [
        sys.executable,
        "-m",
        "simpar",
        "run",
        *TINY,
        *defaults,
        *flags,
        *([] if "--tp" in flags else ["--tp", "1"]),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = explain(*sorted((tmp_path / "ran").glob("trace-rank*.json"))).measured
    assert [each.rank for each in found.ranks] == [0, 1, 2, 3]
    for each in found.ranks:
        assert sum(each.causes_s.values()) == pytest.approx(each.step_time_s)
        assert set(each.axes) == axes
        assert each.classes_s["gemm"] > 0
        assert each.classes_s["optimizer"] > 0
        assert sum(each.unknown_s.values()) < 0.02 * each.step_time_s
    unmatched = any("could not be matched" in line for line in found.remarks)
    # of a ring of four nothing says who sends to whom, of two groups of a pipeline not which of them sums
    assert unmatched == (name in ("cp alone", "pp alone"))

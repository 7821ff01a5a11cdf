"""Memory of devices as nvidia-smi and DCGM sample it, alone and beside a log."""

import pytest

from simpar.diagnosis.answer import explain
from simpar.errors import UserError
from simpar.units import MIB
from tests.diagnosis.test_logs import MEGATRON, log

CSV = (
    "timestamp, index, memory.used [MiB], utilization.gpu [%]\n2026/01/01 00:00:01.000, 0, 1000 MiB, 5 %\n"
    "2026/01/01 00:00:01.001, 1, {most} MiB, 99 %\n2026/01/01 00:00:02.000, 0, 900 MiB, 5 %\n"
)
TABLE = (
    "| N/A   34C    P0            98W / 700W  |    1000MiB / 81559MiB  |      0%      Default |\n"
    "| N/A   34C    P0            98W / 700W  |   {most}MiB / 81559MiB  |    100%      Default |\n"
)
DMON = "# gpu     fb   bar1 \n# Idx     MB     MB \n    0   1000      3 \n    1  {most}      3 \n"
DCGMI = "#Entity   FBUSD           POWER\nID                  W\nGPU 0     1000   98.1\nGPU 1     {most}   98.1\n"
EXPORTER = (
    "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n"
    'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",device="nvidia0"}} 1000\n'
    'DCGM_FI_DEV_FB_USED{{gpu="1",UUID="GPU-2",device="nvidia1"}} {most}\n'
)


@pytest.mark.parametrize(
    ("text", "name"),
    [(CSV, "nvidia-smi"), (TABLE, "nvidia-smi"), (DMON, "nvidia-smi"), (DCGMI, "DCGM"), (EXPORTER, "DCGM")],
)
def test_the_most_of_any_device(tmp_path, text, name):
    """Alone it is the only figure; beside a log it is one more."""
    path = tmp_path / "memory.txt"
    path.write_text(text.format(most=76543))
    found = explain(path).log
    assert (found.framework, found.figures) == (name, {"used_bytes": 76543 * MIB})
    beside = explain(path, log(tmp_path, MEGATRON)).log
    assert (beside.framework, beside.figures["used_bytes"]) == ("Megatron", 76543 * MIB)
    assert beside.figures["step_time_s"] == 2.0


def test_a_damaged_sample(tmp_path):
    """Named with its line."""
    path = tmp_path / "memory.csv"
    path.write_text(CSV.format(most=1) + "2026/01/01, 0, many MiB, 1 %\n")
    with pytest.raises(UserError, match=r"memory\.csv:5: not a sample of nvidia-smi"):
        explain(path)

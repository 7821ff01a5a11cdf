"""Memory of devices as nvidia-smi and DCGM sample it, alone and beside a log."""

import zlib

import pytest

from simpar.diagnosis.answer import explain
from simpar.diagnosis.logs import read_log
from simpar.diagnosis.memory_samples import BATCH
from simpar.errors import UserError
from simpar.units import GIB, MIB
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
DMON_TIMED = (
    "#Date       Time        gpu   pwr     fb   bar1 \n#YYYYMMDD   HH:MM:SS    Idx     W     MB     MB \n"
    " 20260101   00:00:01      0   600   1000      3 \n 20260101   00:00:01      1   600  {most}      3 \n"
)
DMON_CSV = "#gpu, fb, bar1\n#Idx, MB, MB\n0, 1000, 3\n1, {most}, 3\n"
APPS = "pid, used_gpu_memory [MiB]\n1234, 1000 MiB\n1235, {most} MiB\n"
QUERY = (
    "GPU 00000000:0A:00.0\n    FB Memory Usage\n        Total                 : 81559 MiB\n"
    "        Used                  : {most} MiB\n    BAR1 Memory Usage\n        Used                  : 131000 MiB\n"
)
GPUSTAT = (
    "[0] NVIDIA H100 80GB HBM3 | 38°C,  99 % |  1000 / 81559 MB | user(900M)\n"
    "[1] NVIDIA H100 80GB HBM3 | 38°C,  99 % | {most} / 81559 MB | user(900M)\n"
)
DCGMI = "#Entity   FBUSD           POWER\nID                  W\nGPU 0     1000   98.1\nGPU 1     {most}   98.1\n"
EXPORTER = (
    "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n"
    'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",device="nvidia0"}} 1000\n'
    'DCGM_FI_DEV_FB_USED{{gpu="1",UUID="GPU-2",device="nvidia1"}} {most}\n'
)


XML = (
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
    "\t<fb_memory_usage>\n\t\t<total>81559 MiB</total>\n\t\t<used>{most} MiB</used>\n\t</fb_memory_usage>\n"
    "\t<bar1_memory_usage>\n\t\t<used>131000 MiB</used>\n\t</bar1_memory_usage>\n"
)
AMD = "GPU: 0\n    MEM_USAGE:\n        TOTAL_VRAM: 196592 MB\n        USED_VRAM: {most} MB\n        FREE_VRAM: 1 MB\n"
AMD_CSV = "gpu,total_vram,used_vram,free_vram\n0,196592,1000,195592\n1,196592,{most},1\n"
AMD_JSON = (
    '[{{"gpu": 0, "mem_usage": {{"total_vram": {{"value": 196592, "unit": "MB"}}, '
    '"used_vram": {{"value": {most}, "unit": "MB"}}}}}}]'
)
AMD_LONG = AMD_JSON.replace("{{", "{{\n").replace("}}", "\n}}").replace(", ", ",\n  ")
AMD_MONITOR = (
    "GPU  XCP  POWER   GPU_T  GFX%  VRAM_USED   VRAM_FREE  VRAM_TOTAL    VRAM%\n"
    "  0    0  750 W   69 °C  100 %    1000 MB   195592 MB   196592 MB   0.01 %\n"
    "  1    0  750 W   69 °C  100 %   {most} MB        1 MB   196592 MB  99.99 %\n"
    "  2    1    N/A     N/A     N/A      N/A\n"
)
AMD_MONITOR_CSV = "gpu,gfx_clk,gfx,vram_used,vram_free,vram_total,vram_percent\n0,132,10,{most},1,196592,0.0\n"
AMD_MONITOR_JSON = '[{{"gpu": 0, "vram_used": {{"value": {most}, "unit": "MB"}}, "vram_total": {{"value": 196592}}}}]'
GPUSTAT_JSON = '{{"gpus": [{{"index": 0, "memory.used": 1000}}, {{"index": 1, "memory.used": {most}}}]}}'


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (XML, "nvidia-smi"),
        (AMD, "amd-smi"),
        (AMD_CSV, "amd-smi"),
        (AMD_JSON, "amd-smi"),
        (AMD_LONG, "amd-smi"),
        (AMD_MONITOR, "amd-smi"),
        (AMD_MONITOR_CSV, "amd-smi"),
        (AMD_MONITOR_JSON, "amd-smi"),
        (AMD_MONITOR_JSON.replace("{{", "{{\n").replace(", ", ",\n  "), "amd-smi"),
        (GPUSTAT_JSON, "gpustat"),
        (CSV, "nvidia-smi"),
        (TABLE, "nvidia-smi"),
        (DMON, "nvidia-smi"),
        (DMON.replace("# ", "#"), "nvidia-smi"),
        (DMON_TIMED, "nvidia-smi"),
        (DMON_CSV, "nvidia-smi"),
        (APPS, "nvidia-smi"),
        (QUERY, "nvidia-smi"),
        (GPUSTAT, "gpustat"),
        (DCGMI, "DCGM"),
        (EXPORTER, "DCGM"),
    ],
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


@pytest.mark.parametrize(
    "text",
    [
        "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,206141652992,1048576\ncard1,206141652992,{n}\n",
        '{{"card0": {{"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "{n}"}}}}',
        '{{\n  "card0": {{\n    "VRAM Total Used Memory (B)": "{n}"\n  }}\n}}\n',
        "GPU[0]\t\t: VRAM Total Memory (B): 206141652992\nGPU[0]\t\t: VRAM Total Used Memory (B): {n}\n",
    ],
)
def test_memory_by_rocm(tmp_path, text):
    """In bytes."""
    path = tmp_path / "memory.txt"
    path.write_text(text.format(n=76543 * MIB))
    found = explain(path).log
    assert (found.framework, found.figures) == ("rocm-smi", {"used_bytes": 76543 * MIB})


def test_whole_gigabytes_of_amd_smi(tmp_path):
    """Its monitor rounds to a tenth of 2**30 bytes."""
    path = tmp_path / "memory.txt"
    path.write_text(
        " TIMESTAMP  GPU  POWER   GPU_T   GFX%   MEM%   ENC%   DEC%      VRAM_USAGE\n"
        "1753969973    0  750 W   69 °C  100 %    1 %    N/A    0 %   92.5/192.0 GB\n"
        "1753969973    1    N/A     N/A    N/A    N/A    N/A    N/A    0.5/ 48.0 GB\n"
    )
    assert explain(path).log.figures == {"used_bytes": 92.5 * GIB}


@pytest.mark.parametrize("text", [QUERY, XML, AMD_LONG])
def test_a_device_that_does_not_tell_its_memory(tmp_path, text):
    """GB10 shares its host's: no other number of the section is taken for it."""
    path = tmp_path / "memory.txt"
    silent = text.replace("{most} MiB", "N/A").replace("{most}", '"N/A"').replace("1000 MiB", "N/A")
    path.write_text(silent.replace("{{", "{").replace("}}", "}"))
    with pytest.raises(UserError):
        explain(path)
    path.write_text(f"{silent}\n{text}".replace("{most}", "76543").replace("{{", "{").replace("}}", "}"))
    assert explain(path).log.figures == {"used_bytes": 76543 * MIB}


def test_samples_without_titles(tmp_path):
    """Which column is the memory in use is not guessed."""
    path = tmp_path / "memory.csv"
    path.write_text("2026/01/01 00:00:01.000, 0, 1000 MiB, 81559 MiB\n")
    with pytest.raises(UserError, match=r"memory\.csv:1: samples of nvidia-smi without titles"):
        explain(path)


def test_a_damaged_sample(tmp_path):
    """Named with its line."""
    path = tmp_path / "memory.csv"
    path.write_text(CSV.format(most=1) + "2026/01/01, 0, many MiB, 1 %\n")
    with pytest.raises(UserError, match=r"memory\.csv:5: not a sample of nvidia-smi"):
        explain(path)


def test_a_row_that_was_cut_is_left_out(tmp_path):
    """The monitor was killed while it wrote: what is before counts, and a note says so."""
    rows = "timestamp, index, memory.used [MiB]\n2026/01/01 00:00:01, 0, 40960 MiB\n2026/01/01 00:00:02, 0"
    path = tmp_path / "memory.csv"
    path.write_text(rows)
    found = read_log(path)
    assert found.figures["used_bytes"] == 40960 * MIB
    assert found.notes[0].startswith("The file ends in the middle of a line")
    packed = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    path.write_bytes(packed.compress(f"{rows}, 40960 MiB\n".encode()) + packed.flush(zlib.Z_SYNC_FLUSH))
    (note,) = read_log(path).notes
    assert note.startswith("The file ends in the middle of its last compressed block")
    path.write_text(f"{rows}\n")
    with pytest.raises(UserError, match=r"memory\.csv:3: not a sample of nvidia-smi"):
        read_log(path)


def test_many_rows_are_read_at_once(tmp_path):
    """As one by one: titles of another kind among them, a device that says nothing, a damaged row far behind."""
    rows = [f"2026/01/01 00:00:01.000, {at % 8}, {1000 + at % 7} MiB, 5 %\n" for at in range(3 * BATCH)]
    rows[BATCH + 5] = "2026/01/01 00:00:01.000, 0, [N/A], 5 %\n"
    rows[2 * BATCH + 5] = "2026/01/01 00:00:01.000, 0, 77000 MiB, 5 %\n"
    path = tmp_path / "memory.csv"
    path.write_text(CSV.splitlines(keepends=True)[0] + "".join(rows))
    found = read_log(path)
    assert found.figures == {"used_bytes": 77000 * MIB}
    count = len(rows) - 1
    assert (found.steps, found.count) == ((round(0.1 * count) + 1, count), count - round(0.1 * count))
    rows[2 * BATCH + 9] = "2026/01/01 00:00:01.000, 0, many MiB, 5 %\n"
    path.write_text(CSV.splitlines(keepends=True)[0] + "".join(rows))
    with pytest.raises(UserError, match=rf"memory\.csv:{2 * BATCH + 11}: not a sample of nvidia-smi"):
        read_log(path)


@pytest.mark.parametrize("most", ["9" * 30, "9" * 400, "1e999"])
@pytest.mark.parametrize("text", [CSV, TABLE, DMON, EXPORTER, AMD_JSON])
def test_more_memory_than_a_device_has(tmp_path, text, most):
    """In one line; it was written as an infinite number, which is no JSON."""
    if most == "1e999" and text is not EXPORTER:
        most = "9" * 50  # only Prometheus writes exponents
    path = tmp_path / "memory.txt"
    path.write_text(text.format(most=most))
    with pytest.raises(UserError, match=r"memory\.txt: a sample of \S+ bytes: no device has so much memory"):
        explain(path)

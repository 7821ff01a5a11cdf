"""Samples of the memory of devices, as monitors print them: nvidia-smi, gpustat, DCGM, rocm-smi and amd-smi.

Formats: ``nvidia-smi --query-gpu=...,memory.used --format=csv -l`` and ``--query-compute-apps=...,used_memory``,
``nvidia-smi`` (its table), ``nvidia-smi -q``, ``nvidia-smi dmon -s m`` (with ``-o DT`` and ``--format csv``) and
``pmon -s m``, gpustat, ``dcgmi dmon -e 252`` (docs.nvidia.com/datacenter/dcgm, DCGM_FI_DEV_FB_USED), dcgm-exporter's
text, ``nvidia-smi -q -x``, and ``amd-smi metric --mem-usage`` (its text, with ``--csv`` and ``--json``; ROCm/amdsmi
divides by 2**20 and writes MB), all in MiB, and ``rocm-smi --showmeminfo vram`` (with ``--csv`` and ``--json``), in
bytes.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from simpar.diagnosis.log_run import CUT, USED, LogRun, make_run
from simpar.errors import UserError
from simpar.units import MIB

SMI, DCGM, ROCM, GPUSTAT, AMD = MONITORS = "nvidia-smi", "DCGM", "rocm-smi", "gpustat", "amd-smi"
_SECTIONS = {
    "FB Memory Usage": (SMI, re.compile(r"\s+Used\s+: (\d+) MiB")),
    "<fb_memory_usage>": (SMI, re.compile(r"\s*<used>(\d+) MiB</used>")),
    '"used_vram": {': (AMD, re.compile(r'\s*"value": (\d+)')),
}
"""Lines below which the memory of a device stands, and its line."""
HINTS = ("MiB", "memory.used", "used_gpu_memory", "FB_USED", "VRAM", "#", " MB |", "used_vram", *_SECTIONS)
USED_TITLES = {
    "memory.used": SMI, "used_gpu_memory": SMI, "VRAM Total Used Memory (B)": ROCM, "used_vram": AMD,
}  # fmt: skip
RECORDS = re.compile(r'"(VRAM Total Used Memory \(B\)|used_vram|memory\.used)":')
"""What is in the JSON of rocm-smi, amd-smi and gpustat."""
_OF_LINE = (
    (SMI, re.compile(r"\|\s*(\d+)MiB\s*/\s*\d+MiB\s*\|"), MIB),
    (DCGM, re.compile(r"DCGM_FI_DEV_FB_USED\{[^}]*\}\s+(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)"), MIB),
    (GPUSTAT, re.compile(r"^\[\d+\] .*\|\s*(\d+) / *\d+ MB \|"), MIB),
    (ROCM, re.compile(r"VRAM Total Used Memory \(B\)\"?: \"?(\d+)"), 1),
    (AMD, re.compile(r"\bUSED_VRAM: (\d+) MB"), MIB),
    (AMD, re.compile(r'"used_vram": \{"value": (\d+)'), MIB),
    (GPUSTAT, re.compile(r'"memory\.used": (\d+)'), MIB),
)
"""Lines that say the memory of devices, and the unit."""
_UNTITLED = re.compile(r"[^,]+(?:, [^,]+)*, \d+ MiB(?:, [^,]+)*")


class _Table:
    """Columns of a monitor, by their titles: where memory stands, and what divides the cells."""

    def __init__(self, name: str, column: int, separator: str | None) -> None:
        self.name, self.column, self.separator = name, column, separator
        self.unit = 1 if name == ROCM else MIB

    def used_bytes(self, line: str) -> float | None:
        """The memory of a row; None if it says none."""
        cells = line.split(self.separator)
        text = cells[self.column] if len(cells) > self.column else ""
        value = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?: MiB)?\s*", text)
        return float(value[1]) * self.unit if value else None


def _table_of(line: str) -> _Table | None:
    """The table that a line of titles begins."""
    titles = [each.strip() for each in line.lstrip("# ").split(",")]
    if at := [at for at, title in enumerate(titles) if title.startswith(tuple(USED_TITLES))]:
        return _Table(next(of for each, of in USED_TITLES.items() if titles[at[0]].startswith(each)), at[0], ",")
    if not line.startswith("#"):
        return None
    if "fb" in titles:
        return _Table(SMI, titles.index("fb"), ",")
    words = line.lstrip("# ").split()
    if "FBUSD" in words:  # below the one word "Entity" stand two, "GPU 0"
        return _Table(DCGM, words.index("FBUSD") + 1, None)
    return _Table(SMI, words.index("fb"), None) if "fb" in words else None


def read_samples(path: str | Path, lines: Iterable[str], most: int) -> LogRun | None:
    """The most memory of any device in a file of samples; None if its first ``most`` lines have none.

    Raises UserError for a damaged line, and for samples without titles.
    """
    samples: list[float] = []
    table: _Table | None = None
    name, section, untitled, notes = "", "", 0, tuple[str, ...]()
    for number, line in enumerate(lines, start=1):
        if number > most and not samples:
            return None
        if table is None and not section and not any(hint in line for hint in HINTS):
            continue
        of_line = [(of, float(each) * unit) for of, pattern, unit in _OF_LINE for each in pattern.findall(line)]
        if of_line:
            name = of_line[0][0]
            samples.extend(used for _, used in of_line)
            continue
        if section or line.strip() in _SECTIONS:
            section = section or line.strip()
            name, pattern = _SECTIONS[section]
            if value := pattern.match(line):
                section = ""
                samples.append(float(value[1]) * MIB)
            continue
        if begun := _table_of(line):
            table, name = begun, begun.name
        elif table is None:
            untitled = untitled or number * bool(_UNTITLED.fullmatch(line.strip()))
        elif line.strip() and not line.startswith(("#", "ID")):
            used = table.used_bytes(line)
            if used is not None:
                samples.append(used)
            elif samples and not line.endswith("\n"):
                notes = (CUT.format("a line"),)
            elif table.separator and "N/A" not in line:
                raise UserError(f"{path}:{number}: not a sample of {name}: memory in use wants a number of MiB")
    if not samples and untitled:
        raise UserError(
            f"{path}:{untitled}: samples of nvidia-smi without titles: which number is memory.used is not said; "
            "without noheader the first line says it"
        )
    steps = {at: {USED: each} for at, each in enumerate(samples, start=1)}
    return replace(make_run(str(path), name, steps, {}, {}), notes=notes) if steps else None

"""Samples of the memory of devices, as monitors print them: nvidia-smi, gpustat, DCGM, rocm-smi and amd-smi.

Formats: ``nvidia-smi --query-gpu=...,memory.used --format=csv -l`` and ``--query-compute-apps=...,used_memory``,
``nvidia-smi`` (its table), ``nvidia-smi -q``, ``nvidia-smi dmon -s m`` (with ``-o DT`` and ``--format csv``) and
``pmon -s m``, gpustat, ``dcgmi dmon -e 252`` (docs.nvidia.com/datacenter/dcgm, DCGM_FI_DEV_FB_USED), dcgm-exporter's
text, ``nvidia-smi -q -x``, and ``amd-smi metric --mem-usage`` and ``amd-smi monitor`` (their text, with ``--csv`` and
``--json``; ROCm/amdsmi divides by 2**20 and writes MB, or by 2**30 and writes GB), all in MiB, and ``rocm-smi
--showmeminfo vram`` (with ``--csv`` and ``--json``), in bytes.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from simpar.diagnosis.log_run import CUT, USED, WARM_UP, LogRun
from simpar.errors import UserError
from simpar.units import GIB, MIB, TIB

SMI, DCGM, ROCM, GPUSTAT, AMD = MONITORS = "nvidia-smi", "DCGM", "rocm-smi", "gpustat", "amd-smi"
_SECTIONS = {
    "FB Memory Usage": (SMI, re.compile(r"\s+Used\s+: (?:(\d+) MiB|N/A)")),
    "<fb_memory_usage>": (SMI, re.compile(r"\s*<used>(?:(\d+) MiB|N/A)</used>")),
    '"used_vram": {': (AMD, re.compile(r'\s*"value": (?:(\d+)|"N/A")')),
    '"vram_used": {': (AMD, re.compile(r'\s*"value": (?:(\d+)|"N/A")')),
}
"""Lines below which the memory of a device stands, and its line; without a number where the device does not tell."""
HINTS = (
    "MiB", "memory.used", "used_gpu_memory", "FB_USED", "VRAM", "#", " MB |", "used_vram", "vram_used", *_SECTIONS,
)  # fmt: skip
USED_TITLES = {
    "memory.used": SMI, "used_gpu_memory": SMI, "VRAM Total Used Memory (B)": ROCM, "used_vram": AMD, "vram_used": AMD,
}  # fmt: skip
RECORDS = re.compile(r'"(VRAM Total Used Memory \(B\)|used_vram|vram_used|memory\.used)":')
"""What is in the JSON of rocm-smi, amd-smi and gpustat."""
_OF_LINE = (
    (SMI, re.compile(r"\|\s*(\d+)MiB\s*/\s*\d+MiB\s*\|"), MIB),
    (DCGM, re.compile(r"DCGM_FI_DEV_FB_USED\{[^}]*\}\s+(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)"), MIB),
    (GPUSTAT, re.compile(r"^\[\d+\] .*\|\s*(\d+) / *\d+ MB \|"), MIB),
    (ROCM, re.compile(r"VRAM Total Used Memory \(B\)\"?: \"?(\d+)"), 1),
    (AMD, re.compile(r"\bUSED_VRAM: (\d+) MB"), MIB),
    (AMD, re.compile(r'"(?:used_vram|vram_used)": \{"value": (\d+)'), MIB),
    (GPUSTAT, re.compile(r'"memory\.used": (\d+)'), MIB),
)
"""Lines that say the memory of devices, and the unit."""
_TITLES, _OTHERS = ("#", "ID"), ("|", "[", "{", "VRAM", "DCGM", "memory.used")
"""How lines of titles begin, and what only other lines than rows of a table have."""
MOST_USED = 100 * TIB
"""More bytes than any device has."""
SKIPPED = 200
BATCH = 20_000
"""Rows that are passed over before the first sample, and that are read at once, where nothing else is among them."""
_UNTITLED = re.compile(r"[^,]+(?:, [^,]+)*, \d+ MiB(?:, [^,]+)*")


class _Table:
    """Columns of a monitor, by their titles: where memory stands, and what divides the cells."""

    def __init__(self, name: str, column: int, separator: str | None) -> None:
        self.name, self.column, self.separator = name, column, separator
        self.unit = 1 if name == ROCM else MIB
        cell, before = (r"[^,\n]*+,", "") if separator else (r"\S++[ \t]++", r"[ \t]*+")
        number = r"[ \t]*(\d+(?:\.\d+)?)(?: MiB)?[ \t]*"
        self._rows = re.compile(rf"(?m)^{before}(?:{cell}){{{column}}}{number}{'(?=,|$)' if separator else '(?= |$)'}")

    def used_bytes(self, line: str) -> float | None:
        """The memory of a row; None if it says none."""
        cells = line.split(self.separator)
        text = cells[self.column] if len(cells) > self.column else ""
        value = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?: MiB)?\s*", text)
        return float(value[1]) * self.unit if value else None

    def add_rows(self, rows: Iterator[str], samples: "_Most") -> tuple[int, Iterator[str]]:
        """Add the samples of rows as long as all of many say one; returns how many rows, and those that are left."""
        count = 0
        while batch := list(islice(rows, BATCH)):
            of_devices = [line for line in batch if not line.startswith(_TITLES)]
            text = "".join(of_devices)
            is_other = any(each in text for each in _OTHERS) or not text.endswith("\n")
            values = [] if is_other else self._rows.findall(text)
            if not values or len(values) != len(of_devices):
                return count, chain(batch, rows)
            samples.add(*(float(each) * self.unit for each in set(values)), count=len(values))
            count += len(batch)
        return count, rows


class _Monitor(_Table):
    """The table of ``amd-smi monitor``, whose cells have units: memory in use stands before all memory."""

    _MEMORY = re.compile(r"\b(\d+) MB +(?:\d+ MB +)?\d+ MB\b|\b(\d+\.\d+)/ *\d+\.\d+ GB\b")

    def __init__(self) -> None:
        super().__init__(AMD, 0, None)

    def used_bytes(self, line: str) -> float | None:
        """The memory of a row; None if it says none."""
        value = self._MEMORY.search(line)
        return value and (float(value[1]) * MIB if value[1] else float(value[2]) * GIB)

    def add_rows(self, rows: Iterator[str], samples: "_Most") -> tuple[int, Iterator[str]]:  # noqa: ARG002
        """Adds no rows at once."""
        return 0, rows


def _table_of(line: str) -> _Table | None:
    """The table that a line of titles begins."""
    titles = [each.strip() for each in line.lstrip("# ").split(",")]
    if at := [at for at, title in enumerate(titles) if title.startswith(tuple(USED_TITLES))]:
        return _Table(next(of for each, of in USED_TITLES.items() if titles[at[0]].startswith(each)), at[0], ",")
    if not line.startswith("#"):
        return _Monitor() if re.match(r"\s*(?:TIMESTAMP\s+)?GPU\s.*\bVRAM_US(?:ED|AGE)\b", line) else None
    if "fb" in titles:
        return _Table(SMI, titles.index("fb"), ",")
    words = line.lstrip("# ").split()
    if "FBUSD" in words:  # below the one word "Entity" stand two, "GPU 0"
        return _Table(DCGM, words.index("FBUSD") + 1, None)
    return _Table(SMI, words.index("fb"), None) if "fb" in words else None


def begins_samples(line: str) -> bool:
    """Whether a line is one of titles, below which a table has the memory of devices."""
    return _table_of(line) is not None


class _Most:
    """How many samples there are, and the most of them, in bytes."""

    def __init__(self, path: str) -> None:
        self.path, self.count, self.most_bytes = path, 0, 0.0

    def add(self, *used_bytes: float, count: int | None = None) -> None:
        """Further samples; ``count``, where only those that differ are handed in. Raises UserError: too much."""
        self.count += len(used_bytes) if count is None else count
        self.most_bytes = max((self.most_bytes, *used_bytes))
        if self.most_bytes > MOST_USED:
            raise UserError(f"{self.path}: a sample of {self.most_bytes:.3g} bytes: no device has so much memory")

    def run(self, path: str, name: str, notes: tuple[str, ...]) -> LogRun:
        """The run of the samples, as of a log with one at every step."""
        warm = max(1, round(WARM_UP * self.count))
        before = warm if warm < self.count else 0
        figures = {USED: self.most_bytes} if self.most_bytes else {}
        return LogRun(path, name, (before + 1, self.count), self.count - before, 0.0, figures, notes=notes)


def _skip(rows: Iterator[str], most: int) -> tuple[int, Iterator[str]]:
    """Passes over the rows before the first batch that has a sample, at most so many: their number, and those left."""
    number = 0
    while batch := list(islice(rows, SKIPPED)):
        text = "".join(batch)
        if number > most or any(hint in text for hint in HINTS):
            return number, chain(batch, rows)
        number += len(batch)
    return number, rows


def read_samples(path: str | Path, lines: Iterable[str], most: int) -> LogRun | None:
    """The most memory of any device in a file of samples; None if its first ``most`` lines have none.

    Raises UserError for a damaged line, and for samples without titles.
    """
    samples, table, slow = _Most(str(path)), None, 0
    name, section, untitled, notes = "", "", 0, tuple[str, ...]()
    number, rows = _skip(iter(lines), most)
    while (line := next(rows, None)) is not None:
        number += 1
        if number > most and not samples.count:
            return None
        if table is None and not section and not any(hint in line for hint in HINTS):
            continue
        of_line = [(of, float(each) * unit) for of, pattern, unit in _OF_LINE for each in pattern.findall(line)]
        if of_line:
            name = of_line[0][0]
            samples.add(*(used for _, used in of_line))
            continue
        if section or line.strip() in _SECTIONS:
            section = section or line.strip()
            name, pattern = _SECTIONS[section]
            if value := pattern.match(line):
                section = ""
                samples.add(*([float(value[1]) * MIB] if value[1] else []))
            continue
        if begun := _table_of(line):
            table, name = begun, begun.name
        elif table is None:
            untitled = untitled or number * bool(_UNTITLED.fullmatch(line.strip()))
        elif line.strip() and not line.startswith(_TITLES):
            used = table.used_bytes(line)
            if used is not None:
                samples.add(used)
            elif samples.count and not line.endswith("\n"):
                notes = (CUT.format("a line"),)
            elif table.separator and "N/A" not in line:
                raise UserError(f"{path}:{number}: not a sample of {name}: memory in use wants a number of MiB")
            if slow:  # what is left of a batch with other lines
                slow -= 1
                continue
            count, rows = table.add_rows(rows, samples)
            number, slow = number + count, BATCH - 1
    if not samples.count and untitled:
        raise UserError(
            f"{path}:{untitled}: samples of nvidia-smi without titles: which number is memory.used is not said; "
            "without noheader the first line says it"
        )
    return samples.run(str(path), name, notes) if samples.count else None

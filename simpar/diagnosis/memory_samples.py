"""Samples of the memory of devices, as monitors print them: nvidia-smi and DCGM.

Formats: ``nvidia-smi --query-gpu=...,memory.used --format=csv -l``, ``nvidia-smi`` (its table), ``nvidia-smi dmon -s
m``, ``dcgmi dmon -e 252`` (docs.nvidia.com/datacenter/dcgm, DCGM_FI_DEV_FB_USED) and dcgm-exporter's text. All are MiB.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from simpar.diagnosis.log_run import USED, LogRun, make_run
from simpar.errors import UserError
from simpar.units import MIB

SMI, DCGM = "nvidia-smi", "DCGM"
HINTS = ("MiB", "memory.used", "FB_USED", "#")
_TABLE = re.compile(r"\|\s*(\d+)MiB\s*/\s*\d+MiB\s*\|")
_EXPORTED = re.compile(r"DCGM_FI_DEV_FB_USED\{[^}]*\}\s+([\d.eE+]+)")


def read_samples(path: str | Path, lines: Iterable[str], most: int) -> LogRun | None:
    """The most memory of any device in a file of samples; None if its first ``most`` lines have none.

    Raises UserError for a damaged line.
    """
    samples: list[float] = []
    name, column, separator = "", -1, None
    for number, line in enumerate(lines, start=1):
        if number > most and not samples:
            return None
        if column < 0 and not any(hint in line for hint in HINTS):
            continue
        if match := _TABLE.search(line) or _EXPORTED.match(line):
            name = SMI if match.re is _TABLE else DCGM
            samples.append(float(match[1]))
            continue
        titles = [each.strip() for each in line.split(",")]
        at = next((at for at, title in enumerate(titles) if title.startswith("memory.used")), None)
        if at is not None:
            name, column, separator = SMI, at, ","
            continue
        words = line.split()
        if line.startswith("#") and {"fb", "FBUSD"} & {*words}:
            name = DCGM if "FBUSD" in words else SMI
            # "#Entity FBUSD" stands above "GPU 0 1234", and "# gpu fb" above "0 1234"
            column, separator = words.index("FBUSD" if name == DCGM else "fb") + (1 if name == DCGM else -1), None
            continue
        if column < 0 or not words or line.startswith("#") or words[0] == "ID":
            continue
        cells = line.split(separator)
        value = re.fullmatch(r"\s*(\d+(?:\.\d+)?)(?: MiB)?\s*", cells[column]) if len(cells) > column else None
        if value:
            samples.append(float(value[1]))
        elif separator and "[N/A]" not in line:
            raise UserError(f"{path}:{number}: not a sample of nvidia-smi: memory.used wants MiB")
    if not samples:
        return None
    return make_run(str(path), name, {at: {USED: each * MIB} for at, each in enumerate(samples, start=1)}, {}, {})

"""Programs by which scripts count the devices of the node that they run on: known where the hardware is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from simpar.dataclass import dataclass
from simpar.frameworks.shell_words import UNKNOWN

_QUIET = r"(?:\s*2>\s*/dev/null)?"
_LINES = r"\s*\|\s*wc\s+(?:-l|--lines)\s*"
OF_DRIVER = (
    rf"\s*(?:nvidia-smi\s+(?:-L|--list-gpus){_QUIET}(?:{_LINES}|\s*\|\s*grep\s+-c\s+['\"]?GPU['\"]?\s*)"
    rf"|nvidia-smi\s+--query-gpu=\w+\s+--format=csv,noheader(?:,nounits)?{_QUIET}{_LINES}"
    rf"|nvidia-smi\s+--format=csv,noheader\s+--query-gpu=\w+{_QUIET}{_LINES}"
    rf"|nvidia-smi\s+--query-gpu=count\s+--format=csv,noheader{_QUIET}\s*\|\s*head\s+(?:-n\s*)?-?1\s*"
    rf"|ls\s+(?:-1\s+|-d\s+|-l\s+)?/dev/nvidia\[0-9\]\*{_QUIET}{_LINES})"
)
"""What the driver shows, whatever a process is told to see; compiled where a script asks, since it takes 5 ms."""
OF_TORCH = (
    r"\s*python3?\s+-c\s+(['\"])\s*(?:import torch|from torch import cuda)\s*;\s*"
    rf"print\(\s*(?:torch\.)?cuda\.device_count\(\)\s*\)\s*;?\s*\1{_QUIET}\s*"
)
"""What a process sees."""
OF_SLURM = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class _Shown:
    count: int
    is_asked: bool = False


_SHOWN: ContextVar[_Shown | None] = ContextVar("devices that a node shows", default=None)


@contextmanager
def devices_shown(count: int | None) -> Iterator[None]:
    """Within this, a node shows so many devices to programs that count them; None if that is not known."""
    token = _SHOWN.set(None if count is None else _Shown(count))
    try:
        yield
    finally:
        _SHOWN.reset(token)


def count_of(text: str, variables: Mapping[str, Sequence[str]], implied: Mapping[str, Sequence[str]]) -> str | None:
    """What a command prints that counts devices; None if it does not, or if nothing says how many there are.

    ``variables`` are those of the script, ``implied`` those that the batch system sets.
    """
    is_torch = re.fullmatch(OF_TORCH, text) is not None
    if not is_torch and re.fullmatch(OF_DRIVER, text) is None:
        return None
    told = next((" ".join(implied[name]) for name in OF_SLURM if implied.get(name)), "")
    if is_torch and (visible := " ".join(variables.get(VISIBLE, []))) and not UNKNOWN.search(visible):
        told = str(len(visible.split(",")))
    if told.isdecimal():
        return told
    shown = _SHOWN.get()
    if shown is None:
        return None
    shown.is_asked = True
    return str(shown.count)


def note_of_count() -> str:
    """What is to be said of the count where a script has asked for it; "" if none has."""
    shown = _SHOWN.get()
    is_asked = shown is not None and shown.is_asked
    return f"Programs that count the devices of a node are taken to print {shown.count}." if shown and is_asked else ""

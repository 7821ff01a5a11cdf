"""What a process may use where its control groups, as of a container or a batch job, allow less than the machine has.

Linux, both versions of control groups [Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2]: a group may use what
the tightest of its ancestors allows. No torch here.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

OWN, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""Bytes from which on a limit of the first version stands for none."""


def usable_memory_bytes() -> float:
    """Bytes of memory for this process and all others of its group: the machine's, or less."""
    machine = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(machine, memory_limit_bytes() or math.inf)


def memory_limit_bytes() -> float | None:
    """The limit of memory of this process's groups; None without one."""
    said = [_number(folder / "memory.max") for folder in _groups("")]
    said += [_number(folder / "memory.limit_in_bytes") for folder in _groups("memory")]
    return min((each for each in said if each is not None and each < UNLIMITED), default=None)


def core_limit() -> float | None:
    """Cores' worth of time that this process's groups may take; None without a limit."""
    shares = [_text(folder / "cpu.max").split() for folder in _groups("")]
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    shares += [[_text(folder / name) for name in names] for folder in _groups("cpu")]
    return min(
        (int(q) / int(p) for q, p in (s for s in shares if len(s) == len(names)) if _positive(q, p)), default=None
    )


def _groups(controller: str) -> Iterator[Path]:
    """Folders of this process's group and its ancestors, of the first version's ``controller`` or ("") the second's."""
    for line in _text(OWN).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        roots = (MOUNTED / controllers, MOUNTED / controller) if controller else (MOUNTED, MOUNTED / "unified")
        for root in dict.fromkeys(roots):
            own = root / path.strip("/")
            yield from (each for each in (own, *own.parents) if each == root or root in each.parents)


def _positive(*values: str) -> bool:
    return all(value.isdecimal() and int(value) > 0 for value in values)


def _number(path: Path) -> float | None:
    text = _text(path)
    return float(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

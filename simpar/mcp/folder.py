"""What a worker may open: files below one folder, simpar's own data, and Python's installation.

A name in a scenario, a launch or a trace may lead to any file, and files name further ones. So nothing looks at names:
the interpreter itself refuses (PEP 578), whatever asked.
"""

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simpar.errors import UserError
from simpar.kept import HOME

OPENS = ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink")
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "socket.connect", "socket.bind")
"""Audit events of other programs and of the network, which no tool needs."""
SYSTEM = ("/proc", "/sys", "/dev/null", "/dev/urandom", "/etc/localtime", "/usr/share/zoneinfo")
KEPT = "SIMPAR_MCP_KEPT"
"""The environment's name of the folder where workers keep files; the server makes one for them."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def own_places(folder: str) -> dict[str, str]:
    """The environment by which workers keep what they keep in a folder of their server: no user's is open to them."""
    return {KEPT: folder, HOME: folder}


def confine(folder: Path) -> None:
    """Refuse, from now on, to open what is not below ``folder`` or part of the installation, or to write elsewhere.

    It cannot be taken back. What is refused raises UserError with one line.
    """
    sys.dont_write_bytecode = True
    sys.addaudithook(make_hook(folder))


def make_hook(folder: Path) -> Callable[[str, tuple[Any, ...]], None]:
    """The audit hook of :func:`confine`; symbolic links count as what they lead to."""
    inside = [os.path.realpath(folder), *(os.path.realpath(place) for place in (os.environ.get(KEPT),) if place)]
    installed = tuple(dict.fromkeys(_installed()))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            raise UserError(f"{event}: refused; tools start no program and reach no network")
        if event not in OPENS:
            return
        for name in arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
            if not isinstance(name, str | bytes):  # a descriptor that is open already, or the working directory
                continue
            path = os.path.realpath(os.fsdecode(name))
            if any(_below(path, each) for each in inside):
                continue
            writes = event not in ("open", "os.listdir", "os.scandir") or _writes(arguments)
            if writes or not any(_below(path, each) for each in installed):
                raise UserError(f"{os.fsdecode(name)}: refused; allowed: shipped names, and files below {folder}")

    return hook


def _installed() -> list[str]:
    """The folders of Python, of its packages and of simpar, which are read as they are imported."""
    import simpar

    places = [*sysconfig.get_paths().values(), sys.base_prefix, *(place for place in sys.path if place), *SYSTEM]
    places += [sys.pycache_prefix] if sys.pycache_prefix else []  # where its compiled modules are kept, if elsewhere
    return [os.path.realpath(place) for place in (*places, str(Path(simpar.__file__).parent.parent))]


def _writes(arguments: tuple[Any, ...]) -> bool:
    """Whether an event ``open`` (path, mode, flags) asks for more than reading."""
    if len(arguments) < 3:
        return False
    mode, flags = arguments[1:3]
    return bool(isinstance(mode, str) and set(mode) & set("wax+")) or bool((flags or 0) & WRITES)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)

"""What a run of the user's function depended on: the files that it read, the installed packages, the environment.

A graph that is kept of ``module:function`` stands for the function only as long as none of these changes. What a
function asks of the network, of the clock, or of the names in a folder is not seen.
"""

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

CHANGES_ALONE = ("_", "SHLVL", "OLDPWD", "COLUMNS", "LINES")
"""Variables that shells change between two commands, which no model hangs on."""
OF_NO_MODEL = ("/proc/", "/sys/", "/dev/", os.path.realpath(Path(__file__).parents[1]) + os.sep)
"""Folders of the system, whose files change by themselves, and simpar's own code."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Opened:
    """Names of the files that the interpreter opens to read, while it is asked for them; its hook stays for good."""

    names: set[str] | None = None
    hooked = False

    @classmethod
    def hook(cls, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a file (PEP 578)."""
        if event != "open" or cls.names is None or not isinstance(arguments[0], str | bytes):
            return
        if not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            cls.names.add(os.path.realpath(os.fsdecode(arguments[0])))


@contextmanager
def watched_reads() -> Iterator[set[str]]:
    """Every file that is opened to read inside, by its path."""
    if not _Opened.hooked:
        sys.addaudithook(_Opened.hook)
        _Opened.hooked = True
    names: set[str] = set()
    _Opened.names = names
    try:
        yield names
    finally:
        _Opened.names = None


def environment() -> str:
    """A digest of the interpreter, the folder, the path of modules and the variables of the environment."""
    variables = {name: value for name, value in os.environ.items() if name not in CHANGES_ALONE}
    said = repr((sys.version, os.getcwd(), sys.path, sorted(variables.items())))
    return hashlib.sha256(said.encode(errors="surrogateescape")).hexdigest()


def depended_on(opened: set[str]) -> dict[str, str]:
    """Stamps of files: of what was opened and of the user's modules, and of every installed package that is loaded."""
    names = {name for name in opened if not _is_installed(name) and Path(name).is_file()}
    for name, module in list(sys.modules.items()):
        if path := getattr(module, "__file__", None):
            path = os.path.realpath(path)
            names |= {path} if not _is_installed(path) or "." not in name else set()
    return {name: stamp(name) for name in sorted(names) if not name.startswith(OF_NO_MODEL)}


def stamp(name: str) -> str:
    """What a file holds, as a digest; of an installed one its size and time. "" where there is none."""
    try:
        if _is_installed(name):
            known = os.stat(name)
            return f"{known.st_size} {known.st_mtime_ns}"
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return ""


def is_loaded(function: str) -> bool:
    """Whether the module of ``module:function`` was imported before: its file may hold other code by now."""
    return function.partition(":")[0] in sys.modules


def _is_installed(name: str) -> bool:
    return name.startswith(_installed_below())


@cache
def _installed_below() -> tuple[str, ...]:
    """Folders of the standard library and of packages."""
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({os.path.realpath(paths[name]) + os.sep for name in names})

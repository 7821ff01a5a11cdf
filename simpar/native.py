"""Functions in C, compiled on first use by the machine's own compiler and kept: a third of a second, once per machine.

Nothing is compiled when simpar is installed, so one wheel serves every machine, and a browser. Where there is no
compiler, Python does the same work more slowly.
"""

import ctypes
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.kept import cache_folder, digest, keep, replace_file

FLAGS = ("-std=c11", "-O2", "-fPIC", "-fwrapv", "-ffp-contract=off", "-shared")
KIND = "native"
_ALIGNED_BYTES = 64
_NOTHING = ctypes.c_char * 0
COMPILERS = ("cc", "gcc", "clang")


class NativeUnavailableError(Exception):
    """C cannot be compiled or loaded here; the message says why."""


@dataclass
class NativeLibrary:
    """The functions of one C source file, with constants that Python defines for it.

    ``worth`` is how much work Python does, in units of the caller's, in the time that compiling takes. The library is
    kept in a file named by all that it depends on: beside the source if somebody has put it there (for machines without
    a compiler, by :meth:`make`), else in the user's cache.
    """

    source: Path
    worth: int
    constants: Mapping[str, int] = field(default_factory=dict)
    done: int = 0
    """Work that Python has done in this process."""
    loaded: ctypes.CDLL | None = None
    why_not: str = ""
    """Why it could not be compiled or loaded when this process tried; a process tries once."""

    @property
    def is_ready(self) -> bool:
        """Whether using it takes no time: it is loaded, or was compiled before."""
        return self.loaded is not None or (not self.why_not and any(map(_is_trusted, self._places())))

    @property
    def loaded_from(self) -> str:
        """The file of the loaded library."""
        return self.load()._name

    def load(self) -> ctypes.CDLL:
        """The library, compiled where that is needed. Raises NativeUnavailableError."""
        if self.why_not:
            raise NativeUnavailableError(self.why_not)
        if self.loaded is None:
            try:
                self.loaded = self._kept() or self._made()
            except NativeUnavailableError as error:
                self.why_not = str(error)
                raise
        return self.loaded

    def is_worth(self, work: int) -> bool:
        """Whether it is ready, or worth compiling for some work on top of what Python has done."""
        return self.is_ready or self.done + work > self.worth

    def load_if_possible(self) -> ctypes.CDLL | None:
        """The library, compiled where that is needed; None where it cannot be had, and ``why_not`` says why."""
        with suppress(NativeUnavailableError):
            return self.load()
        return None

    def load_for(self, work: int) -> ctypes.CDLL | None:
        """The library if it is worth it and can be had; else None: Python then does the work, which is counted."""
        if self.is_worth(work) and (library := self.load_if_possible()):
            return library
        self.done += work
        return None

    def make(self, folder: Path) -> Path:
        """Compile it into a folder. Raises NativeUnavailableError, and OSError where that cannot be written to."""
        import subprocess
        import tempfile

        path, words = folder / self._name, compiler()
        if not words:
            raise NativeUnavailableError(f"no C compiler is installed (${{CC}}, {', '.join(COMPILERS)})")
        try:
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch) / path.name
                defined = [f"-D{name}={value}" for name, value in self.constants.items()]
                command = [*words, *FLAGS, *defined, "-o", str(made), str(self.source)]
                subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
                folder.mkdir(parents=True, exist_ok=True)
                replace_file(path, made.read_bytes())
        except subprocess.CalledProcessError as error:
            said = [*error.stderr.strip().splitlines(), str(error)]
            raise NativeUnavailableError(f"{words[0]} cannot compile {self.source.name}: {said[0]}") from error
        except UserError as error:  # a process that may start no program
            raise NativeUnavailableError(str(error)) from error
        return path

    def share(self, folder: Path) -> None:
        """Put it where processes whose cache folder that is find it, if it is to be had here."""
        with suppress(NativeUnavailableError, OSError):
            made = Path(self.loaded_from)
            keep(folder / "simpar" / KIND / self._name, made.read_bytes())

    def _kept(self) -> ctypes.CDLL | None:
        for path in self._places():
            if _is_trusted(path):
                try:
                    return ctypes.CDLL(str(path))
                except OSError:  # torn, or of another machine with the same home: it is made anew
                    continue
        return None

    def _made(self) -> ctypes.CDLL:
        import tempfile

        try:
            return ctypes.CDLL(str(self.make(cache_folder(KIND))))
        except OSError:  # the cache cannot be written to, or nothing there may be executed: for this process only
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    return ctypes.CDLL(str(self.make(Path(scratch))))
                except OSError as error:
                    raise NativeUnavailableError(str(error)) from error

    def _places(self) -> tuple[Path, Path]:
        return self.source.with_name(self._name), cache_folder(KIND) / self._name

    @cached_property
    def _name(self) -> str:
        machine = os.uname().machine if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "")
        constants = " ".join(f"{name}={value}" for name, value in self.constants.items())
        depends = digest(self.source.read_text("utf-8"), constants, " ".join(FLAGS), sys.platform, machine)
        return f"{self.source.stem}-{depends[:16]}.so"


def _is_trusted(path: Path) -> bool:
    """Whether a file is there, and of this user or the administrator: what others put there is not executed."""
    try:
        return not hasattr(os, "getuid") or path.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def address(column: NDArray[Any]) -> int:
    """Where a column in one piece begins in memory; it must live as long as the address is used.

    Of a column that may be written to, the buffer says so in a quarter of the time that the array needs.
    """
    if column.flags.writeable:
        return ctypes.addressof(_NOTHING.from_buffer(cast("Any", column)))
    return int(column.ctypes.data)


def pointers(*columns: NDArray[Any]) -> list[ctypes.c_void_p]:
    """Arguments for functions of C; the columns must live as long as the call."""
    return [ctypes.c_void_p(address(column)) for column in columns]


def int32_column(values: ArrayLike) -> NDArray[np.int32]:
    """Values as C reads them, copied only if need be."""
    return np.ascontiguousarray(values, np.int32)


def int64_column(values: ArrayLike) -> NDArray[np.int64]:
    """Values as C reads them, copied only if need be."""
    return np.ascontiguousarray(values, np.int64)


def empty_columns(count: int, kinds: Mapping[str, DTypeLike]) -> dict[str, NDArray[Any]]:
    """Columns of ``count`` entries each by name, not filled, behind each other in one block of memory.

    A system maps a large block in large pages. Of many smaller ones it maps the ends in small pages, up to a thousand
    for each, and the first use of a page costs more than filling it.
    """
    sizes = {name: count * np.dtype(kind).itemsize for name, kind in kinds.items()}
    ends = np.cumsum([-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes.values()])
    block = np.empty(int(ends[-1]), dtype=np.uint8)
    begins = [0, *ends[:-1].tolist()]
    return {name: block[at : at + sizes[name]].view(kinds[name]) for at, name in zip(begins, sizes, strict=True)}


def libraries() -> list[NativeLibrary]:
    """All of them: every C file lies beside the module that has its ``LIBRARY``, under the same name."""
    root = Path(__file__).parent
    names = [path.relative_to(root.parent).with_suffix("").parts for path in sorted(root.rglob("*.c"))]
    return [import_module(".".join(parts)).LIBRARY for parts in names]


def compiler() -> list[str]:
    """The words that start the C compiler: ``$CC``, or the first of COMPILERS on the path; empty without one."""
    import shutil

    if asked := shlex.split(os.environ.get("CC", "")):
        return asked if shutil.which(asked[0]) else []
    return next(([path] for name in COMPILERS if (path := shutil.which(name))), [])

"""What is no file although it has a name: pipes, devices and sockets, which may never end."""

import errno
import os
import stat
from pathlib import Path

from simpar.errors import UserError

OF_SHELL = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
"""How pipes are called that the shell made for a command."""


def check_is_file(path: Path | str, *, again: bool = False) -> None:
    """Raises UserError for a pipe with a name and a device, which may keep a reader waiting, or reading, for ever.

    The shell's own pipes, ``<(command)`` and ``/dev/stdin``, have a writer: they pass where a file is not read
    ``again``. What is not there, or a folder, is for whoever opens it to say.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not again and (str(path) == os.devnull or str(path).startswith(OF_SHELL)):
        return
    if stat.S_ISFIFO(mode):
        raise UserError(f"{path}: is a pipe; allowed: a file{' (it is read more than once)' if again else ''}")
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{path}: is a device or a socket; allowed: a file")


def resolved(path: Path | str) -> Path:
    """A path that is written to, through links to the file that they mean. Raises UserError for links in a circle."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError before Python 3.13
        reason = os.strerror(errno.ELOOP) if isinstance(error, RuntimeError) else getattr(error, "strerror", error)
        raise UserError(f"{path}: cannot be written ({reason})") from None

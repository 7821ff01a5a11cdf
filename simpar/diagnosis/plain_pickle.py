"""Pickles read as plain data: containers, numbers and texts. Whatever names code is refused, nothing is executed."""

import gzip
import io
import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from simpar.errors import UserError
from simpar.files import GZIP
from simpar.units import GIB, MIB

MOST_BYTES = GIB
MOST_PACKED = 300
"""Times that gzip makes a dump smaller at most: nothing but repeats packs better (at most 1,032 times)."""
FAULTS = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError, MemoryError,
    OverflowError,
)  # fmt: skip
MOST_GROWTH, ROOM = 128, 256 * MIB
"""Bytes of memory for a byte of a pickle at most, above some room: an empty dict of one byte takes 64 and its place."""


class _Plain(pickle.Unpickler):
    """Unpickles lists, dicts, numbers and strings; anything that names code is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Refuse every name."""
        raise pickle.UnpicklingError(f"names {module}.{name}, and only plain data is read")


def read_bytes(path: str | Path, what: str) -> bytes:
    """The content of a file, unpacked. Raises UserError for one that is too large to be ``what``."""
    try:
        with Path(path).open("rb") as raw:
            packed = raw.read(len(GZIP)) == GZIP
        with gzip.open(path) if packed else Path(path).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: larger than {MOST_BYTES // GIB} GiB: not a {what}")
    if packed and len(content) > MOST_PACKED * Path(path).stat().st_size + MIB:
        raise UserError(f"{path}: unpacks to more than {MOST_PACKED} times its size: not a {what}")
    return content


@contextmanager
def _limited(more_bytes: int) -> Iterator[None]:
    """Let this process take so much more address space, where the system tells: few bytes may ask for much."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + more_bytes
        least = min(each for each in (limit, *before) if each != resource.RLIM_INFINITY)
        resource.setrlimit(resource.RLIMIT_AS, (least, before[1]))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def load_plain(content: bytes, path: str | Path, what: str) -> Any:
    """The plain data of a pickle. Raises UserError for one that is damaged or names code."""
    try:
        # CPython prints a SystemError of its own where it has no memory for a bytearray
        with _limited(MOST_GROWTH * len(content) + ROOM), redirect_stderr(io.StringIO()):
            return _Plain(io.BytesIO(content)).load()
    except FAULTS as error:
        silent = "asks for more memory than it has data" if isinstance(error, MemoryError) else "cut short"
        reason = str(error).splitlines()[0] if str(error) else silent
        raise UserError(f"{path}: is not a valid {what} ({reason})") from None

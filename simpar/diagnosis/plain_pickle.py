"""Pickles read as plain data: containers, numbers and texts. Whatever names code is refused, nothing is executed."""

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

from simpar.errors import UserError
from simpar.files import GZIP
from simpar.units import GIB

MOST_BYTES = GIB
FAULTS = (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError, MemoryError)


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
    return content


def load_plain(content: bytes, path: str | Path, what: str) -> Any:
    """The plain data of a pickle. Raises UserError for one that is damaged or names code."""
    try:
        return _Plain(io.BytesIO(content)).load()
    except FAULTS as error:
        reason = str(error).splitlines()[0] if str(error) else "cut short"
        raise UserError(f"{path}: is not a valid {what} ({reason})") from None

"""What is kept in the user's cache folder, in files named by what they depend on: a later command need not work again.

Nothing but time is lost with it: a file that is missing or torn is made anew, and where the folder cannot be written
to, nothing is kept. What `native` has compiled is all of it that is executed.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = "XDG_CACHE_HOME"
"""The environment's name of the folder of everything that the user's programs keep."""


def cache_folder(kind: str) -> Path:
    """The folder of one kind of kept files, ``$XDG_CACHE_HOME/simpar/KIND``."""
    try:
        return Path(os.environ.get(HOME) or Path.home() / ".cache") / "simpar" / kind
    except RuntimeError:  # a user without a home, as in some containers
        return Path(os.devnull) / kind


def digest(*parts: str) -> str:
    """The name of what depends on these texts and nothing else."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def kept_json(path: Path, make: Callable[[], Any]) -> Any:
    """The data in a kept file; where there is none, what ``make`` gives, which is kept.

    Only what JSON gives back as it was is kept: keys of mappings are texts, sequences are lists.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        data = make()
    text = json.dumps(data)
    if json.loads(text) == data:
        keep(path, text.encode())
    return data


def keep(path: Path, data: bytes) -> None:
    """Keep a file, if the folder can be written to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError:
        return


def replace_file(path: Path, data: bytes) -> None:
    """Write a file under a temporary name beside it and rename it: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name[:100]}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
            stream.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

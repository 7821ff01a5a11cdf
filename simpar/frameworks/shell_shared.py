"""One reading of a script for all who ask for it: the launcher, and the reader of what it starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from simpar.frameworks.shell import Script

_READ: ContextVar[dict[tuple[str, str], Script] | None] = ContextVar("_READ", default=None)


def script_of(text: str, source: str) -> Script:
    """A script as it would run, which the caller must not change. Raises UserError if it is not shell text."""
    read = _READ.get()
    if read is None:
        return Script(text, source)
    key = (text, source)
    if key not in read:
        read[key] = Script(text, source)
    return read[key]


@contextmanager
def shared_scripts() -> Iterator[None]:
    """Within this, equal texts of one source are read once: the files that they name do not change meanwhile."""
    token = _READ.set({})
    try:
        yield
    finally:
        _READ.reset(token)

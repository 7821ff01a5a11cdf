"""Ctrl-C that waits for imports and for pydantic: an exception inside may be swallowed, or become another error.

It waits for answers, too, that are being written.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.02
"""Time after which an interrupt that had to wait is tried again."""
HOLDERS = ("importlib", f"{os.sep}pydantic{os.sep}")
"""Parts of the names of files whose calls must not be stopped halfway."""
LONGEST_S = 10.0
"""How long an interrupt waits for an answer that is written: its reader may have stopped reading."""
_written_until: list[float] = []


@contextmanager
def written_whole() -> Iterator[None]:
    """Within this an answer is written to its end: an interrupt waits for it, at most ``LONGEST_S``."""
    _written_until.append(time.monotonic() + LONGEST_S)
    try:
        yield
    finally:
        _written_until.pop()


def must_wait(frame: FrameType | None) -> bool:
    """Whether a frame is inside an import, inside a model that is validated or written out, or inside an answer."""
    if _written_until and time.monotonic() < _written_until[-1]:
        return True
    while frame is not None:
        if any(holder in frame.f_code.co_filename for holder in HOLDERS):
            return True
        frame = frame.f_back
    return False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt, as soon as nothing has to be waited for."""
    if not must_wait(frame):
        raise KeyboardInterrupt
    # the signal goes to the main thread, which may be asleep by then: a flag alone would not wake it
    again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
    again.daemon = True
    again.start()

"""Ctrl-C that waits for imports and for pydantic: an exception inside may be swallowed, or become another error."""

import os
import signal
import threading
from types import FrameType

AGAIN_S = 0.02
"""Time after which an interrupt that had to wait is tried again."""
HOLDERS = ("importlib", f"{os.sep}pydantic{os.sep}")
"""Parts of the names of files whose calls must not be stopped halfway."""


def must_wait(frame: FrameType | None) -> bool:
    """Whether a frame is inside an import, or inside a model that is validated or written out."""
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

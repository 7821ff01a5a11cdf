"""Ctrl-C that waits for imports: an exception raised inside one may be swallowed there, or become another error."""

import signal
import threading
from types import FrameType

AGAIN_S = 0.02
"""Time after which an interrupt that met an import is tried again."""


def imports(frame: FrameType | None) -> bool:
    """Whether a frame is inside an import, which must not be stopped halfway."""
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt, as soon as nothing is imported."""
    if not imports(frame):
        raise KeyboardInterrupt
    # the signal goes to the main thread, which may be asleep by then: a flag alone would not wake it
    again = threading.Timer(AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, number))
    again.daemon = True
    again.start()

"""A profiler trace read as a stream: its header, then one event at a time, never the whole file in memory.

The Trace Event format is an object whose ``traceEvents`` is an array, with other keys before and after it, or the array
alone. Compression is recognised by the first bytes, not by the file's name.
"""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from simpar.errors import UserError
from simpar.files import GZIP
from simpar.units import MIB

Event = dict[str, Any]
CHUNK = 4 * MIB
MOST_PENDING = 64 * MIB
"""The most text without a complete value: anything longer is neither an event nor a header."""
EVENTS = "traceEvents"
_SIGN, _ENTRY = re.compile(r"[^ \t\r\n]"), re.compile(r"[^ \t\r\n,]")


class EventStream:
    """Events of a trace file; ``header`` holds its other keys, complete once every event was read.

    Raises UserError while reading a file that is not a trace, truncated or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.header = str(path), dict[str, Any]()
        self._decoder = json.JSONDecoder(strict=False)
        self._text, self._at, self._ended, self._read = "", 0, False, 0
        self._found = False

    def __iter__(self) -> Iterator[Event]:
        try:
            with Path(self.path).open("rb") as raw:
                self._source = io.TextIOWrapper(_unpacked(raw), encoding="utf-8", errors="replace")
                yield from self._events()
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            reason = "cut short" if isinstance(error, EOFError) else f"damaged ({error})"
            raise UserError(
                f"{self.path}: its gzip data is {reason} after {self._read} events; write the trace again"
            ) from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def _events(self) -> Iterator[Event]:
        first = self._peek()
        if first == "[":
            yield from self._array()
        elif first == "{":
            self._at += 1
            yield from self._object()
        else:
            raise UserError(f"{self.path}: {'is not a trace' if first else 'is empty'}; {_WANTED}")
        if self._peek():
            raise UserError(f"{self.path}: there is text after its end; {_WANTED}")
        if not self._found:
            raise UserError(f"{self.path}: has no {EVENTS}; {_WANTED}")

    def _object(self) -> Iterator[Event]:
        """Keys of the file; header keys are kept, events are yielded."""
        while (sign := self._peek()) != "}":
            if sign == ",":
                self._at += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._peek() != ":":
                self._broken()
            self._at += 1
            if key == EVENTS:
                if self._peek() != "[":
                    raise UserError(f"{self.path}: {EVENTS} is not a list; {_WANTED}")
                yield from self._array()
            else:
                self.header[key] = self._value()
        self._at += 1

    def _array(self) -> Iterator[Event]:
        self._at, self._found = self._at + 1, True
        decode = self._decoder.raw_decode
        while True:
            text, at = self._text, self._at
            size = len(text)
            try:  # fast path: as many events as the buffer holds
                while True:
                    entry = _ENTRY.search(text, at)
                    at = entry.start() if entry else size
                    if at >= size or text[at] != "{":
                        break
                    event, at = decode(text, at)
                    self._read += 1
                    yield event
            except json.JSONDecodeError:
                pass
            except (ValueError, RecursionError):
                raise self._beyond() from None
            self._at = at
            sign = self._peek()
            if sign == ",":
                self._at += 1
            elif sign == "]":
                self._at += 1
                return
            elif sign != "{":
                self._broken()
            elif text is self._text:
                self._more()

    def _peek(self) -> str:
        """The next character that is not a space, "" at the end."""
        skipped = 0
        while True:
            if sign := _SIGN.search(self._text, self._at):
                self._at = sign.start()
                return sign[0]
            skipped, self._at = skipped + len(self._text) - self._at, len(self._text)
            if self._ended:
                return ""
            if skipped > MOST_PENDING:
                told = f"{MOST_PENDING // MIB} MiB of spaces after {self._read} events"
                raise UserError(f"{self.path}: {told}; {_WANTED}")
            self._fill()

    def _value(self) -> Any:
        """The value that begins here."""
        self._peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                if end < len(self._text) or self._ended:  # otherwise a number may continue
                    self._at = end
                    return value
            except json.JSONDecodeError:
                pass
            except (ValueError, RecursionError):
                raise self._beyond() from None
            self._more()

    def _more(self) -> None:
        """Read on, because the current value is incomplete. Raises UserError at the end of the file."""
        if self._ended or len(self._text) - self._at > MOST_PENDING:
            self._broken()
        self._fill()

    def _fill(self) -> None:
        more = self._source.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not more
        self._text, self._at = self._text[self._at :] + more, 0

    def _beyond(self) -> UserError:
        """The error for what JSON can say and no trace does."""
        return UserError(f"{self.path}: nested too deeply or a number too long after {self._read} events")

    def _broken(self) -> None:
        """Raise the reason why reading cannot go on: the file ends too early, or is not JSON."""
        if self._ended:
            raise UserError(f"{self.path}: cut short after {self._read} events; write the trace again")
        near = self._text[self._at : self._at + 40]
        raise UserError(f"{self.path}: not valid JSON after {self._read} events, near {near!r}")


_WANTED = "allowed: a file of torch.profiler's export_chrome_trace, .json or .json.gz"


def _unpacked(raw: BinaryIO) -> BinaryIO:
    """The bytes of a file, decompressed if it begins like gzip."""
    packed = raw.read(len(GZIP)) == GZIP
    raw.seek(0)
    return gzip.open(raw) if packed else raw  # type: ignore[return-value]

"""Documents of training data, one at a time, from files and folders: text, JSON lines, parquet, saved datasets.

A row has a ``text``; or chat ``messages``, which the tokenizer's template renders; or a ``prompt`` and a
``completion``. Of the last two only what the model should say counts in the loss. Whatever is wrong with a row is said
with its file and line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.units import MIB

LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"
PLAIN = (".txt", ".text", ".md")
DATASET = ("state.json", "dataset_dict.json")
"""Files by which a folder is a dataset that was saved to disk."""
KEYS = ("text", "messages", "prompt")
PIECE_BYTES = MIB
"""About how much of a plain text is encoded at once."""
SPLIT = "train"


@dataclass(frozen=True)
class TextDocument:
    """A ``text`` from a place (file:line); ``counted`` are the spans of characters in the loss (None: all).

    ``special``: the tokenizer's own tokens at the beginning and the end belong to it, which a template writes itself.
    ``goes_on``: the next one is more of the same document.
    """

    text: str
    place: str
    counted: tuple[tuple[int, int], ...] | None = None
    special: bool = True
    goes_on: bool = False


@dataclass(frozen=True)
class SourceFile:
    """One file of documents, or a saved dataset, with what tells whether it has changed since it was read."""

    path: Path
    size: int
    changed_ns: int

    @staticmethod
    def of(path: Path) -> SourceFile:
        """A file, or a folder of a dataset. Raises UserError if it cannot be read."""
        parts = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
        try:
            states = [each.stat() for each in parts]
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        return SourceFile(path, sum(each.st_size for each in states), max(each.st_mtime_ns for each in states))


Render = Callable[[Sequence[Mapping[str, Any]], str], tuple[str, tuple[tuple[int, int], ...]]]
"""From messages and their place: a text, and the spans that the model says. Raises UserError."""


def list_sources(names: Sequence[str]) -> list[SourceFile]:
    """The files of documents that are named or lie in named folders, in order. Raises UserError."""
    result = [SourceFile.of(path) for name in names for path in _files(Path(name))]
    if not result:
        raise UserError("no text: allowed: files or folders of text, JSON lines or parquet, or a saved dataset")
    return result


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"{path}: cannot be read (No such file or directory)")
    if not path.is_dir() or any((path / mark).is_file() for mark in DATASET):
        return [path]
    known = (*LINES, *PLAIN, PARQUET)
    texts = sorted(each for each in path.rglob("*") if each.is_file() and each.suffix in known)
    if not texts:
        raise UserError(f"{path}: has no files of text; allowed: {', '.join(known)}, or a saved dataset")
    return texts


def read(source: SourceFile, render: Render, after: int = 0) -> Iterator[tuple[int, TextDocument]]:
    """Documents of a source behind position ``after``, each with the position behind it. Raises UserError.

    Positions are bytes of a text, numbers of rows of everything else.
    """
    path = source.path
    if path.is_dir():
        yield from _rows(_dataset(path), path, render, after)
    elif path.suffix in LINES:
        yield from _json_lines(path, render, after)
    elif path.suffix == PARQUET:
        yield from _rows(_parquet(path), path, render, after)
    else:
        yield from _text(path, after)


def _text(path: Path, after: int) -> Iterator[tuple[int, TextDocument]]:
    """A whole file is one document, in pieces that end where a line does and the next begins with a word."""
    size = path.stat().st_size
    if size == 0:
        raise UserError(f"{path}:1: the document is empty; allowed: some text")
    with path.open("rb") as stream:
        stream.seek(after)
        left = b""
        at = after
        while True:
            more = stream.read(PIECE_BYTES)
            left += more
            end = _cut(left) if more else len(left)
            if end:
                text = _decoded(left[:end], path, partial(_line_of, path, at))
                at, left = at + end, left[end:]
                if text.strip() or at < size:
                    yield at, TextDocument(text, str(path), special=at == end, goes_on=at < size)
                elif after == 0 and at == end:
                    raise UserError(f"{path}:1: the document is empty; allowed: some text")
            if not more:
                return


def _cut(data: bytes) -> int:
    """The end of the last line behind which a word begins; 0 if there is none."""
    at = len(data)
    while (at := data.rfind(b"\n", 0, at)) >= 0:
        if data[at + 1 : at + 2].strip():
            return at + 1
    return 0


def _line_of(path: Path, position: int) -> int:
    """The number of the line at a position in bytes."""
    with path.open("rb") as stream:
        return stream.read(position).count(b"\n") + 1


def check_text(path: Path) -> None:
    """Raise UserError for a file that is empty, not UTF-8, or cannot be read."""
    try:
        for _ in _text(path, 0):
            pass
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None


def _decoded(data: bytes, path: Path, first: Callable[[], int]) -> str:
    """Bytes as text; ``first`` gives the number of their first line. Raises UserError."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first() + data[: error.start].count(b"\n")
        raise UserError(
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8 ({error.reason}); allowed: text in UTF-8"
        ) from None


def _json_lines(path: Path, render: Render, after: int) -> Iterator[tuple[int, TextDocument]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number <= after or not line.strip():
                continue
            place = f"{path}:{number}"
            text = _decoded(line, path, partial(int, number))
            try:
                row = json.loads(text)
            except ValueError as error:
                raise UserError(f"{place}: is not JSON ({error}); allowed: one object a line") from None
            yield number, document_of(row, place, render)


def _rows(rows: Iterator[Any], path: Path, render: Render, after: int) -> Iterator[tuple[int, TextDocument]]:
    for number, row in enumerate(rows, start=1):
        if number > after:
            yield number, document_of(row, f"{path}:{number}", render)


def _parquet(path: Path) -> Iterator[Any]:
    """Rows of a parquet file, some columns only. Raises UserError."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path}: pyarrow reads it and is not installed: pip install pyarrow") from None
    try:
        opened = parquet.ParquetFile(path)
    except Exception as error:  # noqa: BLE001 - the library raises several classes of its own
        raise UserError(f"{path}: is not parquet ({str(error).splitlines()[0][:120]})") from None
    wanted = [name for name in (*KEYS, "completion") if name in opened.schema_arrow.names]
    for batch in opened.iter_batches(columns=wanted):
        yield from batch.to_pylist()


def _dataset(path: Path) -> Iterator[Any]:
    """Rows of a saved dataset: its training split, if it has several. Raises UserError."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise UserError(f"{path}: datasets reads it and is not installed: pip install datasets") from None
    loaded = load_from_disk(str(path))
    if isinstance(loaded, Mapping):
        if SPLIT not in loaded:
            raise UserError(f"{path}: has {', '.join(loaded)}; allowed: one named {SPLIT}, or the folder of one split")
        loaded = loaded[SPLIT]
    yield from loaded


def document_of(row: Any, place: str, render: Render) -> TextDocument:
    """The document of a row. Raises UserError with its place."""
    if not isinstance(row, Mapping):
        raise UserError(f"{place}: is {type(row).__name__}; allowed: an object with {_allowed()}")
    kind = next((key for key in KEYS if row.get(key) is not None), None)
    if kind is None:
        said = ", ".join(map(str, row)) or "nothing"
        raise UserError(f"{place}: has {said}; allowed: {_allowed()}")
    if kind == "messages":
        text, counted = render(_messages(row[kind], place), place)
        return TextDocument(text, place, counted, special=False)
    if kind == "prompt":
        prompt, completion = (_string(row.get(key), key, place) for key in ("prompt", "completion"))
        if not completion.strip():
            raise UserError(f"{place}: completion is empty; allowed: some text")
        return TextDocument(prompt + completion, place, ((len(prompt), len(prompt) + len(completion)),))
    text = _string(row[kind], kind, place)
    if not text.strip():
        raise UserError(f"{place}: text is empty; allowed: some text")
    return TextDocument(text, place)


def _allowed() -> str:
    return "text, or messages, or prompt and completion"


def _string(value: Any, key: str, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: {key} is {type(value).__name__}; allowed: a string")
    return value


def _messages(value: Any, place: str) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{place}: messages is {'empty' if value == [] else type(value).__name__}; allowed: a list")
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UserError(f"{place}: messages[{number}] has no role; allowed: objects with role and content")
    return value

"""Documents of training data, one at a time, from files and folders: text, JSON lines, parquet, saved datasets.

What a row may have is said in ``rows``. Whatever is wrong with one is said with its file and line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable
from simpar.runtime.rows import ALLOWED, BLANK, COLUMNS, EMPTY, Render, TextDocument, Unusable, document_of
from simpar.units import KIB, MIB

LINES, ROWS, PARQUET = (".jsonl", ".ndjson"), ".json", ".parquet"
PLAIN = (".txt", ".text", ".md")
KNOWN = (*LINES, *PLAIN, PARQUET)
"""Endings of files that are taken from folders; a ``.json`` is there often about something else."""
CONTAINERS = (".gz", ".zst", ".bz2", ".xz", ".zip", ".tar", ".tgz", ".arrow", ".csv", ".tsv", ".pdf", ".docx")
"""Endings of files that are no text as they are."""
DATASET = ("state.json", "dataset_dict.json")
"""Files by which a folder is a dataset that was saved to disk."""
MARK = "\ufeff"
"""What some editors write before the first character of a text, which is no part of it."""
PIECE_BYTES = MIB
"""About how much of a plain text is encoded at once."""
SPLIT = "train"
SPLITS = {
    "test": {"test", "testing", "eval", "evaluation"},
    "validation": {"validation", "valid", "val", "dev"},
    SPLIT: {"train", "training"},
}
"""Words of names of files by the split that they stand for."""


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


def list_sources(names: Sequence[str]) -> list[SourceFile]:
    """The files of documents that are named or lie in named folders, in order. Raises UserError."""
    result = [SourceFile.of(path) for name in names for path in _files(Path(name))]
    if not result:
        raise UserError("no text: allowed: files or folders of text, JSON lines or parquet, or a saved dataset")
    return result


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UserError(f"{path}: cannot be read (No such file or directory)")
    if path.suffix in CONTAINERS and path.is_file():
        raise UserError(f"{path}: {path.suffix} is not read; allowed: text, JSON lines, parquet, or a saved dataset")
    if not _is_folder_of_files(path):
        return [path]
    texts = _texts(path)
    if not texts:
        raise UserError(f"{path}: has no files of text; allowed: {', '.join(KNOWN)}, or a saved dataset")
    return [each for each in texts if each not in _of_other_splits(path, texts)]


def _texts(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and each.suffix in KNOWN)


def _of_other_splits(folder: Path, texts: Sequence[Path]) -> dict[Path, str]:
    """Files of a folder that are of splits for validation or tests, with the split, where others are for training."""
    splits = {each: _split_of(each.relative_to(folder)) for each in texts}
    if SPLIT not in splits.values():
        return {}
    splits |= {each: "no split" for each, split in splits.items() if split is None and each.stem.lower() == "readme"}
    return {each: split for each, split in splits.items() if split not in (None, SPLIT)}


def _split_of(path: Path) -> str | None:
    """The split that a file is of, by a word of its name or the name of a folder; None if none is named [datasets].

    ``data/train-00000-of-00002.parquet`` as the hub has it, ``test.jsonl``, ``validation/a.txt``.
    """
    words = {*re.split(r"[^a-z]+", path.stem.lower()), *(folder.lower() for folder in path.parts[:-1])}
    return next((split for split, names in SPLITS.items() if words & names), None)


def is_plain(path: Path) -> bool:
    """Whether a path is read as a file of text, a document as it is."""
    return not path.is_dir() and path.suffix not in (*LINES, ROWS, PARQUET, *CONTAINERS)


def _is_folder_of_files(path: Path) -> bool:
    return path.is_dir() and not any((path / mark).is_file() for mark in DATASET)


def count_unread(names: Sequence[str]) -> dict[str, int]:
    """How much of what lies in named folders is not read: files by the endings of their names, and other splits."""
    folders = [Path(name) for name in names if _is_folder_of_files(Path(name))]
    files = (each for folder in folders for each in folder.rglob("*") if each.is_file() and each.suffix not in KNOWN)
    endings = (each.suffix or "without an ending" for each in files if not each.name.startswith("."))
    counts = Counter(f"files {ending}" for ending in endings)
    for folder in folders:
        counts.update(f"files of {split}" for split in _of_other_splits(folder, _texts(folder)).values())
    for name in names:
        counts.update(_other_parts(Path(name)))
    return dict(sorted(counts.items()))


def _other_parts(path: Path) -> dict[str, int]:
    """Rows of the parts of a saved dataset that are not for training."""
    try:
        parts = json.loads((path / DATASET[1]).read_text(encoding="utf-8"))["splits"]
        others = [str(part) for part in parts if part != SPLIT]
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # no dataset with parts, or one that cannot be read, which is said where it is
    return {f"rows of {part}": len(_loaded(path)[part]) for part in others}


def read(
    source: SourceFile, render: Render, after: int = 0, *, skips: bool = False
) -> Iterator[tuple[int, TextDocument]]:
    """Documents of a source behind position ``after``, each with the position behind it. Raises UserError.

    Positions are bytes of a text, numbers of rows of everything else. Blank lines, and with ``skips`` documents with
    nothing to train on, are documents that are ``left_out``; without it these are refused.
    """
    path, document = source.path, partial(_skipped if skips else _wanted, render)
    if path.is_dir():
        yield from _rows(_dataset(path), path, document, after)
    elif path.suffix == ROWS and _begins_with(path, b"["):
        yield from _rows(_json_list(path), path, document, after)
    elif path.suffix in (*LINES, ROWS):
        yield from _json_lines(path, document, after)
    elif path.suffix == PARQUET:
        yield from _rows(_parquet(path), path, document, after)
    else:
        yield from _text(path, after, skips=skips)


Made = Callable[[Any, str], TextDocument]
"""From a row and its place to a document."""
SKIPS = "or --skip-empty, which leaves such documents out"


def _wanted(render: Render, row: Any, place: str) -> TextDocument:
    try:
        return document_of(row, place, render)
    except Unusable as fault:
        raise UserError(f"{fault}, {SKIPS}") from None


def _skipped(render: Render, row: Any, place: str) -> TextDocument:
    try:
        return document_of(row, place, render)
    except Unusable as fault:
        return TextDocument("", place, left_out=fault.what)


def _text(path: Path, after: int, *, skips: bool = False) -> Iterator[tuple[int, TextDocument]]:
    """A whole file is one document, in pieces that end where a line does and the next begins with a word."""
    size = path.stat().st_size
    if size == 0:
        yield 0, _empty(path, skips=skips)
        return
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
                text = text.removeprefix(MARK) if at == 0 else text
                at, left = at + end, left[end:]
                if text.strip() or at < size:
                    yield at, TextDocument(text, str(path), special=at == end, goes_on=at < size)
                elif after == 0 and at == end:
                    yield at, _empty(path, skips=skips)
            if not more:
                return


def _empty(path: Path, *, skips: bool) -> TextDocument:
    if not skips:
        raise UserError(f"{path}:1: the document is empty; allowed: some text, {SKIPS}")
    return TextDocument("", f"{path}:1", left_out=EMPTY)


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


def _json_lines(path: Path, document: Made, after: int) -> Iterator[tuple[int, TextDocument]]:
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if number <= after:
                continue
            place = f"{path}:{number}"
            if not line.strip():
                yield number, TextDocument("", place, left_out=BLANK)
                continue
            text = _decoded(line, path, partial(int, number)).removeprefix(MARK)
            yield number, document(_parsed(text, place, "one object a line"), place)


def _begins_with(path: Path, mark: bytes) -> bool:
    """Whether the first character that is no space is ``mark``."""
    with path.open("rb") as stream:  # by pieces: all may stand in one line
        text = stream.read(KIB).removeprefix(MARK.encode()).lstrip()
        while not text and (piece := stream.read(KIB)):
            text = piece.lstrip()
    return text.startswith(mark)


def _parsed(text: str, place: str, allowed: str) -> Any:
    """The data of a JSON text. Raises UserError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{place}: is not JSON ({error}); allowed: {allowed}") from None
    except RecursionError:
        raise UserError(f"{place}: nested too deeply; allowed: {allowed}") from None


def _json_list(path: Path) -> Iterator[Any]:
    """The rows of a file that is one list. Raises UserError."""
    text = _decoded(path.read_bytes(), path, partial(int, 1)).removeprefix(MARK)
    yield from _parsed(text, str(path), "a list of objects, or one object a line")


def _rows(rows: Iterator[Any], path: Path, document: Made, after: int) -> Iterator[tuple[int, TextDocument]]:
    for number, row in enumerate(rows, start=1):
        if number > after:
            yield number, document(row, f"{path}:{number}")


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
    named = opened.schema_arrow.names
    wanted = [name for name in COLUMNS if name in named]
    if not wanted:
        said = printable(", ".join(named))[:160]
        raise UserError(f"{path}: has {f'columns {said}' if said else 'no columns'}; allowed: {ALLOWED}")
    for batch in opened.iter_batches(columns=wanted):
        yield from batch.to_pylist()


def _dataset(path: Path) -> Iterator[Any]:
    """Rows of a saved dataset: its training split, if it has several. Raises UserError."""
    loaded = _loaded(path)
    if isinstance(loaded, Mapping):
        if SPLIT not in loaded:
            raise UserError(f"{path}: has {', '.join(loaded)}; allowed: one named {SPLIT}, or the folder of one split")
        loaded = loaded[SPLIT]
    yield from loaded


def _loaded(path: Path) -> Any:
    """A saved dataset, or its parts by name. Raises UserError."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise UserError(f"{path}: datasets reads it and is not installed: pip install datasets") from None
    try:
        return load_from_disk(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises what its parts do
        said = printable(str(error)).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: is not a saved dataset ({said[:160]})") from None

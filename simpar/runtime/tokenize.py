"""A folder of tokens from files of text: streamed, resumable, the same bytes whatever was interrupted. No torch here.

``tokens.bin`` has the tokens of all documents one behind the other, ``ends.bin`` where each ends (int64),
``counted.bin`` whether a token counts in the loss (a byte each; only where some do not), ``tokens.json`` what they were
made of. Held-out documents are in the folder ``validation``, in the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from simpar import files
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable
from simpar.runtime.chat import ChatTemplate
from simpar.runtime.documents import SKIPS, SourceFile, check_text, count_unread, is_plain, list_sources, read
from simpar.runtime.job import RunJob
from simpar.runtime.rows import UNCOUNTED, TextDocument
from simpar.runtime.tokenizer import BYTES, TokenizerFiles, digest_of
from simpar.units import MIB, Ints

MANIFEST, PROGRESS, VALIDATION = "tokens.json", "progress.json", "validation"
TOKENS, ENDS, COUNTED = "tokens.bin", "ends.bin", "counted.bin"
VERSION = 1
AT_ONCE, AT_ONCE_CHARACTERS = 512, 4 * MIB
"""Documents, and characters, that are encoded together, by the tokenizer's own threads."""
BYTE_VALUES = 256
KEPT_EVERY_S = 1.0
"""Seconds between two notes of how far a call has come: it waits for the disk each time."""
DIGITS = 12
"""Of a digest, in the name of a folder."""
TO_16_BITS = 1 << 16
Flags = NDArray[np.uint8]


class TokenManifest(Strict):
    """What a folder of tokens has: their ``dtype``, the size of their ``vocabulary``, how many, of how many documents.

    ``end`` is the token behind every document (None: none); ``counted``: only some tokens count in the loss.
    ``made_of`` is a digest of tokenizer, sources and options, ``tokenizer`` of the numbers of tokens (None: not kept).
    ``left_out`` says how much of the text has no tokens, by what it is.
    """

    SOURCE: ClassVar[str] = MANIFEST
    version: int = VERSION
    dtype: str
    vocabulary: int
    tokens: int
    documents: int
    end: int | None
    counted: bool
    made_of: str
    tokenizer: str | None = None
    left_out: dict[str, int] = Field(default_factory=dict)

    @staticmethod
    def load(folder: Path) -> TokenManifest:
        """The manifest of a folder. Raises UserError if it is none of tokens, or not finished."""
        if not (folder / MANIFEST).is_file():
            half = " (unfinished: the same simpar tokenize goes on)" if (folder / PROGRESS).is_file() else ""
            raise UserError(f"{folder}: has no {MANIFEST}{half}; allowed: a folder that simpar tokenize wrote")
        loaded = files.load(folder / MANIFEST)
        if isinstance(loaded.data, dict) and loaded.data.get("version") != VERSION:
            raise UserError(f"{folder / MANIFEST}: version = {loaded.data.get('version')}: allowed: {VERSION}")
        return files.parse(TokenManifest, loaded)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer at work: ``name`` as it was given, ``end`` the token behind documents, ``size`` of its vocabulary.

    ``digest`` is that of all its files, ``numbers`` that of the numbers of its tokens.
    """

    name: str
    size: int
    end: int | None
    digest: str
    numbers: str
    render: ChatTemplate
    library: Any = None

    @staticmethod
    def open(name: str) -> Encoder:
        """The encoder of a folder, of a tokenizer.json, or of bytes. Raises UserError."""
        if name == BYTES:
            return Encoder(name, BYTE_VALUES, None, BYTES, BYTES, ChatTemplate.of(name, None))
        own = TokenizerFiles.of(name)
        known = own.ids()
        end = own.end(known)
        digest = hashlib.sha256()
        for path in (own.definition, *own.beside):
            digest.update(path.read_bytes())
        return Encoder(
            name, max(known.values()) + 1, None if end is None else end[1], digest.hexdigest(),
            digest_of(known), ChatTemplate.of(name, own), _library(own.definition),
        )  # fmt: skip

    def encode(self, documents: Sequence[TextDocument]) -> Iterator[tuple[Ints, Flags]]:
        """Tokens of each document with its end, and which of them count in the loss: int64[n] and uint8[n]."""
        if self.library is None:
            for document in documents:
                data = np.frombuffer(document.text.encode(), dtype=np.uint8).astype(np.int64)
                starts = np.repeat(np.arange(len(document.text)), [len(each.encode()) for each in document.text])
                yield self._finished(document, data, np.stack([starts, starts + 1], axis=1))
            return
        encoded: dict[int, Any] = {}
        for special in (False, True):
            chosen = [number for number, each in enumerate(documents) if each.special == special]
            texts = [documents[number].text for number in chosen]
            encoded |= zip(chosen, self.library.encode_batch(texts, add_special_tokens=special), strict=True)
        for number, document in enumerate(documents):
            result = encoded[number]
            spans = np.array(result.offsets, dtype=np.int64).reshape(-1, 2)
            yield self._finished(document, np.array(result.ids, dtype=np.int64), spans)

    def _finished(self, document: TextDocument, ids: Ints, spans: Ints) -> tuple[Ints, Flags]:
        """Tokens and what counts, with the end; ``spans`` int64[n, 2] are those of the tokens' characters."""
        counts = np.ones(len(ids), dtype=np.uint8)
        if document.counted is not None:
            counts = np.zeros(len(ids), dtype=np.uint8)
            for first, last in document.counted:
                counts[(spans[:, 1] > first) & (spans[:, 0] < last)] = 1  # also a token that begins in the prompt
        ends = self.end is not None and len(ids) > 0 and ids[-1] == self.end
        if document.goes_on:
            return (ids[:-1], counts[:-1]) if ends and document.special else (ids, counts)
        if self.end is None:
            return ids, counts
        if not ends:
            ids, counts = np.append(ids, self.end), np.append(counts, np.uint8(0))
        if document.special:  # the model learns where a text ends; a template has ends of its own
            counts[-1] = 1
        return ids, counts


def _library(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(
            f"--tokenizer {path}: the package tokenizers is not installed; allowed: {BYTES}, or pip install tokenizers"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare exceptions for every fault of the file
        raise UserError(f"{path}: is not a tokenizer.json ({printable(str(error))[:120]})") from None


@dataclass
class Writer:
    """A folder to which tokens are appended; ``sizes`` are those that count, of files that may be longer."""

    folder: Path
    dtype: str
    tokens: int = 0
    documents: int = 0
    counted: bool = False
    _open: list[Any] = field(default_factory=list)

    def resume(self, state: dict[str, Any]) -> None:
        """Go on behind what a progress file says; without one ({}), from the beginning."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, value in state.items():
            setattr(self, name, value)
        sizes = (self.tokens * np.dtype(self.dtype).itemsize, self.documents * 8, self.tokens)
        for name, size in zip((TOKENS, ENDS, COUNTED), sizes, strict=True):
            path = self.folder / name
            path.touch()
            os.truncate(path, size)
            self._open.append(path.open("ab"))

    def add(self, ids: Ints, counts: Flags, *, goes_on: bool) -> None:
        """Append a document, or a piece of it."""
        tokens, ends, counted = self._open
        tokens.write(ids.astype(self.dtype).tobytes())
        counted.write(counts.tobytes())
        self.tokens += len(ids)
        self.counted = self.counted or not counts.all()
        if not goes_on:
            ends.write(np.array([self.tokens], dtype=np.int64).tobytes())
            self.documents += 1

    def state(self) -> dict[str, Any]:
        """What a progress file keeps, after everything has reached the disk."""
        for stream in self._open:
            stream.flush()
            os.fsync(stream.fileno())
        return {"tokens": self.tokens, "documents": self.documents, "counted": self.counted}

    def close(self) -> None:
        """Write what is left, and close the files."""
        self.state()
        for stream in self._open:
            stream.close()

    def finish(self, encoder: Encoder, made_of: str, left_out: dict[str, int]) -> TokenManifest:
        """Write what the closed files are, and what was left out of them."""
        if not self.counted:
            (self.folder / COUNTED).unlink()
        result = TokenManifest(
            dtype=self.dtype, vocabulary=encoder.size, tokens=self.tokens, documents=self.documents, end=encoder.end,
            counted=self.counted, made_of=made_of, tokenizer=encoder.numbers, left_out=left_out,
        )  # fmt: skip
        files.write_atomic(self.folder / MANIFEST, result.model_dump_json(indent=2) + "\n")
        return result


@dataclass(frozen=True)
class TokenizeOptions:
    """What beside text and tokenizer decides which tokens are written.

    ``validation`` is the share of documents that are held out; ``all_counted``: prompts count in the loss, too;
    ``skips`` documents with nothing to train on, which are refused without it.
    """

    validation: float = 0.0
    all_counted: bool = False
    skips: bool = False


def tokenize(names: Sequence[str], tokenizer: str, folder: Path, options: TokenizeOptions) -> TokenManifest:
    """Write a folder of tokens, or go on with it, or find that it is there; returns its manifest. Raises UserError."""
    if not 0 <= options.validation < 1:
        raise UserError(f"--validation {options.validation:g}: allowed: 0 or more, less than 1")
    sources, encoder = list_sources(names), Encoder.open(tokenizer)
    made_of = _digest(sources, encoder, options)
    if (folder / MANIFEST).is_file():
        done = TokenManifest.load(folder)
        if done.made_of != made_of:
            raise UserError(f"{folder}: has tokens of other text, tokenizer or options; allowed: a new folder")
        return done
    strict = _digest(sources, encoder, replace(options, skips=False))
    with _alone_in(folder):
        return _tokenized(names, sources, encoder, folder, options, made_of, begun_by=(made_of, strict))


def _tokenized(
    names: Sequence[str], sources: Sequence[SourceFile], encoder: Encoder, folder: Path, options: TokenizeOptions,
    made_of: str, *, begun_by: tuple[str, str],
) -> TokenManifest:  # fmt: skip
    progress = _progress(folder, begun_by)
    dtype = "uint16" if encoder.size <= TO_16_BITS else "uint32"
    writers = [Writer(folder, dtype)]
    writers += [Writer(folder / VALIDATION, dtype)] if options.validation else []
    for writer, state in zip(writers, progress.get("writers") or [{}] * len(writers), strict=True):
        writer.resume(state)
    left_out = Counter(progress.get("left_out", {}))
    first, kept = (progress.get("source", 0), progress.get("position", 0)), time.monotonic()
    _keep(folder, made_of, first, writers, left_out)
    try:
        for number, source in enumerate(sources[first[0] :], start=first[0]):
            after = first[1] if number == first[0] else 0
            for position, batch in batches(read(source, encoder.render, after, skips=options.skips)):
                for document, ids, counts in encode_batch(batch, encoder, left_out, skips=options.skips):
                    _write(document, ids, counts, writers, options)
                if time.monotonic() - kept > KEPT_EVERY_S:
                    _keep(folder, made_of, (number, position), writers, left_out)
                    kept = time.monotonic()
    finally:
        for writer in writers:
            writer.close()
    held_out = [writer.finish(encoder, made_of, {}) for writer in writers[1:]]
    done = writers[0].finish(encoder, made_of, count_unread(names) | dict(sorted(left_out.items())))
    if fault := _without_documents(names, done, held_out, options):
        for each in (folder, folder / VALIDATION):
            (each / MANIFEST).unlink(missing_ok=True)
        raise UserError(fault)
    (folder / PROGRESS).unlink(missing_ok=True)
    return done


def _without_documents(
    names: Sequence[str], done: TokenManifest, held_out: Sequence[TokenManifest], options: TokenizeOptions
) -> str:
    """What is wrong where a part has no documents; "" if each has some."""
    if not any(each.documents for each in (done, *held_out)):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{names[0]}{more}: no documents; allowed: a text with some"
    parts = ((done, "are left to train on"), *((each, "are held out") for each in held_out))
    share = next((share for each, share in parts if not each.documents), "")
    return f"--validation {options.validation:g}: no documents {share}; allowed: another share" if share else ""


def _digest(sources: Sequence[SourceFile], encoder: Encoder, options: TokenizeOptions) -> str:
    parts = [[str(each.path.resolve()), each.size, each.changed_ns] for each in sources]
    stated = {key: value for key, value in asdict(options).items() if key != "skips" or value}
    said = json.dumps([VERSION, parts, encoder.digest, stated])
    return hashlib.sha256(said.encode()).hexdigest()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A folder that no other process writes meanwhile: two would append to the same files. Raises UserError."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(
            f"{folder}: another process writes tokens there; allowed: when it has ended, or a new folder"
        ) from None
    finally:
        os.close(held)


def _progress(folder: Path, begun_by: tuple[str, ...]) -> dict[str, Any]:
    """How far an interrupted call came, one of any of these digests; {} if there was none, or if it kept nothing.

    A call that refused what the next one skips left nothing out until then. Raises UserError for anything else in the
    folder.
    """
    path = folder / PROGRESS
    if path.is_file():
        loaded = files.load(path).data
        if isinstance(loaded, dict) and loaded.get("made_of") in begun_by:
            return loaded
        if isinstance(loaded, dict) and (loaded.get("source"), loaded.get("position")) == (0, 0):
            shutil.rmtree(folder / VALIDATION, ignore_errors=True)
            return {}
        raise UserError(f"{folder}: has unfinished tokens of other text, tokenizer or options; allowed: a new folder")
    if any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty and has no {MANIFEST}; allowed: a new folder")
    return {}


def _keep(
    folder: Path, made_of: str, until: tuple[int, int], writers: Sequence[Writer], left_out: Counter[str]
) -> None:
    """Note how far a call has come: the number of the source, and the position behind its last document."""
    states = [writer.state() for writer in writers]
    said = {"made_of": made_of, "source": until[0], "position": until[1], "writers": states, "left_out": left_out}
    files.write_atomic(folder / PROGRESS, json.dumps(said) + "\n")


def batches(documents: Iterator[tuple[int, TextDocument]]) -> Iterator[tuple[int, list[TextDocument]]]:
    """Documents some at a time, with the position behind the last."""
    batch: list[TextDocument] = []
    characters = position = 0
    for position, document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) >= AT_ONCE or characters >= AT_ONCE_CHARACTERS:
            yield position, batch
            batch, characters = [], 0
    if batch:
        yield position, batch


def encode_batch(
    batch: Sequence[TextDocument], encoder: Encoder, left_out: Counter[str], *, skips: bool
) -> Iterator[tuple[TextDocument, Ints, Flags]]:
    """Documents with their tokens, and which of these count; what is left out is added to ``left_out``.

    Raises UserError for a document without a token in the loss, unless ``skips``.
    """
    left_out.update(each.left_out for each in batch if each.left_out)
    wanted = [each for each in batch if not each.left_out]
    for document, (ids, counts) in zip(wanted, encoder.encode(wanted), strict=True):
        if counts.any():
            yield document, ids, counts
        elif skips and not document.is_piece:
            left_out[UNCOUNTED] += 1
        else:
            allowed = f"a completion of at least one token, {SKIPS}"
            raise UserError(f"{document.place}: has no token in the loss; allowed: {allowed}")


def _write(
    document: TextDocument, ids: Ints, counts: Flags, writers: Sequence[Writer], options: TokenizeOptions
) -> None:
    writer = writers[-1 if _held_out(sum(each.documents for each in writers), options.validation) else 0]
    writer.add(ids, np.ones_like(counts) if options.all_counted else counts, goes_on=document.goes_on)


def _held_out(number: int, share: float) -> bool:
    """Whether a document is held out, by its number alone."""
    digest = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2.0**64


def tokenised(job: RunJob) -> RunJob:
    """The job with its text as folders of tokens in its own folder, so that no rank encodes any. Raises UserError.

    A plain text whose tokens are its bytes stays as it is.
    """
    data = job.data
    if data.kind != "text" or data.path is None:
        return job
    tokenizer = data.tokenizer or BYTES
    if tokenizer == BYTES and is_plain(Path(data.path)) and not data.validation:
        for path in filter(None, (data.path, job.measuring.held_out)):
            check_text(Path(path))
        return job
    made: dict[str, Any] = {"kind": "tokens", "path": str(_within(job, data.path, data.validation))}
    measuring, held_out = job.measuring, job.measuring.held_out
    if held_out is not None:
        measuring = measuring.model_copy(update={"held_out": str(_within(job, held_out, 0.0))})
    return job.model_copy(update={"data": data.model_copy(update=made), "measuring": measuring})


def _within(job: RunJob, path: str, validation: float) -> Path:
    """The folder of a text's tokens within the folder of a job, made if it is not there."""
    options = TokenizeOptions(validation, all_counted=job.data.loss_on == "all", skips=job.data.skip_empty)
    tokenizer = job.data.tokenizer or BYTES
    digest = _digest(list_sources([path]), Encoder.open(tokenizer), options)
    folder = Path(job.folder) / f"tokens-{digest[:DIGITS]}"
    tokenize([path], tokenizer, folder, options)
    return folder

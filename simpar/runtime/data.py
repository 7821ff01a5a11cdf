"""Training data: samples by number, in an order that is a pure function of the seed.

Sample i of a run is sample p(i) of the source, where p shuffles every epoch by a keyed permutation that is evaluated
for single numbers. No list of indices is kept, a run can continue at any step, and every data-parallel rank draws its
own part of each global batch.
"""

import hashlib
import math
from collections.abc import Sized
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.blend import Turns
from simpar.runtime.indexed import IndexedTokens, prefix_of
from simpar.runtime.job import Data
from simpar.runtime.tokenize import COUNTED, ENDS, MANIFEST, TOKENS, VALIDATION, TokenManifest
from simpar.units import MIB, Ints

ROUNDS = 4
STRIDES = 7
IGNORED_TARGET = -100  # of a token that does not count in the loss
UNBOUNDED_LENGTH = 1 << 40  # length of a source without an end
SPLITMIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class SampleSource(Protocol):
    """Samples of ``seq_len`` + 1 tokens by number."""

    def drawn(self, position: Ints, seed: int) -> Ints:
        """Numbers of the samples of a run by their position in it: int64[n]."""

    def __len__(self) -> int:
        """Number of samples in an epoch."""

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]."""

    @property
    def masked(self) -> bool:
        """Whether some tokens do not count in the loss."""

    def wanted(self, index: int) -> Ints:
        """The sample as targets: tokens that do not count are IGNORED_TARGET."""


class Shuffled(Sized):
    """A source whose samples a run draws in an order that is shuffled anew every epoch."""

    def drawn(self, position: Ints, seed: int) -> Ints:
        """Numbers of the samples of a run by their position in it: int64[n]."""
        return shuffle(position, len(self), str(seed))


@dataclass(frozen=True)
class Synthetic(Shuffled):
    """Counting sequences with random start and stride: free, endless, and learnable."""

    vocab: int
    seq_len: int
    seed: int

    def __len__(self) -> int:
        return UNBOUNDED_LENGTH

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]."""
        random = np.random.Generator(np.random.Philox(key=[self.seed, index]))
        start, stride = random.integers(self.vocab), 1 + random.integers(STRIDES)
        return np.asarray((start + stride * np.arange(self.seq_len + 1)) % self.vocab, dtype=np.int64)

    masked = False

    def wanted(self, index: int) -> Ints:
        """The sample itself: every token counts."""
        return self.sample(index)


@dataclass(frozen=True)
class TokenFile(Shuffled):
    """Token numbers in one flat binary file, mapped into memory; adjacent samples share one token.

    ``counted`` says which tokens count in the loss (None: all).
    """

    tokens: NDArray[np.integer]
    seq_len: int
    vocab: int
    name: str
    counted: NDArray[np.integer] | None = None

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_len

    @property
    def masked(self) -> bool:
        """Whether some tokens do not count in the loss."""
        return self.counted is not None

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]. Raises UserError for a token beyond the vocabulary."""
        start = index * self.seq_len
        return self.piece(start, start + self.seq_len + 1)

    def wanted(self, index: int) -> Ints:
        """The sample as targets."""
        start = index * self.seq_len
        return self.targets(start, start + self.seq_len + 1)

    def piece(self, start: int, end: int) -> Ints:
        """Tokens from one position to another. Raises UserError for a token beyond the vocabulary."""
        result = np.asarray(self.tokens[start:end], dtype=np.int64)
        if result.max() >= self.vocab or result.min() < 0:
            at = start + int(np.argmax((result >= self.vocab) | (result < 0)))
            raise UserError(
                f"{self.name}: token {self.tokens[at]} at position {at}; "
                f"allowed: 0 to {self.vocab - 1}, the model's vocabulary"
            )
        return result

    def targets(self, start: int, end: int) -> Ints:
        """The same tokens as targets."""
        result = self.piece(start, end)
        return result if self.counted is None else np.where(self.counted[start:end], result, IGNORED_TARGET)


@dataclass(frozen=True)
class PaddedDocuments(Shuffled):
    """Documents of a file, each in a sequence of its own: cut at its end, or padded, which does not count.

    Attention is causal, so that no token of a document sees the padding behind it. ``ends`` are the documents'.
    """

    file: TokenFile
    ends: NDArray[np.integer]

    masked = True

    def __len__(self) -> int:
        return len(self.ends)

    def sample(self, index: int) -> Ints:
        """One document: int64[seq_len + 1], its last token repeated as padding."""
        result = self.file.piece(*self._bounds(index))
        return np.pad(result, (0, self.file.seq_len + 1 - len(result)), mode="edge")

    def wanted(self, index: int) -> Ints:
        """The document as targets."""
        result = self.file.targets(*self._bounds(index))
        return np.pad(result, (0, self.file.seq_len + 1 - len(result)), constant_values=IGNORED_TARGET)

    def _bounds(self, index: int) -> tuple[int, int]:
        start = int(self.ends[index - 1]) if index else 0
        return start, min(int(self.ends[index]), start + self.file.seq_len + 1)


@dataclass(frozen=True)
class SeparateDocuments(Shuffled):
    """Sequences cut out of a file as of :class:`TokenFile`, whose documents are kept apart.

    What would be predicted across the beginning of a document does not count. ``ends`` are the documents'.
    """

    file: TokenFile
    ends: NDArray[np.integer]

    masked = apart = True

    def __len__(self) -> int:
        return len(self.file)

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]."""
        return self.file.sample(index)

    def wanted(self, index: int) -> Ints:
        """The sample as targets."""
        result = np.array(self.file.wanted(index))
        result[self._starts(index)] = IGNORED_TARGET
        return result

    def positions(self, index: int) -> Ints:
        """Positions of the sample's tokens but the last in their documents, or in what the sample has of them."""
        length = self.file.seq_len
        starts = np.concatenate([[0], (inner := self._starts(index))[inner < length]])
        at = np.arange(length)
        return np.asarray(at - starts[np.searchsorted(starts, at, side="right") - 1], dtype=np.int64)

    def _starts(self, index: int) -> Ints:
        """Where documents begin inside a sample, behind its first token."""
        first, length = index * self.file.seq_len, self.file.seq_len
        low, high = np.searchsorted(self.ends, [first + 1, first + length + 1])
        return np.asarray(self.ends[low:high], dtype=np.int64) - first


@dataclass(frozen=True)
class Blend:
    """Several sources, of which each has its share: ``turns`` says whose sequence is next.

    Without ``turns`` they are one source, whose sequences are shuffled together. A sample's number is that in its
    source behind the ones of the sources before it.
    """

    sources: tuple[SampleSource, ...]
    turns: Turns | None

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def _starts(self) -> Ints:
        """The number of each source's first sample, and of all samples: int64[sources + 1]."""
        return np.cumsum([0, *map(len, self.sources)])

    @property
    def masked(self) -> bool:
        """Whether some tokens do not count in the loss."""
        return any(each.masked for each in self.sources)

    @property
    def apart(self) -> bool:
        """Whether documents of a sequence are kept apart."""
        return all(isinstance(each, SeparateDocuments) for each in self.sources)

    def drawn(self, position: Ints, seed: int) -> Ints:
        """Numbers of the samples of a run by their position in it: int64[n]."""
        if self.turns is None:
            return shuffle(position, len(self), str(seed))
        source, place = self.turns.at(position)
        result = np.empty_like(position)
        for number, each in enumerate(self.sources):
            mine = source == number
            result[mine] = self._starts[number] + shuffle(place[mine], len(each), f"{seed} source {number}")
        return result

    def count(self, until: int, seed: int) -> Ints:
        """How many of a run's samples before position ``until`` are of each source: int64[sources]."""
        if self.turns is not None:
            return self.turns.until(until)
        whole = until // len(self)
        result = whole * np.diff(self._starts)
        for start in range(whole * len(self), until, MIB):  # of the epoch that is not whole
            index = self.drawn(np.arange(start, min(start + MIB, until)), seed)
            result = result + np.bincount(self._source_of(index), minlength=len(self.sources))
        return np.asarray(result, dtype=np.int64)

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]."""
        source, number = self._at(index)
        return source.sample(number)

    def wanted(self, index: int) -> Ints:
        """The sample as targets."""
        source, number = self._at(index)
        return source.wanted(number)

    def positions(self, index: int) -> Ints:
        """Positions of a sample's tokens but the last in documents that are kept ``apart``."""
        source, number = self._at(index)
        if not isinstance(source, SeparateDocuments):
            raise TypeError(f"documents of {type(source).__name__} have no positions")
        return source.positions(number)

    def _source_of(self, index: Ints) -> Ints:
        return np.asarray(np.searchsorted(self._starts, index, side="right") - 1)

    def _at(self, index: int) -> tuple[SampleSource, int]:
        number = int(self._source_of(np.array(index)))
        return self.sources[number], index - int(self._starts[number])


def open_source(data: Data, training: Training, vocab: int, seed: int, *, held_out: bool = False) -> SampleSource:
    """The source that a job names, or what is ``held_out`` of it: of a folder, or of an index by ``data.validation``.

    Raises UserError for a file that is missing or too short.
    """
    if data.kind == "synthetic":
        return Synthetic(vocab, training.seq_len, seed)
    if data.blend:
        sources = tuple(open_source(each, training, vocab, seed, held_out=held_out) for each in data.parts)
        weights = [each.weight for each in data.blend if each.weight is not None]
        return Blend(sources, Turns.of(weights) if weights else None)
    path = Path(str(data.path))
    if path.is_dir():
        return _folder(path / VALIDATION if held_out else path, data, training, vocab)
    if data.kind == "tokens" and (prefix := prefix_of(path)) is not None:
        indexed = IndexedTokens.open(prefix)
        if data.validation:
            indexed = indexed.split(data.validation)[held_out]
        name = f"{prefix}, held out" if held_out else str(prefix)
        return _of_documents(TokenFile(indexed.tokens, training.seq_len, vocab, name), indexed.ends, data)
    for flag, wanted in (("--no-pack", not data.pack), ("--apart", data.apart)):
        if wanted:
            allowed = "a folder of simpar tokenize, or PREFIX.bin with PREFIX.idx"
            raise UserError(f"{path}: {flag}: its documents are not known; allowed: {allowed}")
    tokens = _mapped(path, np.dtype("uint8" if data.kind == "text" else data.dtype))
    source = TokenFile(tokens, training.seq_len, vocab, str(path))
    _check_length(source)
    return source


def count_drawn(data: Data, training: Training, seed: int, steps: int) -> list[dict[str, Any]]:
    """Of each source of a blend its path, weight, sequences, how many of these ``steps`` draw, and epochs; else [].

    Raises UserError for files that cannot be read.
    """
    source = open_source(data, training, UNBOUNDED_LENGTH, seed) if data.blend and steps else None
    if not isinstance(source, Blend):
        return []
    counts = source.count(steps * training.global_batch, seed).tolist()
    return [
        {
            "path": part.path,
            "weight": part.weight,
            "sequences": len(each),
            "drawn": count,
            "share": count / sum(counts),
            "epochs": count / len(each),
        }
        for part, each, count in zip(data.blend, source.sources, counts, strict=True)
    ]


def _of_documents(source: TokenFile, ends: NDArray[np.integer], data: Data) -> SampleSource:
    """Documents one behind the other as the data wants them. Raises UserError for too few tokens."""
    if not data.pack:
        return PaddedDocuments(source, ends)
    _check_length(source)
    return SeparateDocuments(source, ends) if data.apart else source


def _check_length(source: TokenFile) -> None:
    if len(source) < 1:
        raise UserError(
            f"{source.name}: {len(source.tokens)} tokens; allowed: at least seq_len + 1 = {source.seq_len + 1}"
        )


def _folder(path: Path, data: Data, training: Training, vocab: int) -> SampleSource:
    """The source of a folder that simpar tokenize wrote. Raises UserError."""
    manifest = TokenManifest.load(path)
    if manifest.vocabulary > vocab:
        raise UserError(
            f"{path}: was made with a tokenizer of {manifest.vocabulary} tokens, the model's vocabulary has {vocab}; "
            "allowed: the model's tokenizer"
        )
    tokens = _mapped(path / TOKENS, np.dtype(manifest.dtype))
    counted = _mapped(path / COUNTED, np.dtype("uint8")) if manifest.counted else None
    ends = _mapped(path / ENDS, np.dtype("int64"))
    sizes = (len(tokens), len(ends), len(tokens) if counted is None else len(counted))
    if sizes != (manifest.tokens, manifest.documents, manifest.tokens):
        raise UserError(
            f"{path}: has {len(tokens)} tokens of {len(ends)} documents, {MANIFEST} says {manifest.tokens} of "
            f"{manifest.documents}; allowed: the files as simpar tokenize wrote them"
        )
    return _of_documents(TokenFile(tokens, training.seq_len, vocab, str(path), counted), ends, data)


def _mapped(path: Path, dtype: np.dtype[np.integer]) -> NDArray[np.integer]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if size == 0:
        raise UserError(f"{path}: is empty; allowed: {dtype.name} numbers of tokens")
    if size % dtype.itemsize:
        raise UserError(f"{path}: {size} bytes; allowed: whole {dtype.name} numbers of {dtype.itemsize} bytes")
    return np.memmap(path, dtype=dtype, mode="r")


def shuffle(position: Ints, size: int, key: str) -> Ints:
    """What a run draws of ``size`` samples at positions in it: each once an epoch, in another order each time."""
    epoch = position // size
    result = np.empty_like(position)
    for number in np.unique(epoch).tolist():
        here = epoch == number
        result[here] = permute(position[here] % size, size, f"{key} epoch {number}")
    return result


def permute(index: Ints, size: int, key: str) -> Ints:
    """A keyed permutation of 0..size-1, applied to every index: a Feistel network, repeated until in range.

    Source: Black and Rogaway 2002, Ciphers with arbitrary finite domains, cycle walking.
    """
    half = max(1, math.ceil(math.log2(max(size, 2)) / 2))
    result = np.array(index, dtype=np.int64)
    outside = np.ones(len(result), dtype=bool)
    while outside.any():
        result[outside] = _feistel(result[outside], half, key)
        outside = result >= size
    return result


def _feistel(value: Ints, half: int, key: str) -> Ints:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(ROUNDS):
        left, right = right, left ^ (_mix(right, f"{key} {number}") & mask)
    return left << half | right


def _mix(value: Ints, key: str) -> Ints:
    """A 64-bit hash [splitmix64, Steele et al. 2014], without its lowest bit."""
    salt = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        x = value.astype(np.uint64) + np.uint64(salt)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(SPLITMIX[0])
        x = (x ^ (x >> np.uint64(27))) * np.uint64(SPLITMIX[1])
        return np.asarray((x ^ (x >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


@dataclass(frozen=True)
class Loader:
    """The part of every global batch for one of ``ranks`` data-parallel ranks."""

    source: SampleSource
    global_batch: int
    rank: int
    ranks: int
    seed: int

    def indices(self, step: int) -> Ints:
        """Numbers of this rank's samples in the source: int64[global_batch / ranks]."""
        mine = self.global_batch // self.ranks
        position = step * self.global_batch + self.rank * mine + np.arange(mine)
        return self.source.drawn(position, self.seed)

    def batch(self, step: int) -> Ints:
        """Samples of a step on this rank: int64[global_batch / ranks, seq_len + 1]."""
        return np.stack([self.source.sample(index) for index in self.indices(step).tolist()])

    def positions(self, step: int) -> Ints | None:
        """Positions in documents that are kept apart: int64[global_batch / ranks, seq_len]; None if none are."""
        if not isinstance(self.source, SeparateDocuments | Blend) or not self.source.apart:
            return None
        return np.stack([self.source.positions(index) for index in self.indices(step).tolist()])

    def targets(self, step: int) -> tuple[Ints, float]:
        """Targets of a step on this rank, as :meth:`batch`, and all tokens of the global batch over those that count.

        By this factor the mean over all tokens, in which others count as zero, becomes the mean over those that count.
        """
        if not self.source.masked:
            return self.batch(step), 1.0
        mine = np.stack([self.source.wanted(index) for index in self.indices(step).tolist()])
        whole = replace(self, rank=0, ranks=1).indices(step).tolist()
        counted = sum(int((self.source.wanted(index)[1:] != IGNORED_TARGET).sum()) for index in whole)
        return mine, len(whole) * (mine.shape[1] - 1) / max(counted, 1)

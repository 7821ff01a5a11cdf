"""Training data: samples by number, in an order that is a pure function of the seed.

Sample i of a run is sample p(i) of the source, where p shuffles every epoch by a keyed permutation that is evaluated
for single numbers. No list of indices is kept, a run can continue at any step, and every data-parallel rank draws its
own part of each global batch.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable
from simpar.runtime.job import Data
from simpar.runtime.tokenizer import BYTES, TokenizerFiles
from simpar.units import Ints

ROUNDS = 4
STRIDES = 7
UNBOUNDED_LENGTH = 1 << 40  # length of a source without an end
SPLITMIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class SampleSource(Protocol):
    """Samples of ``seq_len`` + 1 tokens by number."""

    def __len__(self) -> int:
        """Number of samples in an epoch."""

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]."""


@dataclass(frozen=True)
class Synthetic:
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


@dataclass(frozen=True)
class TokenFile:
    """Token numbers in one flat binary file, mapped into memory; adjacent samples share one token."""

    tokens: NDArray[np.integer]
    seq_len: int
    vocab: int
    name: str

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.seq_len

    def sample(self, index: int) -> Ints:
        """One sample: int64[seq_len + 1]. Raises UserError for a token beyond the vocabulary."""
        start = index * self.seq_len
        result = np.asarray(self.tokens[start : start + self.seq_len + 1], dtype=np.int64)
        if result.max() >= self.vocab or result.min() < 0:
            at = start + int(np.argmax((result >= self.vocab) | (result < 0)))
            raise UserError(
                f"{self.name}: token {self.tokens[at]} at position {at}; "
                f"allowed: 0 to {self.vocab - 1}, the model's vocabulary"
            )
        return result


def open_source(data: Data, training: Training, vocab: int, seed: int) -> SampleSource:
    """The source that a job names. Raises UserError for a file that is missing or too short."""
    if data.kind == "synthetic":
        return Synthetic(vocab, training.seq_len, seed)
    path = Path(str(data.path))
    tokens = _encoded(path, data.tokenizer) if data.kind == "text" else _mapped(path, np.dtype(data.dtype))
    source = TokenFile(tokens, training.seq_len, vocab, str(path))
    if len(source) < 1:
        raise UserError(f"{path}: {len(tokens)} tokens; allowed: at least seq_len + 1 = {training.seq_len + 1}")
    return source


def _mapped(path: Path, dtype: np.dtype[np.integer]) -> NDArray[np.integer]:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if size == 0 or size % dtype.itemsize:
        raise UserError(f"{path}: {size} bytes; allowed: whole {dtype.name} numbers of {dtype.itemsize} bytes")
    return np.memmap(path, dtype=dtype, mode="r")


def _encoded(path: Path, tokenizer: str | None) -> NDArray[np.integer]:
    """Tokens of a text file: its bytes, or its encoding by a tokenizer.json."""
    if tokenizer in (None, BYTES):
        return _mapped(path, np.dtype("uint8"))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text ({error})") from None
    return np.array(load_tokenizer(str(tokenizer))(text), dtype=np.int64)


def load_tokenizer(name: str) -> Callable[[str], list[int]]:
    """The encoder of a folder's tokenizer.json, or of such a file. Raises UserError if it cannot be loaded."""
    path = str(TokenizerFiles.of(name).definition)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UserError(
            f"--tokenizer {path}: the package tokenizers is not installed; allowed: {BYTES}, or pip install tokenizers"
        ) from None
    try:
        loaded = Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - the library raises bare exceptions for every fault of the file
        raise UserError(f"{path}: is not a tokenizer.json ({printable(str(error))[:120]})") from None
    return lambda text: list(loaded.encode(text).ids)


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
        size = len(self.source)
        epoch = position // size
        result = np.empty_like(position)
        for number in np.unique(epoch).tolist():
            here = epoch == number
            result[here] = permute(position[here] % size, size, f"{self.seed} epoch {number}")
        return result

    def batch(self, step: int) -> Ints:
        """Samples of a step on this rank: int64[global_batch / ranks, seq_len + 1]."""
        return np.stack([self.source.sample(index) for index in self.indices(step).tolist()])

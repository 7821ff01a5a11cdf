"""Token numbers as Megatron-Core's indexed datasets keep them: ``PREFIX.bin`` and ``PREFIX.idx``. No torch here.

The index [Megatron-LM, megatron/core/datasets/indexed_dataset.py] is little-endian: 9 bytes of magic, the version
(uint64), the code of the tokens' dtype (uint8), the numbers s of sequences and d of bounds of documents (uint64), the
sequences' lengths in tokens (int32[s]) and where they begin in ``PREFIX.bin`` in bytes (int64[s]), and the documents'
bounds as numbers of sequences (int64[d]): 0, then the end of each. Multimodal datasets have int8[s] behind these.
"""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.units import MIB, Ints

BIN, IDX = ".bin", ".idx"
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
FLOATS = {6: "float64", 7: "float32"}
"""Codes of dtypes that hold no numbers of tokens."""
ALLOWED = "PREFIX.bin and PREFIX.idx as Megatron-LM's preprocess_data.py writes them"


def prefix_of(path: Path) -> Path | None:
    """What the names of an indexed dataset's two files begin with; None where a path names none.

    It is named by that or by either file; a ``.bin`` without an index beside it is a flat file.
    """
    if path.suffix == IDX or (path.suffix == BIN and path.with_suffix(IDX).exists()):
        return path.with_suffix("")
    pair = (_beside(path, ending) for ending in (BIN, IDX))
    return path if not path.exists() and any(each.is_file() for each in pair) else None


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.with_name(prefix.name + ending)


@dataclass(frozen=True)
class IndexedTokens:
    """An indexed dataset, mapped into memory: its ``tokens``, and where they end in each document that has any.

    ``ends`` is int64[documents]; ``empty`` counts documents without tokens, which are left out.
    """

    prefix: Path
    tokens: NDArray[np.integer]
    ends: Ints
    empty: int

    @staticmethod
    def open(prefix: Path) -> "IndexedTokens":
        """The dataset of two files. Raises UserError where they are missing or do not fit each other."""
        index, data = _beside(prefix, IDX), _beside(prefix, BIN)
        size = {path: _size(path) for path in (index, data)}
        dtype, sequences, bounds = _header(index, size[index])
        lengths, begins, documents = _tables(index, sequences, bounds)
        tokens = _check_sequences(index, lengths, begins, dtype.itemsize)
        if size[data] != tokens * dtype.itemsize:
            raise UserError(
                f"{data}: {size[data]} bytes; allowed: {tokens * dtype.itemsize}, {tokens} tokens in {dtype.name} as "
                f"{index.name} says"
            )
        ends = _ends(index, documents, begins, tokens, dtype.itemsize)
        kept = np.diff(ends, prepend=0) > 0
        return IndexedTokens(prefix, np.memmap(data, dtype=dtype, mode="r"), ends[kept], int((~kept).sum()))

    def split(self, share: float) -> tuple["IndexedTokens", "IndexedTokens"]:
        """Its documents to train on, and those that are held out: the last ``share`` of them, as Megatron-LM splits.

        Raises UserError where either would have none.
        """
        count = round((1 - share) * len(self.ends))
        if not 0 < count < len(self.ends):
            what = "are held out" if count else "are left to train on"
            raise UserError(
                f"--validation {share:g}: of the {len(self.ends)} documents of {self.prefix} none {what}; allowed: "
                "another share"
            )
        at = int(self.ends[count - 1])
        first = IndexedTokens(self.prefix, self.tokens[:at], self.ends[:count], self.empty)
        return first, IndexedTokens(self.prefix, self.tokens[at:], self.ends[count:] - at, 0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); allowed: {ALLOWED}") from None


def _header(path: Path, size: int) -> tuple[np.dtype[np.integer], int, int]:
    """The tokens' dtype, the number of sequences, and that of bounds of documents. Raises UserError."""
    with path.open("rb") as stream:
        head = stream.read(HEADER.size)
    if not head.startswith(MAGIC):
        raise UserError(f"{path}: begins with {head[: len(MAGIC)]!r}; allowed: {MAGIC!r}, {ALLOWED}")
    if len(head) < HEADER.size:
        raise UserError(f"{path}: ends within its header, after {size} bytes; allowed: the whole file")
    _, version, code, sequences, bounds = HEADER.unpack(head)
    if version != VERSION:
        raise UserError(f"{path}: version {version}; allowed: {VERSION}")
    if code not in DTYPES:
        allowed = ", ".join(f"{number} ({name})" for number, name in DTYPES.items())
        name = f" ({FLOATS[code]}), which holds no tokens" if code in FLOATS else ""
        raise UserError(f"{path}: code of a dtype {code}{name}; allowed: {allowed}")
    whole = HEADER.size + 12 * sequences + 8 * bounds
    if size == whole + sequences and sequences:
        raise UserError(f"{path}: has a mode for every sequence, as multimodal datasets have; allowed: text alone")
    if size != whole:
        raise UserError(
            f"{path}: {size} bytes; allowed: {whole}, of {sequences} sequences and {bounds} bounds of documents"
        )
    if not sequences:
        raise UserError(f"{path}: has no sequences; allowed: some")
    return np.dtype(DTYPES[code]).newbyteorder("<"), sequences, bounds


def _tables(path: Path, sequences: int, bounds: int) -> tuple[Ints, Ints, Ints]:
    """Lengths of sequences in tokens, where they begin in bytes, and bounds of documents, all mapped."""
    at, tables = HEADER.size, []
    for dtype, count in (("<i4", sequences), ("<i8", sequences), ("<i8", bounds)):
        tables.append(
            np.memmap(path, dtype=dtype, mode="r", offset=at, shape=(count,)) if count else np.zeros(0, "<i8")
        )
        at += np.dtype(dtype).itemsize * count
    return tables[0], tables[1], tables[2]


def _check_sequences(path: Path, lengths: Ints, begins: Ints, size: int) -> int:
    """The number of all tokens. Raises UserError for sequences that are not one behind the other."""
    end = 0
    for first in range(0, len(lengths), MIB):  # a piece at a time: an index may have billions
        here = lengths[first : first + MIB].astype(np.int64)
        expected = end + size * np.concatenate([[0], np.cumsum(here)])
        wrong = (here < 0) | (begins[first : first + MIB] != expected[:-1])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise UserError(
                f"{path}: sequence {first + at} has {here[at]} tokens from byte {begins[first + at]}; allowed: 0 or "
                f"more from {expected[at]}, where the one before it ends"
            )
        end = int(expected[-1])
    if not end:
        raise UserError(f"{path}: has no tokens; allowed: some")
    return end // size


def _ends(path: Path, documents: Ints, begins: Ints, tokens: int, size: int) -> Ints:
    """Where each document ends, in tokens: int64[documents]. Raises UserError for bounds that are none."""
    count = len(begins)
    if len(documents) < 2 or documents[0] != 0 or documents[-1] != count or (np.diff(documents) < 0).any():
        raise UserError(f"{path}: bounds of documents; allowed: 0 first, none below the one before it, {count} last")
    result = np.full(len(documents) - 1, tokens, dtype=np.int64)
    inner = documents[1:] < count
    result[inner] = begins[documents[1:][inner]] // size
    return result

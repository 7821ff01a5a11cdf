"""How long documents of a folder of tokens, or of text, are, as scenarios state it. No torch here."""

from pathlib import Path
from typing import Any

import numpy as np

from simpar.errors import UserError
from simpar.runtime.documents import list_sources, read
from simpar.runtime.tokenize import ENDS, MANIFEST, PROGRESS, Encoder, TokenManifest, batches
from simpar.units import Ints, number_of

STATED = 64
"""Lengths that stand for those of all documents: each is as likely as the others."""
BAR = 40


def measure_lengths(
    folder: Path, seq_len: int | None, *, packed: bool = True, tokenizer: str | None = None
) -> dict[str, Any]:
    """Documents as a scenario states them, a histogram in lines of text, and figures in tokens. Raises UserError.

    With a ``tokenizer``, ``folder`` is a file or folder of text instead of tokens. With ``seq_len``, also the share of
    the documents that are longer, and, unless ``packed``, of the tokens that pad.
    """
    lengths = _of_tokens(folder) if tokenizer is None else _of_texts(str(folder), tokenizer)
    result: dict[str, Any] = {
        "documents": {"lengths": representatives(lengths), "packing": "pack" if packed else "pad"},
        "count": len(lengths),
        "tokens": int(lengths.sum()),
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "histogram": _lines(lengths),
    }
    if seq_len is not None:
        result["longer_share"] = float((lengths > seq_len + 1).mean())
        result["histogram"].append(f"longer than {seq_len}: {result['longer_share']:.1%} of the documents")
        if not packed:
            padded = 1 - float(np.minimum(lengths, seq_len + 1).mean()) / (seq_len + 1)
            result["padding_share"] = padded
            result["histogram"].append(f"padding: {padded:.1%} of the tokens of sequences of {seq_len}")
    return result


def _of_tokens(folder: Path) -> Ints:
    if not any((folder / name).is_file() for name in (MANIFEST, PROGRESS)):
        raise UserError(f"{folder}: has no {MANIFEST}; allowed: a folder of simpar tokenize, or text with --tokenizer")
    TokenManifest.load(folder)
    ends: Ints = np.fromfile(folder / ENDS, dtype=np.int64)
    lengths: Ints = ends - np.concatenate([[0], ends[:-1]])
    return lengths


def _of_texts(name: str, tokenizer: str) -> Ints:
    """Tokens of each document of a file or folder of text, with its end. Raises UserError."""
    if (Path(name) / MANIFEST).is_file():
        raise UserError(f"--tokenizer {tokenizer}: {name} has tokens already; allowed: text, or no --tokenizer")
    encoder, lengths, length = Encoder.open(tokenizer), [], 0
    for source in list_sources([name]):
        for _, batch in batches(read(source, encoder.render)):
            for document, (ids, _) in zip(batch, encoder.encode(batch), strict=True):
                length += len(ids)
                if not document.goes_on:
                    lengths.append(length)
                    length = 0
    if not lengths:
        raise UserError(f"{name}: no documents; allowed: a text with some")
    return np.array(lengths, dtype=np.int64)


def representatives(lengths: Ints) -> list[int]:
    """At most STATED lengths with the mean of all: of equal parts of the sorted lengths the mean of each."""
    ordered = np.sort(lengths)
    if len(ordered) <= STATED:
        return [int(each) for each in ordered]
    summed = np.concatenate([[0.0], np.cumsum(ordered)])  # a part may begin and end within a document's share
    ends = np.interp(np.linspace(0, len(ordered), STATED + 1), np.arange(len(summed)), summed)
    return [max(1, round(float(each))) for each in np.diff(ends) * STATED / len(ordered)]


def _lines(lengths: Ints) -> list[str]:
    """A histogram by powers of two."""
    powers = np.floor(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    counts = np.bincount(powers)
    first = int(powers.min())
    count = number_of(len(lengths), "document")
    said = [f"{count}, {lengths.mean():,.1f} tokens in the mean, {int(lengths.max()):,} at the most"]
    for power in range(first, len(counts)):
        bar = "#" * round(BAR * counts[power] / counts.max())
        said.append(f"{2**power:>9,} to {2 ** (power + 1) - 1:>9,}: {counts[power]:>9,} {bar}".rstrip())
    return said

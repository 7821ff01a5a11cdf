"""How long documents of a folder of tokens, or of text, are, as scenarios state it. No torch here."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.documents import count_unread, list_sources, read
from simpar.runtime.indexed import IndexedTokens, prefix_of
from simpar.runtime.rows import tell_counts
from simpar.runtime.tokenize import (
    COUNTED,
    ENDS,
    MANIFEST,
    PROGRESS,
    VALIDATION,
    Encoder,
    Flags,
    TokenManifest,
    batches,
    encode_batch,
)
from simpar.units import Floats, Ints, number_of

STATED = 64
"""Lengths that stand for those of all documents: each is as likely as the others."""
BAR = 40


@dataclass(frozen=True)
class MeasuredDocuments:
    """Tokens of each document: int64[n], how many of them have no target, and what was left out, by what it is.

    Without a target is a document none of whose tokens behind the first counts in the loss, or none within a sequence.
    """

    lengths: Ints
    untargeted: int
    left_out: dict[str, int]
    held_out: int = 0


def measure_lengths(
    folder: Path, seq_len: int | None, *, packed: bool = True, tokenizer: str | None = None, skips: bool = False
) -> dict[str, Any]:
    """Documents as a scenario states them, a histogram in lines of text, and figures in tokens. Raises UserError.

    With a ``tokenizer``, ``folder`` is a file or folder of text instead of tokens, of which ``skips`` leaves out
    documents with nothing to train on. With ``seq_len``, also the share of the documents that are longer, and what a
    run leaves out: tokens at the end that fill no sequence if ``packed``, else those that are cut, and documents
    without a target in their sequence. Those of one folder's ``held_out`` part are counted apart.
    """
    within = None if packed else seq_len
    measured = (
        _of_tokens(folder, within) if tokenizer is None else _of_texts(str(folder), tokenizer, within, skips=skips)
    )
    lengths = measured.lengths
    result: dict[str, Any] = {
        "documents": {"lengths": representatives(lengths), "packing": "pack" if packed else "pad"},
        "count": len(lengths),
        "tokens": int(lengths.sum()),
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "longest": int(lengths.max()),
        "left_out": measured.left_out,
        "held_out": measured.held_out,
        "histogram": _lines(lengths),
    }
    said = result["histogram"]
    if measured.left_out:
        said.append(f"left out: {tell_counts(measured.left_out)}")
    if measured.held_out:
        said.append(f"held out beside these: {number_of(measured.held_out, 'document')}")
    if seq_len is not None:
        result["longer_share"] = float((lengths > seq_len + 1).mean())
        said.append(f"longer than {seq_len}: {result['longer_share']:.1%} of the documents")
        if packed:
            result["tail_tokens"] = tail = (result["tokens"] - 1) % seq_len
            said.append(f"the last {number_of(tail, 'token')} fill no sequence of {seq_len}")
        else:
            kept = np.minimum(lengths, seq_len + 1)
            result["padding_share"] = padded = 1 - float(kept.mean()) / (seq_len + 1)
            result["cut_share"] = cut = 1 - float(kept.sum() / lengths.sum())
            said.append(f"padding: {padded:.1%} of the tokens of sequences of {seq_len}")
            said.append(f"cut: {cut:.1%} of the tokens of documents")
    if not packed:
        result["untargeted"] = measured.untargeted
        where = f" within {seq_len} tokens" if seq_len else ""
        said += [f"nothing to predict{where}: {number_of(measured.untargeted, 'document')}"] * (measured.untargeted > 0)
    return result


def _of_index(prefix: Path, within: int | None) -> MeasuredDocuments:
    """Documents of an indexed dataset, as :func:`_of_tokens`. Raises UserError."""
    indexed = IndexedTokens.open(prefix)
    lengths: Ints = np.diff(indexed.ends, prepend=0)
    targets = (lengths if within is None else np.minimum(lengths, within + 1)) > 1
    left_out = {"documents without tokens": indexed.empty} if indexed.empty else {}
    return MeasuredDocuments(lengths, int((~targets).sum()), left_out)


def _of_tokens(folder: Path, within: int | None) -> MeasuredDocuments:
    """Documents of a folder of tokens, or of an index; ``within``: targets at most so far into each count.

    Raises UserError.
    """
    if not folder.is_dir() and (prefix := prefix_of(folder)) is not None:
        return _of_index(prefix, within)
    if not any((folder / name).is_file() for name in (MANIFEST, PROGRESS)):
        raise UserError(
            f"{folder}: has no {MANIFEST}; allowed: a folder of simpar tokenize, PREFIX.bin with PREFIX.idx, or "
            "text with --tokenizer"
        )
    manifest = TokenManifest.load(folder)
    ends: Ints = np.fromfile(folder / ENDS, dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    lengths: Ints = ends - starts
    last = lengths if within is None else np.minimum(lengths, within + 1)
    targets = last > 1
    if manifest.counted:
        flags = np.memmap(folder / COUNTED, dtype=np.uint8, mode="r")
        targets[targets] = _any_counted(flags, starts[targets] + 1, (starts + last)[targets])
    beside = folder / VALIDATION
    held_out = TokenManifest.load(beside).documents if (beside / MANIFEST).is_file() else 0
    return MeasuredDocuments(lengths, int((~targets).sum()), manifest.left_out, held_out)


def _any_counted(flags: Flags, first: Ints, end: Ints) -> Any:
    """Whether any of the flags from ``first`` to before ``end`` is set, of ranges one behind the other: bool[n]."""
    if not len(first):
        return np.zeros(0, dtype=bool)
    bounds = np.stack([first, np.minimum(end, len(flags) - 1)], axis=1).ravel()  # reduceat wants indices within
    result = np.maximum.reduceat(flags, bounds)[::2].astype(bool)
    result[-1] |= bool(flags[first[-1] : end[-1]].any())
    return result


def _of_texts(name: str, tokenizer: str, within: int | None, *, skips: bool) -> MeasuredDocuments:
    """Documents of a file or folder of text, each with its end. Raises UserError."""
    if (Path(name) / MANIFEST).is_file():
        raise UserError(f"--tokenizer {tokenizer}: {name} has tokens already; allowed: text, or no --tokenizer")
    encoder, left_out = Encoder.open(tokenizer), Counter[str]()
    lengths, length, untargeted, has_target = list[int](), 0, 0, False
    for source in list_sources([name]):
        for _, batch in batches(read(source, encoder.render, skips=skips)):
            for document, ids, counts in encode_batch(batch, encoder, left_out, skips=skips):
                until = None if within is None else max(within + 1 - length, 0)
                has_target = has_target or bool(counts[max(1 - length, 0) : until].any())
                length += len(ids)
                if not document.goes_on:
                    lengths.append(length)
                    untargeted += not has_target
                    length, has_target = 0, False
    if not lengths:
        raise UserError(f"{name}: no documents; allowed: a text with some")
    return MeasuredDocuments(
        np.array(lengths, dtype=np.int64), untargeted, count_unread([name]) | dict(sorted(left_out.items()))
    )


def blended_lengths(parts: Sequence[tuple[Path, float | None]]) -> list[int]:
    """Lengths that stand for those of the documents of several sources, by the weights of these. Raises UserError.

    Weights are of tokens: a source of longer documents has fewer of them. Without weights each document is as likely.
    """
    lengths = [_of_tokens(path, None).lengths for path, _ in parts]
    weights = [weight for _, weight in parts if weight is not None]
    if not weights:
        return representatives(np.concatenate(lengths))
    each = [np.full(len(own), weight / own.sum()) for own, weight in zip(lengths, weights, strict=True)]
    return representatives(np.concatenate(lengths), np.concatenate(each))


def representatives(lengths: Ints, weights: Floats | None = None) -> list[int]:
    """At most STATED lengths with the mean of all: of equal parts of the sorted lengths the mean of each.

    ``weights`` say how likely each length is beside the others (None: all are).
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    if weights is None and len(ordered) <= STATED:
        return [int(each) for each in ordered]
    likely = np.ones(len(ordered)) if weights is None else weights[order]
    reached = np.concatenate([[0.0], np.cumsum(likely)])
    summed = np.concatenate([[0.0], np.cumsum(likely * ordered)])  # a part may begin and end within a document's share
    ends = np.interp(np.linspace(0, reached[-1], STATED + 1), reached, summed)
    return [max(1, round(float(each))) for each in np.diff(ends) * STATED / reached[-1]]


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

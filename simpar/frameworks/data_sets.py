"""How long the documents of public data sets are, by the names that launch files call them.

Packed sequences whose documents attend to themselves only take less time than whole ones: by a quarter of a step where
sequences are long. The lengths are facts about data, published beside a framework that trains on them.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.training import Documents
from simpar.frameworks.words import Assumed

TABLE = Path(__file__).with_name("data_sets.yaml")
SHORTER = (4, 16)
"""Parts of a sequence that documents of unknown length may be: answers of a thousand tokens in 4,096 or 16,384."""


def documents_of(data_set: str) -> Documents | None:
    """The lengths of a public data set's documents, or None where nobody here knows them.

    ``data_set``: a name as people write it: owner and name, the name alone, with a number of samples behind "#" or a
    subset behind ":" (``AI-ModelScope/LongAlpaca-12k#2000``).

    >>> documents_of("Yukang/LongAlpaca-12k")
    Documents(lengths=None, mean=9942, spread=0.344, packing='pack')
    """
    told = _table().get(re.split("[#:]", data_set.strip("'\""))[0].rstrip("/").rpartition("/")[2].lower())
    if told is None:
        return None
    return Documents(mean=told["mean"], spread=round(told["deviation"] / told["mean"], 3))


def pack_documents(training: Mapping[str, Any], data_sets: Sequence[str]) -> tuple[dict[str, Any], Assumed]:
    """The shape of a step whose packed documents attend to themselves only, with their lengths, and what is assumed.

    Lengths are those of the one data set that is named, if they are known; else a document fills a sequence, as it does
    where the mean is longer than that.
    """
    seq_len = training["seq_len"]
    known = documents_of(data_sets[0]) if len(data_sets) == 1 else None
    if known is None or known.mean is None:
        why = "packed documents attend to themselves only; how long they are is not told: one fills a sequence"
        others = tuple(seq_len // part for part in SHORTER if seq_len // part)
        return dict(training), Assumed("documents.mean", seq_len, why, others)
    if known.mean >= seq_len:
        why = (
            "packed documents attend to themselves only; "
            f"those of {data_sets[0]} have {known.mean} tokens in the mean: one fills a sequence"
        )
        return dict(training), Assumed("documents.mean", seq_len, why)
    why = f"packed documents attend to themselves only; published lengths of {data_sets[0]}"
    documents = {"mean": known.mean, "spread": known.spread}
    return {**training, "documents": documents}, Assumed("documents.mean", known.mean, why, (seq_len,))


@cache
def _table() -> dict[str, Any]:
    """The lengths by lower-case name."""
    documents: dict[str, Any] = files.load(TABLE).data["documents"]
    return documents

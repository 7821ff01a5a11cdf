"""The readers whose words a text has that none of them takes for its own."""

import re
from collections import Counter

from simpar.frameworks import READERS, load_reader
from simpar.frameworks.words import is_pattern, plain

_WORD = re.compile(r"(?<![\w$/])-{0,2}[A-Za-z][\w-]+(?=[\s:=\"',)}\]]|$)")
LEAST, MOST = 2.0, 3
"""What the words of a reader must weigh to be named, and how many readers are."""


def readers_alike(text: str) -> list[str]:
    """The names of readers whose words a text has, the most telling first; a word of many readers tells little.

    A reader that the text names counts as two words of its own.
    """
    given = {plain(word) for word in _WORD.findall(text)}
    tables = {name: _words_of(name) & given for name in READERS}
    shared = Counter(word for words in tables.values() for word in words)
    weights = {
        name: sum(1 / shared[word] for word in words) + LEAST * (plain(name) in given) for name, words in tables.items()
    }
    listed = sorted((name for name in weights if weights[name] >= LEAST), key=lambda name: -weights[name])
    return listed[:MOST]


def _words_of(name: str) -> set[str]:
    """The words that a reader knows beside those that it uses, without sections."""
    table = load_reader(name).words
    return {word.rpartition(".")[2] for word in (*table.idle, *table.deciding) if not is_pattern(word)}

"""The line of the word that an error names: readers know words by name, the text says where they stand."""

import re
from collections.abc import Mapping
from pathlib import Path

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.words import plain
from simpar.plain import Location, dotted

_TOLD = re.compile(r"(?P<file>[^\n]+?): (?P<word>-{0,2}[A-Za-z_][\w./-]*)(?= = |: )")
_SECTION = re.compile(r"\s*\[{1,2}([\w.\"-]+)\]{1,2}\s*(?:#.*)?")
CONFIGS = (".json", ".yaml", ".yml")


def with_line(error: UserError, text: str, name: str) -> UserError:
    """The error, with the line of the word of the text ``name``, or of a file that it names, after the file.

    An error that is about no word, or about one that stands on several lines of a script or on none, stays as it is.
    """
    told = _TOLD.match(message := str(error))
    if told is None or "\n" in message:
        return error
    source = told["file"]
    try:
        own = text if source == name else files.read_text(files.find_beside(source, name))
        line = _line(own, source, told["word"])
    except UserError:
        return error
    return error if line is None else type(error)(f"{source}:{line}{message[len(source) :]}")


def _line(text: str, source: str, word: str) -> int | None:
    """The line on which a word stands in a text; None if that is not certain."""
    suffix = Path(source).suffix
    if suffix in CONFIGS:
        return _in_config(files.lines_of(text, source), plain(word))
    if suffix == ".toml":
        return _in_toml(text, word)
    if "\n" not in text or not word.startswith("-"):
        return None
    flag = re.compile(rf"(?<![\w.-]){'[-_]'.join(map(re.escape, re.split('[-_]', word)))}(?![\w-])")
    numbered = enumerate(text.splitlines(), start=1)
    lines = [at for at, line in numbered if flag.search(line) and not line.lstrip().startswith("#")]
    return lines[0] if len(lines) == 1 else None


def _in_config(lines: Mapping[Location, int], word: str) -> int | None:
    """The line of a dotted key, or of the only one that ends so: arguments may stand in sections of any name."""
    named = {plain(dotted(place)): line for place, line in lines.items()}
    ending = [line for name, line in named.items() if name.endswith(f".{word}")]
    return named.get(word, ending[0] if len(ending) == 1 else None)


def _in_toml(text: str, word: str) -> int | None:
    """The line of a dotted key."""
    section, _, key = word.rpartition(".")
    at = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SECTION.fullmatch(line):
            at = match[1].replace('"', "")
        elif at == section and re.match(rf"\s*\"?{re.escape(key)}\"?\s*=", line):
            return number
    return None

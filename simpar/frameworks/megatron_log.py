"""The list of arguments in a log of Megatron-LM: where it is, and its rows as texts."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.regular_files import OF_SHELL, check_is_file

BEGIN, END = (re.compile(rf"-{{10,}} {what}arguments -{{10,}}") for what in ("", "end of "))
_ROW = re.compile(r"(?:^|.*?[\s:\]])([A-Za-z_]\w*) \.+ ?(.*)|(?:^|.*?\s)([A-Za-z_]\w{47,})  (.*)")
_VOCABULARY = re.compile(r"padded vocab \(size: (\d+)\) with \d+ dummy tokens \(new size: \d+\)")
CONFIGS = (".json", ".yaml", ".yml", ".toml", ".py")
"""Files that are no logs."""
MOST_LINES = 1_000_000
"""Lines of a log in which the list is looked for: it is printed at the start."""
BEHIND = 20_000
"""Lines behind the list in which the size of the vocabulary is looked for."""


@dataclass(frozen=True)
class ArgumentList:
    """The arguments of a list by name, as texts, and the words of the vocabulary that the log says behind it."""

    values: Mapping[str, str]
    vocabulary: str | None = None

    def number(self, name: str) -> int | None:
        """A whole number of the list; None if it has none."""
        text = self.values.get(name, "")
        return int(text) if re.fullmatch(r"\d{1,9}", text) else None

    def is_on(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.values.get(name) == "True"


def is_log(text: str) -> bool:
    """Whether a text has a list of arguments as Megatron-LM prints it."""
    return BEGIN.search(text) is not None


def text_of(path: str) -> str:
    """The text of a launch, a config, or what matters here of a log, however long that is. Raises UserError."""
    told = None if Path(path).suffix in CONFIGS else _part_of_file(path)
    return files.read_text(path) if told is None else told


def _part_of_file(path: str) -> str | None:
    """The lines of a log that matter here; None for a file without a list of arguments. Raises UserError."""
    check_is_file(path)
    if path.startswith(OF_SHELL):
        return None  # can be read once
    try:
        with Path(path).open(errors="replace") as stream:
            if "\0" in stream.read(1024):
                return None
            stream.seek(0)
            return _part(islice(stream, MOST_LINES))
    except OSError:
        return None


def _part(lines: Iterator[str]) -> str | None:
    """The first list, with empty lines in place of what is before it, and the line of the vocabulary behind it."""
    kept: list[str] = []
    before = 0
    for line in lines:
        if BEGIN.search(line):
            kept.append(line)
            break
        before += 1
    if not kept:
        return None
    for line in lines:
        kept.append(line)
        if END.search(line):
            break
    kept += [line for line in islice(lines, BEHIND) if _VOCABULARY.search(line)][:1]
    return "\n" * before + "".join(kept)


def list_of(text: str, source: str) -> ArgumentList:
    """The list of arguments in a log. Raises UserError where there is none, or only its beginning."""
    values: dict[str, str] = {}
    first = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not first:
            first = number if BEGIN.search(line) else 0
        elif END.search(line):
            told = _VOCABULARY.search(text)
            return ArgumentList(values, told[1] if told else None)
        elif row := _ROW.fullmatch(line.rstrip()):
            name, value = row[1] or row[3], row[2] if row[1] else row[4]
            values[name] = value.strip()
    if not first:
        raise UserError(f"{source}: no list of arguments as Megatron-LM prints it (------ arguments ------)")
    raise UserError(
        f"{source}:{first}: the list of arguments is cut short; allowed: a log with the line of its end, "
        "------ end of arguments ------"
    )

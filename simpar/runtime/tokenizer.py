"""A tokenizer on disk, in Hugging Face's format: its files, its tokens, and the one that ends a text. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plain import printable

BYTES = "bytes"
"""The tokenizer whose tokens are the bytes of UTF-8."""
DEFINITION, SETTINGS, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
BESIDE = (
    SETTINGS, SPECIAL, "added_tokens.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Files of a tokenizer beside its definition, as far as it has them."""
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end▁of▁sentence|>", "[EOS]", "<|im_end|>")
"""Usual names of the token at the end of a text, for tokenizers that do not say which it is."""


@dataclass(frozen=True)
class TokenizerFiles:
    """The ``definition`` (a tokenizer.json by whatever name), its settings, and the files ``beside`` it."""

    definition: Path
    settings: Mapping[str, Any]
    beside: tuple[Path, ...]

    @staticmethod
    def of(name: str) -> TokenizerFiles:
        """The tokenizer of a folder, or of a tokenizer.json. Raises UserError."""
        path = Path(name)
        if path.is_dir():
            if not (path / DEFINITION).is_file():
                others = sorted(each for each in BESIDE if (path / each).is_file())
                has = f"has {', '.join(others)} and no {DEFINITION}" if others else f"has no {DEFINITION}"
                raise UserError(
                    f"--tokenizer {name}: {has}; allowed: what AutoTokenizer.from_pretrained(...).save_pretrained(...) "
                    "writes"
                )
            path = path / DEFINITION
        if not path.is_file():
            raise UserError(f"--tokenizer {name}: is not there; allowed: a folder with a {DEFINITION}, or such a file")
        # other files of a folder are of the tokenizer that bears the usual name
        near = [path.parent / each for each in BESIDE] if path.name == DEFINITION else []
        beside = tuple(each for each in near if each.is_file())
        return TokenizerFiles(path, _settings(beside), beside)

    @staticmethod
    def found_in(folder: Path) -> TokenizerFiles | None:
        """The tokenizer of a folder, if it has one. Raises UserError for files that cannot be read."""
        return TokenizerFiles.of(str(folder)) if (folder / DEFINITION).is_file() else None

    def ids(self) -> dict[str, int]:
        """The number of every token. Raises UserError if the file is no tokenizer.json."""
        return definition_ids(self.definition)

    def end(self, known: Mapping[str, int]) -> tuple[str, int] | None:
        """Name and number of the token that ends a text, by the settings or a usual name; None if there is none."""
        said = name_of(self.settings.get("eos_token"))
        return next(((name, known[name]) for name in (said, *ENDS) if name in known), None)


def _settings(beside: tuple[Path, ...]) -> dict[str, Any]:
    """Fields of the files that say what tokens are for; those of tokenizer_config.json come first.

    Most say 10^30 for a length without limit (``model_max_length``). Raises UserError for what is no JSON.
    """
    result: dict[str, Any] = {}
    for path in reversed([each for each in beside if each.name in (SETTINGS, SPECIAL)]):
        try:
            data = json.loads(files.read_text(path))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: not valid JSON ({printable(str(error))[:120]})") from None
        if isinstance(data, Mapping):
            result |= data
    return result


def name_of(token: Any) -> str:
    """The text of a token as settings write it: itself, or an object with its ``content``; "" for none."""
    return str((token.get("content") if isinstance(token, Mapping) else token) or "")


def definition_ids(path: Path) -> dict[str, int]:
    """The number of every token of a tokenizer.json; needs no library. Raises UserError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = data["model"]["vocab"]
        if isinstance(vocabulary, list):  # of pieces and their scores
            vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
        return {**vocabulary, **{each["content"]: each["id"] for each in data.get("added_tokens") or ()}}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        said = printable(f"{type(error).__name__}: {error}")[:120]
        raise UserError(f"{path}: is not a {DEFINITION} ({said})") from None


def digest_of(known: Mapping[str, int]) -> str:
    """A digest of the numbers of tokens: tokenizers with the same read the same text from numbers."""
    return hashlib.sha256(json.dumps(sorted(known.items())).encode()).hexdigest()


def check_vocabulary(name: str, known: Mapping[str, int], vocab: int) -> None:
    """Raise UserError for a tokenizer with tokens beyond the model's vocabulary."""
    most = max(known.values(), default=-1)
    if most >= vocab:
        raise UserError(
            f"--tokenizer {name}: has tokens up to number {most}, the model's vocabulary has {vocab}; allowed: a "
            f"tokenizer of at most {vocab} tokens, or a model with vocab_size {most + 1} or more"
        )

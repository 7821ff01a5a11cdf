"""The folder that a run saves, so that libraries and servers take it as it is. No torch here.

Beside the weights it has the model's config with the class in ``architectures``, the defaults of generation, and the
tokenizer: the run's, or that of the folder whose weights or config it started from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.catalogue import config_of, is_file
from simpar.architectures.families import DECLARED
from simpar.dataclass import dataclass
from simpar.runtime.job import RunJob
from simpar.runtime.released import CONFIG
from simpar.runtime.tokenizer import BYTES, DEFINITION, SETTINGS, TokenizerFiles, name_of

GENERATION = "generation_config.json"
ENDING = ("bos", "eos", "pad")
"""Tokens of which configs state the numbers, and settings of tokenizers the names."""


@dataclass(frozen=True)
class ServedFolder:
    """A ``folder`` to be written: the model's ``config``, the ``dtype`` of its weights by name, its ``tokenizer``.

    ``generation`` is a file with defaults of generation to take over; ``base`` is the folder of weights that adapters
    belong to.
    """

    folder: Path
    config: Mapping[str, Any]
    dtype: str
    tokenizer: TokenizerFiles | None
    generation: Path | None
    base: str | None = None

    @staticmethod
    def of(job: RunJob, dtype: str) -> ServedFolder:
        """The folder that a job saves to. Raises UserError for a tokenizer that cannot be read."""
        near = sources(job)
        own = job.data.tokenizer
        tokenizer = None if own in (None, BYTES) else TokenizerFiles.of(str(own))
        if tokenizer is None:
            tokenizer = next((each for folder in near if (each := TokenizerFiles.found_in(folder))), None)
        generation = next((folder / GENERATION for folder in near if (folder / GENERATION).is_file()), None)
        base = job.weights.init_from
        return ServedFolder(
            Path(str(job.weights.save_to)), config_of(job.model), dtype, tokenizer, generation,
            None if base is None else str(Path(base).resolve()),
        )  # fmt: skip

    @property
    def family(self) -> str:
        """The model's ``model_type``."""
        return str(self.config.get("model_type") or "")

    @property
    def architectures(self) -> list[str]:
        """Names of the classes that load the weights: those of the config, else the family's; [] if it has none."""
        if stated := self.config.get("architectures"):
            return list(stated)
        family = DECLARED.get(self.family)
        name = family.causal_class(self.family) if family is not None else ""
        return [name] if name else []

    def write_config(self, folder: Path) -> None:
        """Write config, generation's defaults and tokenizer.

        The config names the tokens that end texts, too: libraries have numbers of their own where it names none.
        """
        named = {"architectures": self.architectures} if self.architectures else {}
        ends = {key: at for key, at in self._numbers().items() if not _has(self.config.get(key), at)}
        _write(folder / CONFIG, {**self.config, **ends, **named, "dtype": self.dtype})
        if self.generation is not None:
            shutil.copyfile(self.generation, folder / GENERATION)
        else:
            _write(folder / GENERATION, {"_from_model_config": True, **self._numbers()})
        self.write_tokenizer(folder)

    def write_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer's files; settings where it has none, without which no class of it is known."""
        if self.tokenizer is None:
            return
        shutil.copyfile(self.tokenizer.definition, folder / DEFINITION)
        for path in self.tokenizer.beside:
            shutil.copyfile(path, folder / path.name)
        if not (folder / SETTINGS).exists():
            names = {number: name for name, number in self.tokenizer.ids().items()}
            tokens = {f"{kind.removesuffix('_id')}": names.get(at) for kind, at in self._numbers().items()}
            length = self.config.get("max_position_embeddings") or self.config.get("n_positions")
            limit = {} if length is None else {"model_max_length": length}
            stated = {kind: name for kind, name in tokens.items() if name is not None}
            _write(folder / SETTINGS, {"tokenizer_class": "PreTrainedTokenizerFast", **stated, **limit})

    def _numbers(self) -> dict[str, int]:
        """Numbers of the tokens that begin, end and pad texts: the tokenizer's, else the config's."""
        known = self.tokenizer.ids() if self.tokenizer is not None else {}
        result = {}
        for kind in ENDING:
            stated = self.config.get(f"{kind}_token_id")
            if isinstance(stated, int):
                result[f"{kind}_token_id"] = stated
            if self.tokenizer is not None and (name := name_of(self.tokenizer.settings.get(f"{kind}_token"))) in known:
                result[f"{kind}_token_id"] = known[name]
        if self.tokenizer is not None and "eos_token_id" not in result and (end := self.tokenizer.end(known)):
            result["eos_token_id"] = end[1]
        return result

    def lacking(self) -> list[str]:
        """What the folder lacks for servers, and where it would come from."""
        said = []
        if not self.architectures:
            said.append(f"no architectures: libraries have no causal language model called {self.family}")
        if self.tokenizer is None:
            said.append("no tokenizer: --tokenizer FOLDER gives one")
        return said


def _has(stated: Any, number: int) -> bool:
    """Whether a config states a token by its number, alone or among others."""
    return number in stated if isinstance(stated, list) else stated == number


def sources(job: RunJob) -> list[Path]:
    """Folders that may have what weights lack: those of the weights, and of the config, that a job starts from."""
    result = [Path(job.weights.init_from)] if job.weights.init_from is not None else []
    if isinstance(job.model, str) and is_file(job.model):
        result.append(Path(job.model).parent)
    return result


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    files.write_atomic(path, json.dumps(fields, indent=2) + "\n")

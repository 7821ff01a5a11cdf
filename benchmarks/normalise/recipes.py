"""Settings that a row leaves blank and its authors published elsewhere, by source and model, with citations.

These are facts about configurations; none of them was measured. A row's own columns take precedence, except where rows
with the same settings contradict each other and the framework's configuration shows which is right (``instead``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from simpar import files
from simpar.validation.cells import Row, number, text

GPUS_OF_A_NODE = 8


@dataclass(frozen=True)
class Recipe:
    """The columns that a configuration gives, the columns by which its rows are recognised, and where it is published.

    ``model`` is the model's name in the catalogue ("": the row's own name). ``notes`` are added to the row's, and
    columns in ``instead`` replace the row's.
    """

    row: Mapping[str, str | float]
    says: Mapping[str, str]
    of: str
    model: str = ""
    notes: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)

    def is_of(self, row: Row) -> bool:
        """Whether a row is of this configuration: words match anywhere, numbers must be equal."""
        return all(
            re.search(known, text(row, name), re.IGNORECASE) is not None
            if isinstance(known, str)
            else number(row, name) == known
            for name, known in self.row.items()
        )


@lru_cache(maxsize=1)
def recipes() -> tuple[Recipe, ...]:
    """All recipes, the more specific ones first."""
    document = files.load(Path(__file__).with_name("recipes.yaml"))
    return tuple(
        Recipe(
            each["row"],
            {name: str(value) for name, value in each.get("says", {}).items()},
            each["of"],
            each.get("model", ""),
            each.get("notes", ""),
            {name: str(value) for name, value in each.get("instead", {}).items()},
        )
        for each in document.data["recipes"]
    )


def completed(row: Row) -> tuple[Row, tuple[str, ...]]:
    """A row with its blanks filled in, and the sources in words (none if nothing was filled)."""
    found = next((each for each in recipes() if each.is_of(row)), None) or _model_parallel(row)
    if found is None:
        return row, ()
    filled = {name: value for name, value in found.says.items() if not text(row, name)}
    replaced = {name: value for name, value in found.instead.items() if text(row, name) != value}
    notes_alone = found.notes and not found.says and not found.instead
    if not filled and not replaced and not notes_alone:
        return row, ()
    named = {"model_name": found.model} if found.model else {}
    noted = {"notes": f"{text(row, 'notes')}; {found.notes}"} if found.notes else {}
    words = [f"{name} {value}" for name, value in filled.items()]
    words += [f"{name} {value} in place of {text(row, name)}" for name, value in replaced.items()]
    words += [found.notes] if found.notes else []
    return {**row, **filled, **named, **noted, **replaced}, (f"{', '.join(words)} [{found.of}]",)


def _model_parallel(row: Row) -> Recipe | None:
    """For a model-parallel size alone: Megatron-LM splits tensors up to the GPUs of a node, then stages.

    Source: Narayanan et al. 2021, arXiv 2104.04473, takeaway 1 in section 5.4.1, and all runs of its table 1.
    """
    size = re.search(r"model-parallel size (\d+)", text(row, "notes").lower())
    if size is None or text(row, "tp") or text(row, "pp"):
        return None
    tp = min(int(size[1]), GPUS_OF_A_NODE)
    if int(size[1]) % tp:
        return None
    says = {"tp": str(tp), "pp": str(int(size[1]) // tp)}
    if "no interleaving" in text(row, "notes").lower():
        says["vpp"] = "1"
    return Recipe({}, says, "arXiv 2104.04473, section 5.4.1")

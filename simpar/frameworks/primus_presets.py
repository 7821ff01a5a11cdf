"""Models of Primus that are not shipped here: the arguments that its checkout keeps of each, beside the experiment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError

FOLDER = Path("primus", "configs", "models", "megatron")
"""Where a checkout keeps them."""
OF_ALL = ("language_model", "primus_megatron_model")
"""Files of defaults of all models."""
OF_OWN_CODE = ("is_hybrid_model", "use_short_conv")
BASES = ("extends", "bases")
"""Keys that list the files whose values one lays its own over."""


@dataclass(frozen=True)
class Preset:
    """The arguments of a model; ``own`` are the names of those that are not defaults of all models."""

    values: Mapping[str, Any]
    own: frozenset[str]


def preset_of(asked: str, experiment: str) -> Preset | None:
    """The arguments of a model by its name, from the checkout that holds the experiment.

    None without it, and for models whose layers its own code makes (states, short convolutions). Raises UserError for
    files that build on each other in a circle.
    """
    above = Path(experiment).resolve().parents
    file = next(
        (each / FOLDER / f"{asked}.yaml" for each in above if (each / FOLDER / f"{asked}.yaml").is_file()), None
    )
    if file is None or not asked:
        return None
    preset = _with_bases(file, ())
    of_own_code = preset.values.get("model_type", "gpt") != "gpt" or any(map(preset.values.get, OF_OWN_CODE))
    return None if of_own_code else preset


def _with_bases(file: Path, before: tuple[Path, ...]) -> Preset:
    if file in before:
        raise UserError(f"{file}: builds on itself; allowed: files that build on others")
    data = files.read_yaml(files.read_text(str(file)), str(file), finite=False)
    if not isinstance(data, Mapping):
        raise UserError(f"{file}: allowed: a mapping of arguments")
    below = [_with_bases(file.parent / str(base), (*before, file)) for key in BASES for base in data.get(key) or ()]
    told = {str(key): value for key, value in data.items() if key not in BASES}
    values = {key: value for each in (*(each.values for each in below), told) for key, value in each.items()}
    own = frozenset(told) if file.stem not in OF_ALL else frozenset[str]()
    return Preset(values, own.union(*(each.own for each in below)))

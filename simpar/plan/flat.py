"""The short way to write a plan: flat keys (``tp: 8``), and other tools' names for them.

A flat key wins over the same field in its section, so that flags can be laid over a file. Errors are reported
where the user wrote the value.
"""

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from simpar import files
from simpar.plan.choices import SECTION_OF, SECTIONS, SYNONYMS
from simpar.plan.choices.mesh import split_order
from simpar.plan.choices.tensor_parallel import REMOVED, REMOVED_SCHEMA
from simpar.plan.mesh import AXES

TENSOR = "tensor_parallel"


def signature(sections: Mapping[str, Any]) -> Signature:
    """How a plan is made: its flat keys with the defaults of the sections' own fields, then anything else."""
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=field.default)
        for section, names in SECTIONS.items()
        for name, field in sections[section].annotation.model_fields.items()
        if name in names
    ]
    this, rest = Parameter("self", Parameter.POSITIONAL_ONLY), Parameter("data", Parameter.VAR_KEYWORD)
    return Signature([this, *named, rest])


def get_flat(plan: Mapping[str, Any], key: str) -> Any:
    """What a plan as plain data says under a flat key; None where it says nothing."""
    return plan.get(SECTION_OF.get(key, ""), plan).get(key)


def nest(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same input with every flat key in its section. Raises ValueError for a key that is given twice."""
    nested: dict[str, Any] = {}
    flat: dict[str, tuple[str, Any]] = {}
    for key, value in data.items():
        name = SYNONYMS.get(key, key)
        if name in flat and flat[name][1] != value:
            raise ValueError(f"{flat[name][0]} = {flat[name][1]!r} and {key} = {value!r} mean the same; give one")
        if name in SECTION_OF or name in REMOVED or name == "rank_order":
            flat[name] = key, value
        elif name != key and name in data and data[name] != value:
            raise ValueError(f"{name} = {data[name]!r} and {key} = {value!r} mean the same; give one")
        else:
            nested[name] = value
    if isinstance(nested.get("mesh"), Mapping):
        nested["mesh"] = _ordered_mesh(nested["mesh"])
    for name, (_, value) in flat.items():
        section, field = ("mesh", "order") if name == "rank_order" else (SECTION_OF.get(name, TENSOR), name)
        nested[section] = {**fields_of(nested.get(section)), field: split_order(value) if field == "order" else value}
    if isinstance(nested.get(TENSOR), Mapping):
        nested[TENSOR] = _without_removed(nested[TENSOR])
    return nested


def _without_removed(section: Mapping[str, Any]) -> dict[str, Any]:
    for key, left in REMOVED.items():
        if (value := section.get(key, left)) != left:
            raise ValueError(
                f"{key} = {value!r}: tensor parallelism in 2-D, 2.5-D and 3-D was removed; allowed: {left}"
            )
    return {key: value for key, value in section.items() if key not in REMOVED}


def relocate_error(error: ValidationError, data: Mapping[str, Any]) -> ValidationError:
    """The error with every location as the user wrote it, and a suggestion for an unknown key."""
    written = {SYNONYMS.get(key, key): key for key in data}
    if "rank_order" in data:
        written["order"] = "rank_order"
    return ValidationError.from_exception_data(
        error.title, [_detail(item, written) for item in error.errors(include_url=False)]
    )


def unknown_key(key: str) -> str:
    """The message for a key that no plan has."""
    known = ["mesh", "micro_batch", "model", "training", "stack", "rank_order", *SECTIONS, *SECTION_OF, *SYNONYMS]
    return "is not a key of a plan" + (files.suggest(key, known) or files.allowed([*SECTIONS, *SECTION_OF]))


def flat_schema(sections: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema properties of the flat keys, taken from the sections' own fields."""
    schema: dict[str, Any] = {}
    for section, names in SECTIONS.items():
        fields = sections[section].model_json_schema()["properties"]
        schema |= {name: fields[name] for name in names}
    return schema | REMOVED_SCHEMA


def fields_of(section: Any) -> dict[str, Any]:
    """What a section states, by field. Raises ValueError for what is no section."""
    if isinstance(section, BaseModel):
        return {name: getattr(section, name) for name in section.model_fields_set}
    if section is None or isinstance(section, Mapping):
        return dict(section or {})
    raise ValueError(f"{section!r} stands where a section with fields is needed")


def _ordered_mesh(mesh: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rank order is the key order; a partial mapping in the default order means the default."""
    named = [key for key in mesh if key in AXES]
    if "order" in mesh:
        return {**mesh, "order": split_order(mesh["order"])}
    if len(named) == len(AXES):
        return {**mesh, "order": tuple(named)}
    if named != [axis for axis in AXES if axis in named]:
        raise ValueError(
            f"mesh names {', '.join(named)}: key order is rank order, fastest first; "
            f"name all of {', '.join(AXES)} to change it"
        )
    return mesh


def _detail(item: Any, written: Mapping[str, str]) -> InitErrorDetails:
    location = files.location_of(item)
    kind, message = item["type"], item["msg"]
    if kind == "extra_forbidden" and len(location) == 1:
        kind, message = "unknown_key", unknown_key(str(location[0]))
    elif len(location) == 1:
        location = (written.get(location[0], location[0]),)
    elif len(location) > 1 and location[1] in written and _home(location[1]) == location[0]:
        location = (written[location[1]], *location[2:])
    return InitErrorDetails(
        type=PydanticCustomError(kind, "{message}", {"message": message}), loc=location, input=item["input"]
    )


def _home(field: str) -> str | None:
    return "mesh" if field == "order" else SECTION_OF.get(field)

"""``simpar schema`` and ``simpar doctor``: about simpar itself."""

import sys
from typing import Annotated, Any

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out

SCHEMAS = ("plan", "scenario", "profile", "device", "stack", "reliability")


@app.command(epilog="Example: simpar schema scenario > scenario.schema.json")
def schema(what: Annotated[str, typer.Argument(help="Kind of file", metavar="|".join(SCHEMAS))]) -> None:
    """Print the JSON Schema of a file that simpar reads."""
    import json

    from simpar.files import choose

    sys.stdout.write(json.dumps(json_schema(choose(what, SCHEMAS, "schema")), indent=2) + "\n")


def json_schema(what: str) -> dict[str, Any]:
    """The JSON Schema of one of :data:`SCHEMAS`."""
    from pydantic import BaseModel

    from simpar.hardware.device import Device
    from simpar.hardware.profile import ClusterProfile
    from simpar.hardware.reliability import Reliability
    from simpar.plan.plan import Plan
    from simpar.scenario import Scenario
    from simpar.stacks.stack import Stack

    models: dict[str, type[BaseModel]] = {
        "plan": Plan, "scenario": Scenario, "profile": ClusterProfile, "device": Device, "stack": Stack,
        "reliability": Reliability,
    }  # fmt: skip
    schema = models[what].model_json_schema()
    return _that_may_be_like(schema) if what in ("profile", "device", "stack") else schema


def _that_may_be_like(whole: dict[str, Any]) -> dict[str, Any]:
    """The schema of a file that gives everything, or a base (``like``) and the differences."""
    parts = whole.get("$defs", {})

    def partial(node: Any) -> Any:
        if isinstance(node, list):
            return [partial(each) for each in node]
        if not isinstance(node, dict):
            return node
        kept = {key: partial(value) for key, value in node.items() if key not in ("required", "$defs")}
        return kept | ({"$ref": f"{node['$ref']}InPart"} if "$ref" in node else {})

    like = {"type": "string", "description": "name or file of the profile that this one is like"}
    defs = parts | {f"{name}InPart": partial(part) for name, part in parts.items()}
    defs["Whole"] = {key: value for key, value in whole.items() if key != "$defs"}
    schema: dict[str, Any] = partial(whole)
    return schema | {
        "properties": {"like": like, **schema["properties"]},
        "required": ["name"],
        "$defs": defs,
        "if": {"properties": {"like": False}},
        "then": {"$ref": "#/$defs/Whole"},
    }


@app.command(epilog="Example: simpar doctor")
def doctor(json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None) -> None:
    """Show the versions of simpar and of the packages that it uses."""
    from simpar.report.terminal import print_names

    versions = _versions()
    if not json_out(versions, json_):
        print_names(versions, console())


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    from simpar.engine import describe_compiled

    packages = ("numpy", "scipy", "simpy", "networkx", "pandas", "matplotlib", "pydantic", "typer", "rich")
    extras = {"torch": "extra torch: real runs"}
    result = {"simpar": version(), "python": platform.python_version()}
    for name in (*packages, *extras):
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            result[name] = f"not installed ({extras.get(name, 'required')})"
    result["compiled engine"] = describe_compiled()
    return result


def version() -> str:
    """The version of simpar."""
    import simpar

    return simpar.__version__

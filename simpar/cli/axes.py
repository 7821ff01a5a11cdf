"""What ``--over`` and ``--fix`` go over: the answer to ``--over help``, ``--over --help`` and ``--fix help``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from simpar.cli.flags import MODEL_CLASS, NETWORK, QLORA, ScenarioFlag, scenario_flags

if TYPE_CHECKING:
    from rich.console import Console

ASKS = ("help", "--help", "-h", "?")
"""Words in the place of an axis that ask which there are."""
NO_KEYS = (MODEL_CLASS, NETWORK, QLORA)
"""Flags that are short for others: no single key."""
SWITCHES = {"nvls": "Whether switches reduce within a node", "sharp": "Whether switches reduce between nodes"}
"""Axes of a grid that are on or off, and what they are."""


def asks(words: Iterable[str] | None) -> bool:
    """Whether one of the words of a repeated option asks for its axes."""
    return any(word.strip() in ASKS for word in words or ())


def flags_by_key() -> dict[str, ScenarioFlag]:
    """The flags of a scenario that stand for one key, by the name that ``--over`` takes: "seq_len", "tp", "gpus"."""
    return {flag.name: flag for flag in scenario_flags() if flag.key not in NO_KEYS}


def keys_of_sweeps() -> tuple[str, ...]:
    """All keys that ``simulate --over`` takes without their section."""
    from simpar.plan.choices import CHOICES
    from simpar.verbs import SECTIONS, SPOKEN

    short = (name for names in SECTIONS.values() for name in names if name not in SPOKEN.values())
    return tuple(dict.fromkeys([*flags_by_key(), *short, *(choice.key for choice in CHOICES if choice.key)]))


def print_sweep_axes(out: Console) -> None:
    """What ``simulate --over`` takes."""
    flags = flags_by_key()
    out.print("--over key=value,value simulates every value of a key; keys of flags:")
    _print_helps({name: flag.help for name, flag in flags.items()} | SWITCHES, out)
    more = [name for name in keys_of_sweeps() if name not in flags and name not in SWITCHES]
    out.print(f"other keys of a plan: {', '.join(more)}", soft_wrap=True)
    out.print(
        "any other key of a scenario (simpar schema scenario) by its section: --over perturbation.jitter.sigma=0,0.03",
        soft_wrap=True,
    )


def print_grid_axes(axes: Mapping[str, str], out: Console) -> None:
    """What ``search --over`` takes: axes with the keys that they set."""
    helps = {flag.key: flag.help for flag in scenario_flags()}
    out.print("--over axis=value,value runs a search for every value of an axis:")
    _print_helps({axis: helps.get(key) or SWITCHES[axis] for axis, key in axes.items()}, out)
    out.print("all others are searched by every search: --fix axis=value,value restricts one (--fix help lists them)")


def print_searched_axes(out: Console) -> None:
    """What ``search --fix`` takes."""
    from simpar.planner.space.axes import AXIS_NAMES, OPTIONAL_NAMES

    out.print("--fix axis=value or axis=value,value (docs/search_axes.md)")
    out.print(f"always searched: {', '.join(AXIS_NAMES)}", soft_wrap=True)
    out.print(f"searched if values are given here: {', '.join(OPTIONAL_NAMES)}", soft_wrap=True)


def is_searched(axis: str) -> bool:
    """Whether a search itself goes over an axis."""
    from simpar.planner.space.axes import ALL_NAMES

    return axis in (*ALL_NAMES, "dp")


def _print_helps(helps: Mapping[str, str], out: Console) -> None:
    width = max(map(len, helps)) + 2
    lines: Sequence[str] = [f"  {name:<{width}}{said}" for name, said in helps.items()]
    for line in lines:
        out.print(line, soft_wrap=True, markup=False)

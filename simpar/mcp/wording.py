"""Refusals in the words of tools: what they say of flags of the command line, said of a tool's own fields."""

import re
from collections.abc import Collection, Iterator

from simpar.files import COMMAND_LINE
from simpar.plan.choices import CHOICES

KEYS = {
    "--model": "model", "--hardware": "cluster.hardware", "--nodes": "cluster.nodes", "--gpus": "cluster.devices",
    "--seq-len": "training.seq_len", "--global-batch": "training.global_batch", "--tokens": "training.tokens",
    "--stack": "stack", "--price-per-gpu-hour": "cluster.price_per_device_hour",
    "--jitter": "perturbation.jitter.sigma",
}  # fmt: skip
"""Keys of a scenario by the flag that sets them; those of a plan follow from its choices."""
FIELDS = {"--fix": "fixed", "--from": "framework"}
"""Fields of tools that are not called as their flag is."""
WORDS = "is|was|and|or|of|to|in|on|with|without|has|have|that|which|says|finds|shows|adds|leaves|searches"
"""Words behind a flag that are no value of it."""
FLAG = rf"(--[a-z][a-z-]*)(?:[ =](?!(?:{WORDS})\b)([^\s;,:()`]+))?"
_ANYWHERE = re.compile(rf"`[^`]*`|(?<![\w-]){FLAG}")
_ASKED_FOR = re.compile(rf"`[^`]*`|(?:^|(?<=\bgive )|(?<=\bor )){FLAG}")
"""Where a refusal asks for a flag: elsewhere in what is said of a launch, flags are those of the launch."""


def in_fields(text: str, fields: Collection[str]) -> str:
    """A refusal for a tool with these ``fields``; commands in backticks, and flags that no tool has, stay.

    There is no command line that a mistake could be on.
    """

    def said(match: re.Match[str]) -> str:
        flag, value = match.groups()
        return match.group() if flag is None else _said(flag, value, fields) or match.group()

    return (_ASKED_FOR if "launch" in fields else _ANYWHERE).sub(said, text.removeprefix(f"{COMMAND_LINE}: "))


def _said(flag: str, value: str | None, fields: Collection[str]) -> str | None:
    name = FIELDS.get(flag, flag.removeprefix("--").replace("-", "_"))
    rest = "" if value is None else f" {value}"
    if name == "fixed" and name in fields:
        key, _, wanted = (value or "").partition("=")
        return f'fixed {{"{key}": {wanted}}}' if wanted else f"fixed{rest}"
    if name in fields and name != "set":
        return name if value is None else f"{name} = {value}"
    if "set" not in fields:
        return None
    if flag == "--set":
        key, _, wanted = (value or "").partition("=")
        return f'set {{"{key}": {wanted}}}' if wanted else f"set{rest}"
    if flag in _SWITCHES:
        key, wanted = _SWITCHES[flag]
        return f'set {{"{key}": {wanted}}}{rest}'
    key = KEYS.get(flag) or _PLAN.get(flag, "")
    return (f'set {{"{key}": {value}}}' if value is not None else f"{key} in set") if key else None


def _plan_flags() -> Iterator[tuple[str, str, str]]:
    """Flags of a plan, each with its key, and the value of a switch."""
    for choice in CHOICES:
        if choice.flag is not None:
            spelt = choice.flag.spelling.split("/") if choice.flag.spelling else [f"--{choice.name.replace('_', '-')}"]
            for flag, value in zip(spelt, ("true", "false"), strict=False):
                yield flag, f"plan.{choice.key or '.'.join(choice.path)}", value if choice.flag.kind is bool else ""


_SWITCHES = {flag: (key, value) for flag, key, value in _plan_flags() if value}
_PLAN = {flag: key for flag, key, value in _plan_flags() if not value}

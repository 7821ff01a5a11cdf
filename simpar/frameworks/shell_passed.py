"""Variables that launchers, containers and batch systems set for what they start, by their own flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING

from simpar.frameworks import schedulers, slurm
from simpar.frameworks.named import PYTHON, RUNTIMES, SHELLS, STARTERS, image_at

if TYPE_CHECKING:
    from simpar.frameworks.shell import Script

_APPTAINER = ("apptainer", "singularity")
_MPI = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
_SLURM = ("srun", "sbatch", "salloc")
_LISTED = {**dict.fromkeys(_SLURM, ("--export",)), **dict.fromkeys(_APPTAINER, ("--env",)), "qsub": ("-v",),
           "bsub": ("-env",), "jsrun": ("-E", "--env")}  # fmt: skip
"""Flags by program whose value lists variables: ``A=1,B=2``."""
_SINGLE = {**dict.fromkeys(RUNTIMES, ("-e", "--env")), "enroot": ("-e", "--env"), "hf": ("-e", "--env"),
           **dict.fromkeys(_MPI, ("-x",)), "jsrun": ("-E", "--env"), "torchx": ("--env",),
           "sky": ("--env",)}  # fmt: skip
"""Flags by program whose value is one variable: ``A=1``."""
_APART = dict.fromkeys(_MPI, ("-genv", "-env", "--genv", "--env"))
"""Flags by program behind which a variable and its value stand as two words."""
_SETTING = {*_LISTED, *_SINGLE, *_APART, "ray"}
"""All programs whose flags set variables."""
_NAME = r"[A-Za-z_]\w*"
_HEADERS = {"PBS": "-v", "MSUB": "-v", "$": "-v", "BSUB": "-env"}
"""Flags of batch systems' lines whose value lists variables."""


def passed_variables(words: Sequence[str]) -> dict[str, str]:
    """Variables that a command sets for what it starts: ``docker run -e A=1``, ``mpirun -x A=1``, ``srun --export``.

    Values that a program takes from where it is started (``-e A``) are not among them.
    """
    result: dict[str, str] = {}
    image = image_at(words)
    end = next((at for at, word in enumerate(words) if at and _starts_other(word)), len(words))
    starts = [at for at, word in enumerate(words[:end]) if PurePath(word).name in _SETTING]
    for at, after in pairwise([*starts, end]):
        name, own = PurePath(words[at]).name, list(words[at + 1 : after])
        if image is not None and at < image < after:
            own = list(words[at + 1 : image])
        result |= dict(_set_by(name, own))
    return result


def set_by_job(script: Script, text: str) -> None:
    """Set the variables that lines of a batch system in ``text`` do (``#SBATCH --export=ALL,A=1``, ``#PBS -v A=1``).

    The command that submits the text has the last word.
    """
    told = dict(_listed(slurm.directives(text), ("--export",)))
    for system, words in schedulers.asked_of(text).items():
        told |= dict(_listed(words, (_HEADERS[system],) if system in _HEADERS else ()))
    script.exported |= told.keys()
    script.variables |= {name: [value] for name, value in told.items()} | script.variables


def _starts_other(word: str) -> bool:
    """Whether a word is a program whose flags are its own."""
    name = PurePath(word).name
    is_known = name in {*SHELLS, *STARTERS}.difference(_SETTING)
    return is_known or word.endswith((".py", ".sh")) or PYTHON.fullmatch(name) is not None


def _set_by(name: str, own: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What a program's own flags set."""
    yield from _listed(own, _LISTED.get(name, ()))
    for told in _values(own, _SINGLE.get(name, ())):
        variable, equals, value = told.partition("=")
        if equals and re.fullmatch(_NAME, variable):
            yield variable, value
    for flag, variable, value in zip(own, own[1:], own[2:], strict=False):
        if flag in _APART.get(name, ()) and re.fullmatch(_NAME, variable):
            yield variable, value
    if name == "ray":
        yield from _of_ray_job(own)


def _listed(words: Sequence[str], flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Variables of ``--export=ALL,A=1``; a value may have commas that begin no other variable."""
    for told in _values(words, flags):
        for pair in re.split(rf",\s*(?={_NAME}(?:=|,|$))", told):
            variable, equals, value = pair.strip().partition("=")
            if equals:
                yield variable, value


def _values(words: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """What flags are given: ``--env A=1``, ``--env=A=1``, ``-eA=1``."""
    for word, after in pairwise([*words, ""]):
        for flag in flags:
            if word == flag:
                yield after
            elif word.startswith(f"{flag}="):
                yield word.removeprefix(f"{flag}=")
            elif len(flag) == len("-e") and word.startswith(flag) and "=" in word:
                yield word.removeprefix(flag)


def _of_ray_job(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Variables of ``ray job submit --runtime-env-json='{"env_vars": {"A": "1"}}'``."""
    for told in _values(words, ("--runtime-env-json",)):
        try:
            variables = json.loads(told).get("env_vars", {})
        except (json.JSONDecodeError, AttributeError, RecursionError):
            continue
        if isinstance(variables, dict):
            yield from ((str(name), str(value)) for name, value in variables.items())

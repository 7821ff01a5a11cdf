"""Words of a command that have a program's name and start none: names of environments, packages, queues and images."""

import re
from collections.abc import Sequence
from pathlib import PurePath

NAMES_OTHERS = (
    "-m", "--module", "-n", "--name", "-p", "--prefix", "--with", "--with-editable", "--extra", "--group", "--package",
    "--env", "--environment", "--image", "--container-image", "-J", "--job-name", "--partition", "-A", "--account",
    "--qos", "--namespace", "-S", "-dmS",
)  # fmt: skip
"""Flags before a command whose value is the name of a module, an environment, a package, a queue or an image."""
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
STARTERS = (
    "torchrun", "deepspeed", "accelerate", "srun", "mpirun", "llamafactory-cli", "trl", "axolotl", "tune", "swift",
)  # fmt: skip
"""Programs that start training."""
RUNTIMES = ("docker", "podman", "nerdctl", "nvidia-docker")
"""Programs that start a container."""
HUB = ("hf", "jobs")
"""How a command of Hugging Face's Jobs begins: ``hf jobs run``, ``hf jobs uv run``."""
PYTHON = re.compile(r"i?python[\d.]*|pythonw")
_SWITCHES = re.compile(
    r"-[ditPq]+|--(rm|init|interactive|tty|detach|privileged|read-only|publish-all|quiet|no-healthcheck)"
)
"""Options of ``docker run`` and ``hf jobs run`` that take no value."""
_RUNNERS = ("uv", "pdm", "poetry", "pixi", "rye", "hatch", "pipenv", "conda", "mamba", "micromamba")
"""Managers of environments whose ``run`` starts a script in Python by itself, or with the ``python`` behind it."""
_ONCE = (
    *_RUNNERS, *RUNTIMES, "hf", "sky", "singularity", "apptainer", "enroot", "numactl", "taskset", "stdbuf", "nice",
    "ionice", "timeout", "caffeinate", "nsys", "ncu", "py-spy", "memray", "strace", "perf", "xvfb-run",
)  # fmt: skip
"""Programs that start what stands behind them once."""


def names_other(words: Sequence[str], at: int) -> bool:
    """Whether the word at ``at`` names something else than a program, whatever it is called."""
    return (at > 0 and words[at - 1] in NAMES_OTHERS) or at == image_at(words)


def image_at(words: Sequence[str]) -> int | None:
    """Where a command names the image of its container; None if it starts none."""
    run = _run_at(words)
    if run is None:
        return None
    at = run + 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 if "=" in words[at] or _SWITCHES.fullmatch(words[at]) else 2
    return at if at < len(words) else None


def _run_at(words: Sequence[str]) -> int | None:
    """Where ``run`` stands, behind which are a container's options and its image."""
    if tuple(words[:3]) == (*HUB, "run"):
        return 2
    runtime = next((at for at, word in enumerate(words) if PurePath(word).name in RUNTIMES), len(words))
    return next((at for at in range(runtime + 1, min(runtime + 3, len(words))) if words[at] == "run"), None)


def starts_python(words: Sequence[str]) -> bool:
    """Whether a command starts a script in Python as one process: by ``python``, a manager's ``run``, or itself."""
    scripts = (at for at, word in enumerate(words) if word.endswith(".py") or word in ("-m", "--module"))
    before = [word for word in words[: next(scripts, 0)] if not word.startswith("-")]
    if not before:
        return bool(words) and (words[0].endswith(".py") or PYTHON.fullmatch(PurePath(words[0]).name) is not None)
    name = PurePath(before[0]).name
    managed = (name in _RUNNERS and "run" in before[1:2]) or tuple(before[:4]) == (*HUB, "uv", "run")
    is_python = PYTHON.fullmatch(PurePath(before[-1]).name) is not None
    return managed or (is_python and (len(before) == 1 or name in _ONCE or PYTHON.fullmatch(name) is not None))

"""What batch systems beside Slurm are asked for in a script: the nodes of a job, and the devices and tasks of each.

PBS Professional and Torque (qsub(1), pbs_resources(7)), IBM Spectrum LSF (bsub, jsrun) and Flux (flux-submit(1)).
Answers are words as Slurm takes them, so that one place reads the sizes of a job.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from simpar.frameworks.reader import value_of

_LINE = re.compile(r"#(PBS|BSUB|flux:)\s+(.*)")
_NUM_OF_HOST = re.compile(r"\bnum=(\d+)(?!\d|/task)")
_PTILE = re.compile(r"\bptile\s*=\s*(\d+)")


def directives(text: str) -> list[str]:
    """The sizes that the lines of a batch system before the first command ask for, in Slurm's words."""
    asked: dict[str, list[str]] = {}
    for line in text.splitlines():
        if asking := _LINE.match(line):
            asked.setdefault(asking[1], []).extend(_split(asking[2]))
        elif line.strip() and not line.startswith("#"):
            break
    return [*_of_pbs(asked.get("PBS", [])), *_of_lsf(asked.get("BSUB", [])), *_of_flux(asked.get("flux:", []))]


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _of_pbs(words: Sequence[str]) -> Iterator[str]:
    """``-l select=4:ngpus=8:mpiprocs=8``, in chunks of nodes, or Torque's ``-l nodes=4:ppn=64:gpus=8``."""
    lists = [word for before, word in zip(["", *words], words, strict=False) if before == "-l"]
    lists += [word.removeprefix("-l") for word in words if word.startswith("-l") and len(word) > 2]
    for listed in lists:
        named = re.match(r"(?:.*,)?(?:select|nodes)=([^,]+)", listed)
        if named is None:
            continue
        chunks = [chunk.split(":") for chunk in named[1].split("+")]
        if not all(chunk[0].isdigit() for chunk in chunks):
            continue
        yield from ("--nodes", str(sum(int(chunk[0]) for chunk in chunks)))
        parts = [dict(part.split("=", 1) for part in chunk[1:] if "=" in part) for chunk in chunks]
        for flag, names in (("--gpus-per-node", ("ngpus", "gpus")), ("--ntasks-per-node", ("mpiprocs",))):
            values = {next((part[name] for name in names if name in part), "") for part in parts}
            if len(values) == 1 and (value := values.pop()).isdigit():
                yield from (flag, value)


def _of_lsf(words: Sequence[str]) -> Iterator[str]:
    """Hosts, or slots and how many of a host, and ``-gpu "num=8"`` of a host; slots alone may be cores."""
    slots, nodes = value_of(words, ("-n",)), value_of(words, ("-nnodes",))
    tile = _PTILE.search(value_of(words, ("-R",)) or "")
    if nodes is None and tile and slots and slots.isdigit():
        nodes = str(-(-int(slots) // int(tile[1])))
    if nodes and nodes.isdigit():
        yield from ("--nodes", nodes)
    if each := _NUM_OF_HOST.search(value_of(words, ("-gpu",)) or ""):
        yield from ("--gpus-per-node", each[1])


def _of_flux(words: Sequence[str]) -> Iterator[str]:
    """Nodes, tasks, and devices of a node."""
    for flag, names in (
        ("--nodes", ("-N", "--nodes")), ("--ntasks", ("-n", "--ntasks")), ("--gpus-per-node", ("--gpus-per-node",)),
        ("--ntasks-per-node", ("--tasks-per-node",)),
    ):  # fmt: skip
        value = value_of([part for word in words for part in _apart(word)], names)
        if value and value.isdigit():
            yield from (flag, value)


def _apart(word: str) -> tuple[str, ...]:
    glued = re.fullmatch(r"(-[Nn])(\d+)", word)
    return (glued[1], glued[2]) if glued else (word,)


def ranks_of_jsrun(words: Sequence[str]) -> int | None:
    """Ranks of ``jsrun -n SETS -a TASKS``: of every set of resources as many as it has tasks; None if untold."""
    sets, tasks = value_of(words, ("-n", "--nrs", "-p", "--np")), value_of(words, ("-a", "--tasks_per_rs"))
    if not sets or not sets.isdigit() or (tasks and not tasks.isdigit()):
        return None
    return int(sets) * int(tasks or 1)


def hosts_of(text: str) -> tuple[int, int | None]:
    """Hosts in a hostfile (``name slots=8``, or ``name:8``), and the slots of each if all have as many."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    slots = [re.search(r"(?:slots\s*=\s*|:)(\d+)\s*$", line) for line in lines if line]
    counts = {int(each[1]) if each else None for each in slots}
    return len(slots), counts.pop() if len(counts) == 1 else None

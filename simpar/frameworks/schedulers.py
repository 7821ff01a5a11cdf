"""What batch systems beside Slurm are asked for in a script: the nodes of a job, and the devices and tasks of each.

PBS Professional, Torque and Moab (qsub(1), pbs_resources(7)), IBM Spectrum LSF (bsub, jsrun), Flux (flux-submit(1)),
Grid Engine (qsub(1), complex(5)), Fujitsu's Technical Computing Suite (pjsub) and OAR (oarsub(1)).
Answers are words as Slurm takes them, so that one place reads the sizes of a job.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from simpar.errors import UserError
from simpar.frameworks.reader import value_of

MOST_SLOTS = 1024
"""More devices have no node."""

_LINE = re.compile(r"#(PBS|MSUB|BSUB|flux:|\$|PJM|OAR)\s+(.*)")
_NUM_OF_HOST = re.compile(r"\bnum=(\d+)(?!\d|/task)")
_OF_USAGE = re.compile(r"\bngpus\w*\s*=\s*(\d+)")
"""Devices of a host in LSF's ``rusage[ngpus_excl_p=2]``."""
_OF_QUEUE = re.compile(r"(?:n|num_)?gpus?|gpu_card|cuda")
"""What sites call their devices among Grid Engine's resources, whose names they choose."""
_SHARED = re.compile(r"smp|omp|openmp|shm|shmem|threads?|threaded|multithread|multicore|single", re.IGNORECASE)
"""Parallel environments of one host."""
_PTILE = re.compile(r"\bptile\s*=\s*(\d+)")


def directives(text: str) -> list[str]:
    """The sizes that the lines of a batch system before the first command ask for, in Slurm's words."""
    readers = {"PBS": _of_pbs, "MSUB": _of_pbs, "BSUB": _of_lsf, "flux:": _of_flux, "$": _of_grid_engine,
               "PJM": _of_fujitsu, "OAR": _of_oar}  # fmt: skip
    return [word for name, words in asked_of(text).items() for word in readers[name](words)]


def asked_of(text: str) -> dict[str, list[str]]:
    """The words of batch systems' lines before the first command of a script, by system."""
    asked: dict[str, list[str]] = {}
    for line in text.splitlines():
        if asking := _LINE.match(line):
            asked.setdefault(asking[1], []).extend(_split(asking[2]))
        elif line.strip() and not line.startswith("#"):
            break
    return asked


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _of_pbs(words: Sequence[str]) -> Iterator[str]:
    """``-l select=4:ngpus=8:mpiprocs=8``, in chunks of nodes, or Torque's ``-l nodes=4:ppn=64:gpus=8``.

    Resources of a job without chunks (``-l ngpus=4``) are one chunk.
    """
    lists = _values(words, "-l")
    if (whole := _resources(lists)).get("ngpus", "").isdecimal() and not whole.keys() & {"select", "nodes"}:
        yield from ("--nodes", "1", "--gpus-per-node", whole["ngpus"])
    for listed in lists:
        named = re.match(r"(?:.*,)?(?:select|nodes)=([^,]+)", listed)
        if named is None:
            continue
        chunks = [chunk.split(":") for chunk in named[1].split("+")]
        if not all(chunk[0].isdecimal() for chunk in chunks):
            continue
        yield from ("--nodes", str(sum(int(chunk[0]) for chunk in chunks)))
        parts = [dict(part.split("=", 1) for part in chunk[1:] if "=" in part) for chunk in chunks]
        for flag, names in (("--gpus-per-node", ("ngpus", "gpus")), ("--ntasks-per-node", ("mpiprocs",))):
            values = {next((part[name] for name in names if name in part), "") for part in parts}
            if len(values) == 1 and (value := values.pop()).isdecimal():
                yield from (flag, value)


def _values(words: Sequence[str], flag: str) -> list[str]:
    """What all ``flag`` of one letter are given, apart or glued (``-l x``, ``-lx``)."""
    apart = [word for before, word in zip(["", *words], words, strict=False) if before == flag]
    return apart + [word.removeprefix(flag) for word in words if word.startswith(flag) and len(word) > len(flag)]


def _resources(lists: Sequence[str]) -> dict[str, str]:
    """Resources by name, of all lists (``h_rt=1:0:0,gpu=2``)."""
    parts = (part.partition("=") for listed in lists for part in listed.split(","))
    return {name.strip(): value.strip() for name, _, value in parts}


def _of_lsf(words: Sequence[str]) -> Iterator[str]:
    """Hosts, or slots and how many of a host, and ``-gpu "num=8"`` of a host; slots alone may be cores."""
    slots, nodes = value_of(words, ("-n",)), value_of(words, ("-nnodes",))
    tile = _PTILE.search(value_of(words, ("-R",)) or "")
    if nodes is None and tile and slots and slots.isdecimal():
        nodes = str(-(-int(slots) // int(tile[1])))
    if nodes and nodes.isdecimal():
        yield from ("--nodes", nodes)
    told = value_of(words, ("-gpu",)) or ""
    usage = next((used for listed in _values(words, "-R") if (used := _OF_USAGE.search(listed))), None)
    if each := _NUM_OF_HOST.search(told) or (None if told else usage):
        yield from ("--gpus-per-node", each[1])


def _of_flux(words: Sequence[str]) -> Iterator[str]:
    """Nodes, tasks, and devices of a node."""
    for flag, names in (
        ("--nodes", ("-N", "--nodes")), ("--ntasks", ("-n", "--ntasks")), ("--gpus-per-node", ("--gpus-per-node",)),
        ("--ntasks-per-node", ("--tasks-per-node",)),
    ):  # fmt: skip
        value = value_of([part for word in words for part in _apart(word)], names)
        if value and value.isdecimal():
            yield from (flag, value)


def _of_grid_engine(words: Sequence[str]) -> Iterator[str]:
    """Devices of a job on one host (``-l gpu=2``); none where a parallel environment spreads its slots over several."""
    counts = [value for name, value in _resources(_values(words, "-l")).items() if _OF_QUEUE.fullmatch(name)]
    is_of_host = _SHARED.fullmatch(value_of(words, ("-pe",)) or "smp")
    if is_of_host and len(counts) == 1 and counts[0].isdecimal():
        yield from ("--nodes", "1", "--gpus-per-node", counts[0])


def _of_fujitsu(words: Sequence[str]) -> Iterator[str]:
    """``-L node=2``, ``-L gpu=4`` of a node."""
    told = _resources(_values(words, "-L"))
    for flag, name in (("--nodes", "node"), ("--gpus-per-node", "gpu")):
        if (value := told.get(name, "")).isdecimal():
            yield from (flag, value)


def _of_oar(words: Sequence[str]) -> Iterator[str]:
    """``-l /host=2/gpu=4,walltime=1:0:0``."""
    told = _resources([listed.replace("/", ",") for listed in _values(words, "-l")])
    for flag, names in (("--nodes", ("host", "nodes", "node")), ("--gpus-per-node", ("gpu", "gpu_device"))):
        value = next((told[name] for name in names if name in told), "")
        if value.isdecimal():
            yield from (flag, value)


def _apart(word: str) -> tuple[str, ...]:
    glued = re.fullmatch(r"(-[Nn])(\d+)", word)
    return (glued[1], glued[2]) if glued else (word,)


def ranks_of_jsrun(words: Sequence[str]) -> int | None:
    """Ranks of ``jsrun -n SETS -a TASKS``: of every set of resources as many as it has tasks; None if untold."""
    sets, tasks = value_of(words, ("-n", "--nrs", "-p", "--np")), value_of(words, ("-a", "--tasks_per_rs"))
    if not sets or not sets.isdecimal() or (tasks and not tasks.isdecimal()):
        return None
    return int(sets) * int(tasks or 1)


def hosts_of(text: str, source: str) -> dict[str, int | None]:
    """The slots of every host of a hostfile (``name slots=8``, or ``name:8``), None where nothing says any.

    A host that stands there several times has the slots of all its lines, one of each without a number. Raises
    UserError for a host with none, or with more than a node has.
    """
    lines: dict[str, list[int | None]] = {}
    for line in (line.split("#")[0].strip() for line in text.splitlines()):
        if line:
            slots = re.search(r"(?:slots\s*=\s*|:)(\d+)\b", line)
            lines.setdefault(re.split(r"[\s:]", line)[0], []).append(int(slots[1]) if slots else None)
    hosts = {host: None if told == [None] else sum(1 if each is None else each for each in told)
             for host, told in lines.items()}  # fmt: skip
    for host, count in hosts.items():
        if count is not None and not 1 <= count <= MOST_SLOTS:
            raise UserError(f"{source}: {host}: slots = {count}: allowed: 1 to {MOST_SLOTS:,} of a node")
    return hosts

"""The launcher of a job: the nodes and ranks that a launch command or a batch script asks for, and what it starts.

Words are those of :class:`~simpar.frameworks.shell.Script`: a value that only running would tell counts as not given.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath

from simpar.frameworks import READERS, load_reader
from simpar.frameworks.reader import value_of
from simpar.frameworks.shell import Script
from simpar.frameworks.words import ReadWords

Flags = dict[str, tuple[str, ...]]
NODES: Flags = {
    "torchrun": ("--nnodes",),
    "srun": ("--nodes", "-N"),
    "sbatch": ("--nodes", "-N"),
    "deepspeed": ("--num_nodes", "--num-nodes"),
    "accelerate": ("--num_machines", "--num-machines"),
}
"""Flags for the number of nodes, by launcher; torchrun's also hold for torch.distributed.run and .launch."""
PER_NODE: Flags = {
    "torchrun": ("--nproc-per-node", "--nproc_per_node"),
    "srun": ("--gpus-per-node", "--ntasks-per-node", "--gres"),
    "sbatch": ("--gpus-per-node", "--ntasks-per-node", "--gres"),
    "deepspeed": ("--num_gpus", "--num-gpus"),
    "mpirun": ("-npernode", "--npernode"),
}
"""Flags for the ranks per node."""
RANKS: Flags = {
    "mpirun": ("-np", "-n", "--n"),
    "accelerate": ("--num_processes", "--num-processes"),
    "srun": ("--ntasks", "-n", "--gpus", "-G"),
    "sbatch": ("--ntasks", "-n", "--gpus", "-G"),
}
"""Flags for the total number of ranks."""
TASKS = ("--ntasks-per-node", "--ntasks", "-n", "-np", "--n", "-npernode", "--npernode")
"""Flags that count tasks: ranks, unless each task is a launcher that starts the ranks of its node."""
OF_A_NODE = ("torchrun", "deepspeed", "accelerate")
"""Launchers that start the ranks of one node."""
ALONE: Flags = {"torchrun": (), "deepspeed": ("--hostfile", "-H", "--include", "-i")}
"""Launchers that start a single node unless a number of nodes or one of these flags is given."""
STARTS_ITSELF = ("llama-factory", "trl", "axolotl")
"""Front ends that start the ranks of one node themselves."""
MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun", "tune": "torchrun"}
ALIASES = {"mpiexec": "mpirun", "horovodrun": "mpirun"}
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
"""Variables that list the devices of a node that a job may use."""
OF_NODE = ("NPROC_PER_NODE", "NGPU")
"""Variables in which front ends take the ranks of a node (ms-swift, LLaMA-Factory; torchtitan)."""
OF_ONE = ("megatron-swift",)
"""Readers of front ends that start one process where no variable asks for more."""
OF_NODES = ("NNODES",)
"""Variables in which the same front ends take the number of nodes."""
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_INCLUDED = ("--include", "-i")


IDLE = (
    "--rdzv*", "--master*", "--node-rank", "--standalone", "--log-dir", "--local-ranks-filter", "--tee", "--redirects",
    "-r", "--max-restarts", "--monitor-interval", "--role", "--start-method", "--hostfile", "--machine-rank",
    "--main-process-*", "--launcher", "--num-cpu-threads-per-process", "--job-name", "--partition", "--account",
    "--time", "--output", "--error", "--exclusive", "--cpus-per-task", "--mem", "--container-*", "--no-container-*",
    "--label", "--export", "--ssh-port", "--no-python", "--module", "-m",
)  # fmt: skip
"""Launchers' flags that change neither the layout nor the time of a step, as patterns."""


@dataclass(frozen=True)
class LaunchCommand:
    """What a command starts: the reader of it, the config file it names, nodes, and ranks of each.

    ``target`` is None if no framework is recognised; numbers are None if they are not given. ``environment`` are the
    variables of the command.
    """

    target: str | None
    config: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    ranks: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int | None:
        """The total number of ranks, None if the command does not give it."""
        if self.nodes and self.per_node:
            return self.nodes * self.per_node
        return self.ranks


def launch_of(text: str, source: str) -> LaunchCommand:
    """What a command or a shell script starts. Raises UserError if it is not shell text."""
    script = Script(text, source)
    commands = script.commands
    target, config = None, None
    environment = {name: " ".join(words) for name, words in script.variables.items()}
    for words, given in zip(commands, script.environments, strict=True):
        if (started := _started(words)) is not None:
            (target, config), environment = started, given
            break
    told = [(launcher, words) for words in commands for launcher, words in _launchers(words)]
    told += [("sbatch", match.split()) for match in _SBATCH.findall(text)]
    of_ranks = [PER_NODE, RANKS]
    if any(launcher in OF_A_NODE for launcher, _ in told):
        of_ranks = [{name: _but(flags, TASKS) for name, flags in known.items()} for known in of_ranks]
    nodes, per_node, ranks = (_first(told, flags) for flags in (NODES, *of_ranks))
    nodes = nodes or _of_environment(environment, OF_NODES)
    included = next((value for launcher, words in told if launcher == "deepspeed"
                     if (value := value_of(words, _INCLUDED))), None)  # fmt: skip
    if included is not None and per_node is None:
        nodes, per_node = _included(included)
    if per_node is None and ranks is None:
        per_node = _of_environment(environment, OF_NODE) or _visible(environment)
    if target in OF_ONE and per_node is None and ranks is None:
        per_node = 1
    if nodes is None and ranks is None and _starts_alone(told, target, per_node) and not _any(environment, OF_NODES):
        nodes = 1
    return LaunchCommand(target, config, nodes, per_node, ranks, environment)


def without_launchers(words: ReadWords) -> tuple[ReadWords, tuple[str, ...]]:
    """The words of a command without its launchers' flags that only start it, and the names of these.

    Flags for nodes and ranks, which this module reads, count as used.
    """
    known = {flag.replace("_", "-") for flags in (NODES, PER_NODE, RANKS) for each in flags.values() for flag in each}
    spelt = {word: word.replace("_", "-") for word in words.unread}
    used = tuple(word for word in spelt if spelt[word] in known)
    idle = tuple(word for word in spelt if any(fnmatchcase(spelt[word], each) for each in IDLE))
    left = {word: value for word, value in words.unread.items() if word not in (*used, *idle)}
    return ReadWords((*words.used, *used), left), idle


def _started(words: Sequence[str]) -> tuple[str, str | None] | None:
    """The reader and config file of one command; None if it starts no known framework."""
    for name in READERS:
        reader = load_reader(name)
        if reader.starts(words):
            return name, reader.config(words)
    return None


def _of_environment(environment: Mapping[str, str], names: Iterable[str]) -> int | None:
    """The first number among variables."""
    values = (environment.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdigit() and int(value)), None)


def _any(environment: Mapping[str, str], names: Iterable[str]) -> bool:
    """Whether a variable is given, even if its value is not known."""
    return any(environment.get(name) for name in names)


def _visible(environment: Mapping[str, str]) -> int | None:
    """The number of devices that a job may use of a node; None if no variable lists them."""
    listed = next((environment[name] for name in VISIBLE if environment.get(name)), "")
    devices = [each for each in listed.split(",") if each.strip()]
    return len(devices) if devices and all(re.fullmatch(r"\s*[\w-]+\s*", each) for each in devices) else None


def _included(text: str) -> tuple[int, int | None]:
    """Nodes and devices of each in DeepSpeed's ``host:0,1@host2:0,1`` (``launcher/runner.py``, parse_resource_filter).

    The number of devices is None where whole nodes are named, or unequal parts of them.
    """
    hosts = [host.partition(":")[2] for host in text.split("@")]
    counts = {len(devices.split(",")) if devices else None for devices in hosts}
    return len(hosts), counts.pop() if len(counts) == 1 else None


def _launchers(words: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
    """Launchers of a command, each with its own flags: everything up to the next launcher or the script."""
    result: list[tuple[str, list[str]]] = []
    for word in words:
        name = PurePath(word).name
        launcher = MODULES.get(word) or ALIASES.get(name, name)
        if launcher in (*NODES, *PER_NODE):
            result.append((launcher, []))
        elif word.endswith(".py"):
            break
        elif result:
            result[-1][1].append(word)
    return result


def _is_alone(told: Sequence[tuple[str, list[str]]]) -> bool:
    """Whether a launcher starts a single node because nothing else is asked of it."""
    if any(launcher in ("srun", "sbatch", "mpirun") for launcher, _ in told):
        return False
    return any(
        launcher in ALONE and value_of(words, (*NODES[launcher], *ALONE[launcher])) is None for launcher, words in told
    )


def _starts_alone(told: Sequence[tuple[str, list[str]]], target: str | None, per_node: int | None) -> bool:
    """Whether a single node is started: nothing else is asked of a launcher, or of a front end that is one."""
    return _is_alone(told) or target in OF_ONE or (per_node is not None and target in STARTS_ITSELF)


def _but(flags: Iterable[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if flag not in others)


def _first(told: Iterable[tuple[str, list[str]]], flags: Flags) -> int | None:
    """The first number that a launcher gets by one of its flags."""
    values = (value_of(words, (flag,)) for launcher, words in told for flag in flags.get(launcher, ()))
    return next((count for value in values if value and (count := _count(value))), None)


def _count(value: str) -> int | None:
    """A number of nodes or devices: ``8``, of a kind (``gpu:h100:8``), or of elastic nodes (``4:4``)."""
    last = re.fullmatch(r"(?:gpu:|[\w-]+:)*(\d+)(?:\(.*\))?", value)
    return int(last[1]) or None if last else None

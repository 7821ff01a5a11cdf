"""The launcher of a job: the nodes and ranks that a launch command or a batch script asks for, and what it starts.

Words are those of :class:`~simpar.frameworks.shell.Script`: a value that only running would tell counts as not given.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from simpar.frameworks.megatron_arguments import TELLING
from simpar.frameworks.shell import Script

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
    "srun": ("--gpus-per-node", "--ntasks-per-node"),
    "sbatch": ("--gpus-per-node", "--ntasks-per-node"),
    "deepspeed": ("--num_gpus", "--num-gpus"),
    "mpirun": ("-npernode", "--npernode"),
}
"""Flags for the ranks per node."""
RANKS: Flags = {
    "mpirun": ("-np", "-n", "--n"),
    "accelerate": ("--num_processes", "--num-processes"),
    "srun": ("--ntasks", "-n"),
}
"""Flags for the total number of ranks."""
TASKS = ("--ntasks-per-node", "--ntasks", "-n", "-np", "--n", "-npernode", "--npernode")
"""Flags that count tasks: ranks, unless each task is a launcher that starts the ranks of its node."""
OF_A_NODE = ("torchrun", "deepspeed", "accelerate")
"""Launchers that start the ranks of one node."""
ALONE: Flags = {"torchrun": (), "deepspeed": ("--hostfile", "-H", "--include", "-i")}
"""Launchers that start a single node unless a number of nodes or one of these flags is given."""
MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun"}
ALIASES = {"mpiexec": "mpirun", "horovodrun": "mpirun"}
CONFIGS: Flags = {
    "accelerate": ("--config_file", "--config-file"),
    "torchtitan-0.2": ("--job.config_file", "--job.config-file"),
    "deepspeed": ("--deepspeed_config", "--deepspeed-config", "--deepspeed"),
    "nanotron": ("--config-file",),
}
"""Flags that name the config file of a framework, in the order in which they are tried."""
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class LaunchCommand:
    """What a command starts: the export target that reads it, the config file it names, nodes, and ranks of each.

    ``target`` is None if no framework is recognised; numbers are None if they are not given.
    """

    target: str | None
    config: str | None = None
    nodes: int | None = None
    per_node: int | None = None
    ranks: int | None = None

    @property
    def world_size(self) -> int | None:
        """The total number of ranks, None if the command does not give it."""
        if self.nodes and self.per_node:
            return self.nodes * self.per_node
        return self.ranks


def launch_of(text: str, source: str) -> LaunchCommand:
    """What a command or a shell script starts. Raises UserError if it is not shell text."""
    commands = Script(text, source).commands
    target, config = next(filter(None, map(_started, commands)), (None, None))
    told = [(launcher, words) for words in commands for launcher, words in _launchers(words)]
    told += [("sbatch", match.split()) for match in _SBATCH.findall(text)]
    of_ranks = [PER_NODE, RANKS]
    if any(launcher in OF_A_NODE for launcher, _ in told):
        of_ranks = [{name: _but(flags, TASKS) for name, flags in known.items()} for known in of_ranks]
    nodes, per_node, ranks = (_first(told, flags) for flags in (NODES, *of_ranks))
    if nodes is None and ranks is None and _is_alone(told):
        nodes = 1
    return LaunchCommand(target, config, nodes, per_node, ranks)


def _started(words: Sequence[str]) -> tuple[str, str | None] | None:
    """The target and config file of one command; None if it starts no known framework."""
    flags = {word.partition("=")[0].replace("_", "-") for word in words}
    if flags & set(TELLING):
        return "megatron", None
    for target, names in CONFIGS.items():
        config = _value(words, names)
        known = {"accelerate": "accelerate" in words, "nanotron": any("run_train" in each for each in words)}
        if config and known.get(target, True) and not config.startswith("-"):
            return target, config
    if any(PurePath(word).name.startswith("pretrain_") for word in words):
        return "megatron", None
    return None


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
        launcher in ALONE and _value(words, (*NODES[launcher], *ALONE[launcher])) is None for launcher, words in told
    )


def _but(flags: Iterable[str], others: Sequence[str]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if flag not in others)


def _first(told: Iterable[tuple[str, list[str]]], flags: Flags) -> int | None:
    """The first number that a launcher gets by one of its flags."""
    values = (_value(words, flags[launcher]) for launcher, words in told if launcher in flags)
    return next((int(value) for value in values if value and value.isdigit() and int(value)), None)


def _value(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of a flag; None if it is absent or a switch."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in names:
            after = words[at + 1] if at + 1 < len(words) else ""
            return value if equals else after
    return None

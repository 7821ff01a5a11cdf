"""Which script, or which text, a command hands to a shell, and the scripts of frameworks that are known by name."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import PurePath

from simpar.dataclass import dataclass
from simpar.frameworks.named import SHELLS, STARTERS
from simpar.frameworks.shell_passed import passed_variables
from simpar.regular_files import check_is_file

OF_BCPRUN = ("-c", "--cmd")
SIZES_OF_BCPRUN = ("-n", "--nnodes", "-p", "--npernode")
"""Flags of NGC's launcher: the text for a shell; nodes, and ranks of each."""
JOBS = ("sbatch", "salloc", "qsub", "bsub")
XPK = ("xpk", "xpk.py")
"""Submits a workload to TPUs: ``xpk workload create --command "..."`` (github.com/AI-Hypercomputer/xpk)."""
WRAPPERS = (
    *JOBS, "srun", "mpirun", "mpiexec", "mpiexec.hydra", "jsrun", "aprun", "flux", "exec", "nohup", "time", "timeout",
    "numactl", "taskset", "stdbuf", "nice", "singularity", "apptainer", "docker", "podman", "enroot", "sudo", "command",
    "screen", "hf",
)  # fmt: skip
"""Commands that start another command."""
PLAIN = ("exec", "nohup", "time", "command", "sudo")
"""Those of them that have no say in what is started."""
TYPES = ("tmux", "sky", "ssh", "pdsh", "clush", "pssh", "parallel-ssh")
"""Programs that take a text for a shell as one of their words (``tmux new-session -d "..."``, ``ssh node1 "..."``)."""
FLAG_OF_TEXT = {
    **dict.fromkeys(JOBS, "--wrap"),
    **dict.fromkeys(("su", "runuser", "script"), "-c"),
    "gcloud": "--command",
}
"""Flags of other programs whose value is such a text."""
BEFORE_VARIABLES = ("env", "time", "sudo")
"""Commands behind which variables are set for what they start."""
PRINTING = ("echo", "printf", "cat", "tee", "sed", "grep", "ls")
"""Commands that only print their words, or a file's: what they name is not started."""
SCRIPTS = (".sh", ".bash", ".zsh", ".sbatch", ".slurm", ".slrm", ".job", ".sub")
"""Suffixes of scripts."""
OTHERS = (".py", ".json", ".yaml", ".yml", ".toml", ".sif")
"""Suffixes of files that are no scripts of a shell."""
_PROGRAM = re.compile(r"(python[\d.]*|torchrun|deepspeed|accelerate|.*\.py)")
USUAL_OF_TORCHX = "1x2"
"""Nodes and ranks of each where torchx is not told them (``torchx/components/dist.py``)."""
_VALUED = "oO"
"""Letters of a shell's options that take a value."""


@dataclass(frozen=True)
class Call:
    """A script or a text for a shell: what stands ``before`` it, and its arguments.

    ``path`` names the script. ``text`` is what is known already; with ``is_text`` it stands in the command itself, and
    sees all variables.
    """

    before: list[str]
    path: str
    arguments: list[str]
    text: str | None = None
    is_text: bool = False

    @property
    def is_job(self) -> bool:
        """Whether it is submitted, to run later."""
        return any(PurePath(word).name in JOBS for word in self.before)


@dataclass(frozen=True)
class KnownScript:
    """A framework's own script in short: whose it is, and what it does with its variables and arguments."""

    of: str
    text: str


KNOWN: Mapping[str, KnownScript] = {
    # torchtitan's run_train.sh: CONFIG_FILE up to v0.2, MODULE and CONFIG since
    "run_train.sh": KnownScript(
        "torchtitan",
        'if [ -n "$MODULE" ] || [ -n "$CONFIG" ]; then\n'
        "PYTORCH_ALLOC_CONF=expandable_segments:True torchrun --nproc_per_node=${NGPU:-8} -m torchtitan.train "
        '--module ${MODULE:-llama3} --config ${CONFIG:-llama3_debugmodel} "$@"\n'
        "else\n"
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nproc_per_node=${NGPU:-8} -m torchtitan.train "
        '--job.config_file ${CONFIG_FILE:-torchtitan/models/llama3/train_configs/debug_model.toml} "$@"\n'
        "fi\n",
    ),
    # NeMo-RL's script for Slurm brings Ray up and starts what a variable says
    "ray.sub": KnownScript("NeMo-RL", 'bash -c "$COMMAND"\n'),
}
"""Scripts by name, for where a command names one that is not beside it."""


def is_script_name(name: str) -> bool:
    """Whether a name is one of a shell script."""
    return PurePath(name).suffix in SCRIPTS


def begins_as_script(path: str) -> bool:
    """Whether a file without the name of one begins as a shell script."""
    if PurePath(path).suffix in OTHERS:
        return False
    check_is_file(path, again=True)
    with open(path, "rb") as stream:
        return re.match(rb"#!.*sh\b", stream.readline(200)) is not None


def _flags_of(words: Sequence[str]) -> int:
    """The flags, and values of ``-u``, behind a program such as ``env``."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] == "-u" else 1
    return min(at, len(words)) - 1


def dropped_by_env(words: Sequence[str]) -> list[str]:
    """The variables that ``env -u NAME`` keeps from the command that it starts."""
    at = words.index("env") if "env" in words and {*words[: words.index("env")]} <= {*PLAIN} else len(words)
    flags = words[at + 1 : at + 1 + _flags_of(words[at:])] if at < len(words) else []
    apart = [name for flag, name in pairwise(flags) if flag == "-u"]
    return apart + [each.partition("=")[2] for each in flags if each.startswith("--unset=")]


def without_env(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """A command without ``env`` and what has no say in it, and the variables set, also by launchers' own flags."""
    own = dict[str, str]()
    while words and words[0] in ("env", *PLAIN):
        rest = words[1 + _flags_of(words) if words[0] != "sudo" else 1 :]
        is_set = words[0] in BEFORE_VARIABLES
        given = list(takewhile(lambda word: re.match(r"[A-Za-z_]\w*=", word) is not None, rest if is_set else []))
        own |= dict(word.split("=", 1) for word in given)
        words = rest[len(given) :]
    return words, own | passed_variables(words)


def without_submitter(words: list[str]) -> tuple[list[str], str]:
    """What stands after the ``--`` of a program that submits a command, and that program; "" if there is none."""
    if started := _of_torchx(words):
        return started, "torchx"
    at = words.index("--") if "--" in words else 0
    program = next((word for word in words[:at] if word.endswith(".py")), None)
    if not at or (program is None and PurePath(words[0]).name in (*WRAPPERS, *STARTERS)):
        return words, ""
    name = PurePath(words[at + 1]).name if at + 1 < len(words) else ""
    is_start = name in (*STARTERS, *SHELLS, "uv") or re.fullmatch(r"python[\d.]*", name) is not None
    return (words[at + 1 :], PurePath(program or words[0]).name) if is_start else (words, "")


def _of_torchx(words: Sequence[str]) -> list[str]:
    """What ``torchx run dist.ddp -j 2x8 --script train.py -- ...`` starts: torchrun on its nodes; [] for all others."""
    component = next((at for at, word in enumerate(words) if word in ("dist.ddp", "dist.spmd")), None)
    if not words or PurePath(words[0]).name != "torchx" or component is None:
        return []
    end = words.index("--") if "--" in words else len(words)
    told = dict(pairwise(words[component + 1 : end]))
    told |= dict(word.split("=", 1) for word in words[component + 1 : end] if word.startswith("-") and "=" in word)
    nodes, _, each = told.get("-j", USUAL_OF_TORCHX).rpartition(":")[2].rpartition("x")
    module, script = told.get("-m"), told.get("--script")
    what = ["-m", module] if module else [script] if script else []
    start = ["torchrun", "--nnodes", nodes or "1", "--nproc-per-node", each, *what]
    return [*start, *words[end + 1 :]] if what else []


HOSTFILES = ("--hostfile", "-hostfile", "--machinefile", "-machinefile", "-f")
"""Flags of launchers whose value is a file of hosts."""


def call_of(words: Sequence[str], is_script: Callable[[str], bool]) -> Call | None:
    """The script or the text that a command hands to a shell; None if it starts a program."""
    for at, word in enumerate(words):
        name = PurePath(word).name
        before = [each for each in words[:at] if each not in PLAIN]
        if name in SHELLS:
            return _of_shell(words, at, before)
        flag = "--command" if name in XPK and "workload" in words else FLAG_OF_TEXT.get(name, "")
        if name == "bcprun":
            return _of_bcprun(words[at:])
        if at == 0 and name in TYPES:
            return _of_typed(words)
        if flag and (wrapped := _wrapped(words, flag)) is not None:
            return Call(wrapped[0], "", [], wrapped[1], is_text=True)
        if at == 0 and (name in WRAPPERS or (name == "torchrun" and {"--no-python", "--no_python"} & set(words))):
            continue
        is_path = at > 0 or "/" in word or is_script_name(word)
        is_hosts = at > 0 and words[at - 1] in HOSTFILES
        if is_path and not is_hosts and not word.startswith("-") and is_script(word):
            return Call(before, word, list(words[at + 1 :]))
        if (at == 0 and name not in XPK) or (_PROGRAM.fullmatch(name) and not set(XPK) & set(map(_name, words))):
            return None
    return None


def _of_bcprun(words: Sequence[str]) -> Call | None:
    """The text that NGC's launcher hands to a shell, on so many nodes and ranks of each."""
    given = dict(pairwise(words))
    text = next((given[flag] for flag in OF_BCPRUN if flag in given), None)
    sizes = [each for flag in SIZES_OF_BCPRUN if flag in given for each in (flag, given[flag])]
    return None if text is None else Call(["bcprun", *sizes], "", [], text, is_text=True)


def _of_typed(words: Sequence[str]) -> Call | None:
    """The last word that is a text of several: what a terminal or a machine is told; None for several nodes."""
    text = next((word for word in reversed(words[1:]) if " " in word.strip()), None)
    is_plain = any(" " not in word and _PROGRAM.fullmatch(_name(word)) for word in words[1:])  # its words, one by one
    if text is None or is_plain or any(word.startswith("--num-nodes") for word in words):
        return None
    devices = next((["sky", *pair] for pair in pairwise(words) if pair[0] == "--gpus"), [])
    return Call(devices, "", [], text, is_text=True)


def _name(word: str) -> str:
    return PurePath(word).name


def _of_shell(words: Sequence[str], at: int, before: list[str]) -> Call | None:
    """What a shell at ``at`` reads: the text after ``-c``, or a file."""
    rest = list(words[at + 1 :])
    while rest and rest[0].startswith(("-", "+")) and rest[0] != "-":
        option = rest.pop(0)
        if not option.startswith("--") and "c" in option and rest:
            return Call(before, "", rest[2:], rest[0], is_text=True)
        if not option.startswith("--") and option[-1] in _VALUED and rest:
            rest.pop(0)
    return Call(before, rest[0], rest[1:]) if rest and rest[0] != "-" else None


def _wrapped(words: Sequence[str], asked: str) -> tuple[list[str], str] | None:
    """A command without the flag that is a text for a shell, and that text."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == asked and (equals or at + 1 < len(words)):
            text, after = (value, at + 1) if equals else (words[at + 1], at + 2)
            return [*words[:at], *words[after:]], text
    return None

"""The definition of a reader: which launches and configs it knows, and how it turns one into a plan."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass
from simpar.frameworks.target import Imported
from simpar.frameworks.words import WordTable


def _never(_: Any) -> bool:
    return False


@dataclass(frozen=True)
class DeviceHabits:
    """How a framework takes devices, and counts them.

    ``spawns``: one ``python`` trains on all devices of a node, as it starts their processes or is the only one.
    ``shown`` are the devices that it counts where one of a name is one here; ``merged`` makes a plan of its devices
    one of those here. Raises UserError where it cannot. ``caps``: a micro-batch above the sequences of a rank's step is
    made as large as these.
    """

    spawns: bool = False
    shown: Mapping[str, int] = field(default_factory=dict)
    merged: Callable[[Imported, int], Imported] = field(default=lambda imported, _: imported)
    caps: bool = False


SPAWNS = DeviceHabits(spawns=True)
ONE_PROCESS = "Python starts one process: one device (several visible ones would be driven by DataParallel)."
"""What a note says of a trainer's script that nothing but Python starts."""

USE_RAY = "USE_RAY"
"""The variable by which LLaMA-Factory has Ray start its ranks (``extras/misc.py``)."""
ONE_LAUNCHED = "distributed_type NO: accelerate starts one process, whatever num_processes says (commands/launch.py)."
"""What a note says of a config of Accelerate that asks for no distribution."""


@dataclass(frozen=True)
class Reader:
    """What reads the launches or configs of one framework.

    ``read`` turns a text and its name into a plan; files that the text names are looked up beside it
    (:func:`simpar.files.find_beside`). ``starts`` tells whether the words of a command start the framework, and
    ``config`` which config file they name, if that is the text to read (None: the command is). ``owns`` tells whether
    a mapping of a YAML or JSON file is a config of it. ``words`` sorts what ``read`` does not use. ``written_as`` is
    the export target whose options have the same names, for proposals; "" if there is none. ``has_dotted_flags``:
    options of sections are flags of its commands, too. ``trains`` tells whether a command of it trains: if another one
    of the text does, that is read. ``takes_files``: a command may be known only by the file of arguments that it gives
    to its script.
    """

    name: str
    description: str
    read: Callable[[str, str], Imported]
    starts: Callable[[Sequence[str]], bool] = field(default=_never)
    config: Callable[[Sequence[str]], str | None] = field(default=lambda _: None)
    owns: Callable[[Mapping[str, Any]], bool] = field(default=_never)
    words: WordTable = field(default_factory=WordTable)
    written_as: str = ""
    has_dotted_flags: bool = True
    trains: Callable[[Sequence[str]], bool] = field(default=lambda _: True)
    devices: DeviceHabits = field(default_factory=DeviceHabits)
    takes_files: bool = False


def value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the first of the flags ``names`` that has one in a command; None if none has."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in names:
            after = words[at + 1] if at + 1 < len(words) else ""
            told = value if equals else after
            if told and (equals or not re.match(r"-\D", told)):
                return told
    return None


PREFERENCES = frozenset(
    ("dpo", "kto", "orpo", "grpo", "ppo", "rloo", "cpo", "simpo", "gkd", "reward", "rm", "prm", "rlhf", "mpo")
)
"""Words of the name of a script that trains on something else than the next token."""


def trains_on_preferences(script: str) -> bool:
    """Whether a script trains on preferences or rewards, by its name."""
    return not PREFERENCES.isdisjoint(re.split(r"[^a-z]+", script.rpartition("/")[2].lower()))


GENERATES = frozenset(("grpo", "ppo", "rloo", "rlhf"))
"""Those of them whose steps generate."""
WHOLE_STEPS = "launches of verl, NeMo-RL, OpenRLHF, slime, AReaL, ROLL (rlvr), TRL (grpo, rloo) and ms-swift (grpo)"
"""Those of reinforcement learning that are read."""
NOT_READ = f"its reinforcement learning is not read, only {WHOLE_STEPS}; a step is a section, too (post_training)"


def why_refused(script: str) -> str:
    """Why a script or a command that trains on preferences or rewards is refused, by its name."""
    generates = not GENERATES.isdisjoint(re.split(r"[^a-z]+", script.rpartition("/")[2].lower()))
    return NOT_READ if generates else "preferences and rewards are not modelled"

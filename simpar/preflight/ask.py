"""What an installed framework itself makes of a command, on request only: its resolved config, which it prints.

Applications of Hydra print it in place of running (``--cfg job --resolve``): NeMo 1 and verl are such. Their modules
are imported, and nothing is trained. Nothing else that is read is ever executed.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from simpar import files
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.shell_words import UNKNOWN
from simpar.preflight.given import ParsedLaunch

HYDRA = ("--cfg", "job", "--resolve")
ASKED = {"nemo-1": HYDRA, "verl": HYDRA}
"""The flags by which a framework shows its config, by reader."""
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
MOST_S = 120.0
"""Seconds that a framework has to answer."""
SHOWN = 200  # letters of an answer in an error


def ask_framework(given: ParsedLaunch, most_s: float = MOST_S) -> ParsedLaunch:
    """The launch as its framework resolves it; a note says what was asked.

    Raises UserError if the framework shows no config, is not installed, or takes longer than ``most_s``.
    """
    target = given.text.target
    if target not in ASKED:
        raise UserError(f"--ask: {target} shows no resolved config{files.allowed(ASKED)}")
    words = [*_program(given.launch.words, given.where), *ASKED[target]]
    said = shlex.join(words)
    if unknown := next((word for word in words if UNKNOWN.search(word)), None):
        raise UserError(f"{given.where}: --ask: {unknown}: a value that the text does not say")
    own = {name: value for name, value in given.launch.environment.items() if not UNKNOWN.search(value)}
    environment = {**os.environ, **own, "CUDA_VISIBLE_DEVICES": ""}  # no device is needed to compose a config
    try:
        done = subprocess.run(words, env=environment, capture_output=True, timeout=most_s, check=False, text=True,
                              stdin=subprocess.DEVNULL, errors="replace")  # fmt: skip
    except OSError as error:
        raise UserError(f"--ask: {said}: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"--ask: {said}: no answer within {most_s:g} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"--ask: {said}: ended with {done.returncode} ({last[:SHOWN]})")
    answer = read(done.stdout, f"answer of {target}.yaml", target)
    notes = (f"Read as {target} itself resolves it: {said}", *answer.notes)
    return replace(given, found=replace(answer, notes=notes))


def _program(words: Sequence[str], where: str) -> list[str]:
    """The program of a command with its own words, as one process: launchers before it are left out."""
    python = next((word for word in words if os.path.basename(word).startswith("python")), "python")
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words) and words[at + 1] not in LAUNCHERS:
            return [python, *words[at:]]
        if word.endswith(".py"):
            return [python, *words[at:]]
    raise UserError(f"{where}: --ask: starts no program in Python")

"""What ``simpar check`` says of the launch files that a change touches, as the Markdown of one comment.

    python -m simpar.preflight.changes --base origin/main --hardware dgx-h100 '*.sh' 'configs/*.yaml'

The exit code is 3 if a launch does not fit, or is not sure to, 2 if the arguments are wrong, and 0 otherwise: a file
that is no launch is listed and hinders nothing.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.preflight.check import Checked, CheckFlags, check_launch
from simpar.preflight.given import given_words
from simpar.preflight.slices import slice_of
from simpar.report.words import memory_state, step_time_words
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY

MARK = "# simpar:"
"""What a line of a launch begins with that says how to check it: ``# simpar: --hardware dgx-h100 --nodes 4``."""
TITLE = "### simpar check"
MISFIT = 3
LAUNCHES = ("*.sh", "*.sbatch", "*.slurm", "*.yaml", "*.yml", "*.toml")
"""The files that are looked at where none are named."""


@dataclass(frozen=True)
class Verdict:
    """The answer for one file: ``checked``, or the ``reason`` why there is none."""

    path: str
    checked: Checked | None
    reason: str = ""

    @property
    def word(self) -> str:
        """The verdict in a word or three."""
        if self.checked is None:
            return "not read"
        if self.checked.is_sure:
            return "fits"
        return "does not fit" if not self.checked.result.fits else "not sure"

    def row(self) -> str:
        """Its line of the table."""
        if self.checked is None:
            reason = self.reason.partition("; allowed: ")[0]
            return f"| `{self.path}` | {self.word} | {_cell(reason)} | |"
        result = self.checked.result
        return f"| `{self.path}` | **{self.word}** | {memory_state(result, 'too much')} | {step_time_words(result)} |"

    def details(self) -> list[str]:
        """What decides and is not modelled, what may decide, and the patch of the best neighbour."""
        if self.checked is None:
            return []
        account, patch = self.checked.account, self.checked.patch
        words = [f"- `{word}` decides and is not modelled: {what}" for word, what in account.deciding.items()]
        words += [f"- `{word}` is unknown to simpar and may decide" for word in account.unknown]
        lines = [*words, *(("", "A better layout:", "", "```diff", patch.rstrip(), "```") if patch else ())]
        lines = lines if words else lines[1:]
        return ["", f"<details><summary>{self.path}</summary>", "", *lines, "", "</details>"] if lines else []


def _cell(text: str) -> str:
    """A text in one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


class _Arguments(argparse.ArgumentParser):
    """A parser that raises UserError in place of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def _of_launches() -> _Arguments:
    """Flags that a launch may give itself: facts about it, not the probability that it is held to."""
    parser = _Arguments(add_help=False, allow_abbrev=False)
    for flag in ("--hardware", "--model", "--stack"):
        parser.add_argument(flag)
    parser.add_argument("--from", dest="framework")
    for flag in ("--nodes", "--gpus", "--seq-len", "--global-batch"):
        parser.add_argument(flag, type=int)
    return parser


def changed_files(base: str, patterns: Sequence[str]) -> list[str]:
    """Files that a change since its common ancestor with ``base`` adds or edits. Raises UserError outside of git."""
    command = ["git", "diff", "--name-only", "-z", "--diff-filter=d", f"{base}...HEAD", "--", *patterns]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"git diff {base}...HEAD: {(done.stderr.strip().splitlines() or ['failed'])[0]}")
    return [name for name in done.stdout.split("\0") if name]


def verdict_of(path: str, asked: argparse.Namespace) -> Verdict:
    """What a check of a file says, with the flags for all files and, before them, those that the file gives itself."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        own = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
        given = _of_launches().parse_args(shlex.split(" ".join(own)), argparse.Namespace(**vars(asked)))
        facts = CheckFlags(
            given.hardware, given.nodes, given.gpus, given.model, given.seq_len, given.global_batch, given.stack,
            given.fits_with,
        )  # fmt: skip
        with slice_of(facts):
            return Verdict(path, check_launch(given_words([path], given.framework), facts))
    except (UserError, ValueError, OSError) as error:
        return Verdict(path, None, str(error))


def comment_of(verdicts: Sequence[Verdict]) -> str:
    """The Markdown of all verdicts."""
    if not verdicts:
        return f"{TITLE}\n\nNo launch file is changed.\n"
    table = ["| launch | verdict | memory | step time |", "|---|---|---|---|", *(each.row() for each in verdicts)]
    return "\n".join([TITLE, "", *table, *(line for each in verdicts for line in each.details())]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print the comment; returns the exit code."""
    parser = _Arguments(
        description=__doc__, parents=[_of_launches()], allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--base", required=True, help="what the change is compared with, such as origin/main")
    parser.add_argument("--fits-with", type=float, default=DEFAULT_FIT_PROBABILITY, help="as of simpar check")
    parser.add_argument("paths", nargs="*", help="patterns of git for the files to look at")
    try:
        asked = parser.parse_args([*arguments])
        paths = changed_files(asked.base, asked.paths or LAUNCHES)
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    verdicts = [verdict_of(path, asked) for path in paths]
    sys.stdout.write(comment_of(verdicts))
    return MISFIT if any(each.checked and not each.checked.is_sure for each in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

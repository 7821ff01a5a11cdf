"""What a launch's checkpoint is that the answer is not: longer tables of positions, towers that are left out."""

from simpar.architectures.encoders import left_out_of
from simpar.frameworks.words import Account
from simpar.planner.problem import Problem
from simpar.preflight.given import ParsedLaunch

TRAINERS = frozenset(("transformers", "trl", "llama-factory", "axolotl", "unsloth", "swift"))
"""Readers of launches that load checkpoints, whose tables of positions are as long as they are."""


def account_of_checkpoint(given: ParsedLaunch, problem: Problem) -> Account:
    """What decides and is not modelled."""
    return _of_positions(given, problem) + _of_parts(problem)


def _of_positions(given: ParsedLaunch, problem: Problem) -> Account:
    """Sequences that a checkpoint has no positions for: its table ends before them."""
    longest, told = problem.graph.longest, problem.training.seq_len
    if longest is None or told <= longest or given.text.target not in TRAINERS:
        return Account()
    what = f"{told:,} tokens, {problem.graph.name} has {longest:,} positions: the script fails or cuts texts there, "
    return Account(deciding={"sequence length": f"{what}answered as if the table were longer"})


def _of_parts(problem: Problem) -> Account:
    """Towers and the like that the checkpoint has, and that are answered as if it had none."""
    left_out = left_out_of(problem.graph)
    return Account(deciding={f"model {problem.graph.name}": "; ".join(left_out)}) if left_out else Account()

"""Refusals name what a tool takes, not flags of the command line."""

import re

import pytest
from typer.main import get_command

import simpar.cli as cli
from simpar.cli.flags import complete_commands
from simpar.errors import UserError
from simpar.mcp.tools import TOOLS, call
from simpar.mcp.wording import FIELDS, KEYS, in_fields

JOB = {"model": "gpt2", "cluster": {"hardware": "laptop-cpu-4"}, "training": {"seq_len": 128, "global_batch": 8}}
SEARCH, CHECK, LEARN = (TOOLS[name].takes.model_fields for name in ("search", "check", "learn"))

LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
    "--seq-length 1024 --micro-batch-size 4 --global-batch-size 64 --max-position-embeddings 1024"
)


@pytest.mark.parametrize(
    ("fields", "said", "wanted"),
    [
        (SEARCH, "give --seq-len TOKENS, or a file", 'give set {"training.seq_len": TOKENS}, or a file'),
        (SEARCH, "try --portable any", "try portable = any"),
        (
            SEARCH,
            "no --fix tp; --fix zero=3, --fit-probability 0.5",
            'no fixed tp; fixed {"zero": 3}, fit_probability = 0.5',
        ),
        (SEARCH, "--fix foo: no axis", "fixed foo: no axis"),
        (SEARCH, "--tp 4 --no-sequence-parallel", 'set {"plan.tp": 4} set {"plan.sequence_parallel": false}'),
        (SEARCH, "--set plan.zero=3: no", 'set {"plan.zero": 3}: no'),
        (SEARCH, "--suggest: is of the shortest step", "suggest: is of the shortest step"),
        (SEARCH, "`simpar run PLAN --jitter SIGMA`, --space all", "`simpar run PLAN --jitter SIGMA`, --space all"),
        (CHECK, "--hardware is missing: give --nodes N", "hardware is missing: give nodes = N"),
        (CHECK, "one of readers, or --from and one", "one of readers, or framework and one"),
        (CHECK, "x.sh: --nodes 4 contradicts --model x", "x.sh: --nodes 4 contradicts --model x"),
        (LEARN, "give --seq-len TOKENS or --stack NAME", "give --seq-len TOKENS or stack = NAME"),
    ],
)
def test_flags_are_said_as_fields(fields, said, wanted):
    """With their values; what the tool has no field for stays as it is."""
    assert in_fields(said, fields) == wanted


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("simulate", {"set": {"model": "gpt2"}}, 'give set {"cluster.hardware": NAME}'),
        ("search", {"scenario": JOB, "fixed": {"tpp": 2}}, "^fixed tpp: no axis; did you mean"),
        ("search", {"scenario": JOB, "fixed": {"zero": 5}}, 'fixed {"zero": 5}'),
        ("search", {"scenario": JOB, "suggest": 1, "objective": "energy"}, "^suggest: .* objective = regret"),
        ("simulate", {"scenario": {**JOB, "plan": {"zero": 7}}}, "^plan.zero = 7: allowed: 0, 1, 2 or 3"),
        ("check", {"launch": LAUNCH}, "^hardware is missing"),
    ],
)
def test_refusals_of_tools_name_no_flag(tool, arguments, words):
    """Asked as an agent would."""
    with pytest.raises(UserError, match=words.replace("{", r"\{").replace("}", r"\}")) as refused:
        call(tool, arguments, lambda _: None, 60)
    assert "--" not in re.sub("`[^`]*`", "", str(refused.value))


def test_what_stands_for_fields_are_flags_of_commands():
    """No flag is translated that no command has any more."""
    complete_commands()
    commands = get_command(cli.app).commands.values()
    flags = {
        each for command in commands for option in command.params for each in (*option.opts, *option.secondary_opts)
    }
    assert {*KEYS, *FIELDS} <= flags

"""What flags say about themselves is what plans take."""

import re

import pytest

from simpar import cli
from simpar.cli.flags import scenario_flags, values_by_key
from simpar.errors import UserError
from simpar.plan.sync import SCHEMES


def listed(name: str) -> list[str]:
    """The values that the help of a flag lists, in its order."""
    (told,) = (flag.help for flag in scenario_flags() if flag.name == name)
    return re.split(r", | or ", told.rpartition(": ")[2])


def test_help_lists_the_values_that_a_plan_may_have():
    """Schemes of cooperation; schedules, optimizers, precisions and stacks have lists of their own."""
    assert listed("sync") == [*SCHEMES]


def test_a_network_is_the_end_of_the_name_of_hardware():
    """So every command that takes hardware takes it; alone it joins nothing."""
    given = dict.fromkeys(flag.name for flag in scenario_flags())
    told = values_by_key({**given, "hardware": "dgx-h100", "network": "25 Gb/s ethernet"})
    assert told == {"cluster.hardware": "dgx-h100 over 25 Gb/s ethernet"}
    with pytest.raises(UserError, match="--network 25GbE: allowed with --hardware"):
        values_by_key({**given, "network": "25GbE"})


def test_qlora_is_short_for_adapters_beside_weights_in_four_bits():
    """Flags that say otherwise hold; without it nothing is set."""
    given = dict.fromkeys(flag.name for flag in scenario_flags())
    assert values_by_key(given | {"qlora": False}) == {}
    assert values_by_key(given | {"qlora": True}) == {"plan.lora_rank": 16, "plan.frozen_dtype": "nf4"}
    told = values_by_key(given | {"qlora": True, "lora_rank": 64, "frozen_dtype": "fp8"})
    assert told == {"plan.lora_rank": 64, "plan.frozen_dtype": "fp8"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--lora", "--lora-rank 16"),
        ("--load-in-4bit", "--qlora"),
        ("--lora-r", "--lora-rank"),
        ("--peft", "--lora-rank"),
    ],
)
def test_words_of_fine_tuning_lead_to_their_flags(typed, meant, capsys):
    """What people who fine-tune type first."""
    assert cli.run(["simulate", "gpt2-laptop", typed]) == 2
    assert capsys.readouterr().err == f"No such option: {typed}; did you mean {meant}?\n"


def test_one_card_fine_tunes_with_one_command(capsys):
    """QLoRA of 8B fits a 24 GB card where training all of it does not, and the answer says what is trained."""
    job = ["simulate", "--model", "llama-3.1-8b", "--hardware", "rtx-4090-8", "--gpus", "1"]
    job += ["--seq-len", "2048", "--global-batch", "8", "--recompute", "full"]
    assert cli.run([*job, "--qlora"]) == 0
    told = capsys.readouterr().out
    assert "LoRA 16 on nf4" in told
    assert "memory                    fits:" in told
    cli.run(job)
    told = capsys.readouterr().out
    assert "LoRA" not in told
    assert "too much" in told


@pytest.mark.parametrize("flag", ["--stack", "--network", "--json", "--html", "--hardware", "--schedule"])
def test_an_option_of_a_variable_that_is_not_set(flag, capsys):
    """``--json "$OUT"`` would lose the result, and ``--stack "$STACK"`` answer for another one."""
    job = ["--model", "llama-3-8b", "--hardware", "dgx-h100", "--seq-len", "4096", "--global-batch", "8"]
    for arguments in ([*job, flag, ""], [*job, f"{flag}="]):
        assert cli.run(["simulate", *arguments]) == 2
        assert capsys.readouterr() == ("", f"{flag} '': is empty; allowed: a value, or no {flag}\n")

"""Which parameters a run may tell: those that its stack has and its layout uses."""

import numpy as np
import pytest

from simpar.learning.parameters import names_of, spread_of
from simpar.stacks.stack import load_stack
from simpar.validation.predict import NO_TUNING
from simpar.validation.rows import case
from tests.learning.test_fit import ROW

HOOKS = "launch.host_time_per_module_s"


@pytest.mark.parametrize(
    ("stack", "zero", "told"),
    [
        ("deepspeed", "3", {HOOKS, "launch.host_time_per_array_s"}),
        ("deepspeed", "0", {"launch.host_time_per_array_s"}),
        ("fsdp", "3", {"launch.host_time_per_unit_s"}),
        ("megatron", "3", set()),
    ],
)
def test_hooks_are_told_where_they_run(stack, zero, told):
    """By stacks that have them, modules and units where states are sharded, arrays in every update."""
    run = case({**ROW, "stack": stack, "tp": "1", "dp": "16", "zero": zero})
    hosts = {key for _, _, key in names_of(run, NO_TUNING) if key.startswith("launch.host_time")}
    assert hosts - {"launch.host_time_per_kernel_s"} == told


def test_hooks_that_nobody_measured_may_differ_by_a_tenth_of_a_millisecond():
    """Most stacks have none, so their spread is at least that of a few calls in Python."""
    assert spread_of("stack", HOOKS) >= 1e-4


def test_stacks_that_no_run_stands_behind_say_nothing_of_how_far_stacks_differ():
    """Nanochat's profile follows its source code and has most values from another one: it is no further witness."""
    measured = ("megatron-deepspeed", "megatron-sc21", "huggingface", "megatron", "megatron-22", "nanotron", "fsdp",
                "internevo", "maxtext", "paxml", "kempnerforge", "llama3", "nemo", "deepspeed-21", "nemo-24",
                "automodel", "deepspeed", "llm-foundry", "torchtitan", "torchtitan-eager")  # fmt: skip
    values = np.array([load_stack(name).memory.logit_bytes for name in measured])
    differ = np.sqrt(np.mean((values - np.median(values)) ** 2))
    assert spread_of("stack", "memory.logit_bytes") == pytest.approx(differ)

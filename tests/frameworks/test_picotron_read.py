"""Picotron's JSON and commands as a plan."""

import json

import pytest

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.recipes import nest_names
from simpar.preflight.check import CheckFlags, check_launch
from simpar.preflight.given import given_words

CONFIG = {
    "distributed.tp_size": 1, "distributed.cp_size": 1, "distributed.pp_size": 1, "distributed.dp_size": 8,
    "distributed.pp_engine": "1f1b", "distributed.use_cpu": False, "model.name": "meta-llama/Llama-2-7b-hf",
    "model.num_hidden_layers": 16, "model.num_attention_heads": 32, "model.num_key_value_heads": 8,
    "model.use_fused_adam": True, "training.seq_length": 1024, "training.micro_batch_size": 4,
    "training.gradient_accumulation_steps": 2, "environment.FLASH_ATTEN": "1",
}  # fmt: skip


def written(**words: object) -> str:
    """A config with other words: sections are parted by two underscores, None removes one."""
    changed = {**CONFIG, **{key.replace("__", "."): value for key, value in words.items()}}
    return json.dumps(nest_names({key: value for key, value in changed.items() if value is not None}))


def imported(**words: object) -> object:
    """What is read of a config with other words."""
    return read(written(**words), "config.json", "picotron")


def test_a_config() -> None:
    """The named model with the sizes of the file, an output projection of its own; bf16 with gradients in fp32."""
    found = imported()
    plan = found.plan
    graph = read_config(found.config)
    matrices = 16 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 11008)
    assert graph.num_parameters() == matrices + 2 * 32000 * 4096 + (2 * 16 + 1) * 4096
    assert (plan.mesh.dp, plan.training, plan.stack) == (8, {"seq_len": 1024, "global_batch": 64}, "nanotron")
    assert (plan.execution.parameter_dtype, plan.numerics.grad_dtype, plan.numerics.moment_dtype) == (
        "bf16", "fp32", "bf16",
    )  # fmt: skip
    assert (plan.execution.attention_kernel, plan.data_parallel.bucket_bytes) == ("flash2", 25 * 2**20)
    account = load_reader("picotron").words.sort(found.words.used, found.words.unread)
    assert account.is_understood


@pytest.mark.parametrize(
    ("words", "expected", "decides"),
    [
        ({"distributed__dp_size": 1}, {"grad_dtype": "bf16", "bucket_bytes": None}, set()),
        ({"distributed__pp_size": 2}, {"pp": 2, "schedule": "1f1b"}, set()),
        ({"distributed__pp_size": 2, "distributed__pp_engine": "afab"}, {"schedule": "gpipe"}, set()),
        ({"distributed__tp_size": 2}, {"tp": 2, "sequence_parallel": False}, {"distributed.tp_size"}),
        ({"distributed__cp_size": 2, "distributed__dp_size": 1},
         {"cp": 2, "cp_method": "ring", "attention_kernel": "eager", "grad_dtype": "fp32"}, {"distributed.cp_size"}),
        ({"environment__FLASH_ATTEN": "0"}, {"attention_kernel": "sdpa", "fused_kernels": "none"}, set()),
        ({"model__use_fused_adam": False}, {"optimizer_kernels": "foreach"}, set()),
    ],
)  # fmt: skip
def test_words(words: dict[str, object], expected: dict[str, object], decides: set[str]) -> None:
    """Axes and kernels; what no plan has decides."""
    found = imported(**words)
    values = found.plan.flat_values()
    assert expected == {key: values.get(key) for key in expected}
    assert set(load_reader("picotron").words.sort(found.words.used, found.words.unread).deciding) == decides


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"distributed__use_cpu": True}, "distributed.use_cpu = true: allowed: false"),
        (
            {"distributed__pp_size": 2, "distributed__pp_engine": "zb"},
            "distributed.pp_engine = zb: allowed: 1f1b, afab",
        ),
        ({"distributed__tp_size": "two"}, "distributed.tp_size = 'two': allowed: a positive integer"),
        ({"training__seq_length": None}, "training.seq_length is missing; allowed: tokens of a sequence"),
        ({"distributed__cp_size": None}, "no config of Picotron"),
    ],
)
def test_what_it_does_not_train_is_refused(words: dict[str, object], message: str) -> None:
    """One line with file, word, value and what is allowed."""
    with pytest.raises(UserError, match=r"config\.json(:\d+)?: ") as error:
        imported(**words)
    assert message in str(error.value)


def test_a_model_that_is_not_shipped_is_asked_for() -> None:
    """By its name."""
    found = imported(model__name="a/b")
    assert (found.config, found.asks) == (None, {"model": "a/b is no shipped model: give --model."})


def test_a_command_starts_as_many_ranks_as_its_config_has_axes(tmp_path) -> None:
    """train.py asserts it."""
    (tmp_path / "config.json").write_text(written())
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node 8 train.py --config config.json\n")
    given = given_words([str(script)])
    assert (given.text.target, given.launch.world_size) == ("picotron", 8)
    checked = check_launch(given, CheckFlags(hardware="dgx-h100"))
    assert (checked.result.plan.mesh.dp, checked.is_sure) == (8, True)
    script.write_text("torchrun --nproc_per_node 4 train.py --config config.json\n")
    with pytest.raises(UserError, match=r"dp = 8.*4 ranks|4.*allowed"):
        check_launch(given_words([str(script)]), CheckFlags(hardware="dgx-h100"))

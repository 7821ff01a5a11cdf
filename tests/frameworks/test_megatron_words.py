"""Every argument of Megatron-LM is used, without effect, or deciding."""

from pathlib import Path

import pytest

from simpar.frameworks.megatron_arguments import read_arguments
from simpar.frameworks.megatron_read import plan_of
from simpar.frameworks.megatron_words import MEGATRON_WORDS

NAMES = (Path(__file__).parent / "tables" / "megatron-arguments.txt").read_text().split()
"""Arguments of megatron/training/arguments.py and its config classes (github.com/NVIDIA/Megatron-LM, d98e8a6)."""
COMMANDS = (
    "--micro-batch-size 1 --num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 32000",
    (
        "--micro-batch-size 1 --num-layers 8 --hidden-size 512 --num-experts 8 --moe-layer-freq 1"
        " --multi-latent-attention --recompute-granularity full --optimizer-cpu-offload --fp8-format e4m3"
    ),
    "--micro-batch-size 1 --fp4-format e2m1 --use-torch-fsdp2 --context-parallel-size 2 --cuda-graph-impl none",
    "--micro-batch-size 1 --use-megatron-fsdp --recompute-granularity selective --use-distributed-optimizer",
)


@pytest.fixture(scope="module")
def used():
    """The arguments that are asked for, in commands of several kinds."""
    result = {"--gated-linear-unit", "--num-moe-experts"}  # of YAML files, by another name
    for command in COMMANDS:
        given = read_arguments(f"pretrain_gpt.py {command}", "a command")
        plan_of(given)
        result |= given.used
    return result


def test_every_argument_is_sorted(used):
    """None is unknown: what is not used is in the table."""
    found = MEGATRON_WORDS.sort((), {name: "x" for name in NAMES if name not in used})
    assert len(NAMES) > 900
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("--cpu-offloading-num-layers", "host"),
        ("--no-rope-fusion", "not fused"),
        ("--disable-parameter-transpose-cache", "8-bit weights"),
        ("--experimental-attention-variant", "layers of another kind"),
    ],
)
def test_what_decides(name, what):
    """It says what it could change."""
    assert what in MEGATRON_WORDS.sort((), {name: "x"}).deciding[name]

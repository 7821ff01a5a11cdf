"""nanochat's pretraining: what its depth gives, batches that it finds, and its first months."""

import pytest

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words

SPEEDRUN = (
    "torchrun --standalone --nproc_per_node=8 -m scripts.base_train -- --depth=24 --target-param-data-ratio=8 "
    "--device-batch-size=16 --fp8 --run=dummy"
)


def test_the_speedrun():
    """Its model by closed form: 12 d^2 a layer, gates of 12 features, two tables and those of every other layer."""
    result = given_words(SPEEDRUN.split())
    found = result.found
    assert (result.text.target, result.launch.world_size) == ("nanochat", 8)
    assert found.config is not None
    hidden, depth, heads, words = 1536, 24, 12, 32768
    layers = 12 * hidden**2 * depth + depth // 2 * 12 * heads
    graph = read_config(found.config, "d24")
    assert graph.num_parameters() == layers + (2 + depth // 2) * words * hidden
    assert found.plan.training == {"seq_len": 2048, "global_batch": 512}
    values = found.plan.flat_values()
    asked = {"micro_batch": 16, "precision": "fp8", "optimizer": "muon", "zero": 1, "stack": "nanochat"}
    assert {key: found.plan.stack if key == "stack" else values[key] for key in asked} == asked
    kinds = found.config["layer_types"]
    assert (kinds.count("full_attention"), kinds[3], kinds[-1], found.config["sliding_window"]) == (
        6, "full_attention", "full_attention", 512,
    )  # fmt: skip
    account = load_reader("nanochat").words.sort(found.words.used, found.words.unread)
    assert account.is_understood


@pytest.mark.parametrize(("depth", "tokens"), [(12, 2**19), (20, 2**20), (26, 2**20), (4, 2**18)])
def test_the_batch_that_it_finds(depth, tokens):
    """A power of two near 524,288 times the tokens of the run over those of 12 layers, to the power of 0.383."""
    training = read(f"python -m scripts.base_train --depth {depth}", "run.sh", "nanochat").plan.training
    assert training == {"seq_len": 2048, "global_batch": tokens // 2048}


def test_options_that_say_it():
    """Features are rounded up to whole heads; every layer sees all keys; a batch in tokens."""
    words = "--depth=5 --aspect-ratio=70 --head-dim=64 --window-pattern=L --max-seq-len=512 --total-batch-size=16384"
    found = read(f"python -m scripts.base_train {words} --device-type=cpu", "run.sh", "nanochat")
    assert found.config is not None
    assert (found.config["hidden_size"], found.config["num_attention_heads"]) == (384, 6)
    assert "sliding_window" not in found.config
    assert found.plan.training == {"seq_len": 512, "global_batch": 32}
    assert "device_type" in load_reader("nanochat").words.sort(found.words.used, found.words.unread).deciding


def test_its_first_months():
    """Underscores: a larger vocabulary, 524,288 tokens, plain layers."""
    found = read("torchrun -m scripts.base_train -- --depth=20 --device_batch_size=16", "run.sh", "nanochat")
    assert found.config is not None
    assert found.plan.training == {"seq_len": 2048, "global_batch": 256}
    assert read_config(found.config, "d20").num_parameters() == 12 * 1280**2 * 20 + 2 * 65536 * 1280
    assert any("until January 2026" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--window-pattern=SXL", "window_pattern = SXL: allowed: letters S and L"),
        ("--total-batch-size=1000", "total_batch_size = 1000: allowed: a multiple of max_seq_len = 2048"),
        ("--depth=many", "depth = .many.: allowed: a positive integer"),
    ],
)
def test_what_it_would_not_take(words, said):
    """In one line with the option and what is allowed."""
    with pytest.raises(UserError, match=said):
        read(f"python -m scripts.base_train {words}", "run.sh", "nanochat")

"""Captures on disk."""

import json
import os
import resource
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import simpar
from simpar.errors import UserError
from simpar.kept import cache_folder
from simpar.tracing import captures
from simpar.tracing.captures import captured_model

TINY = {
    "model_type": "olmo", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip
WHY = "own.json: model_type = 'own' is not known"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def files():
    """Names in the folder of captures."""
    return sorted(path.name for path in cache_folder("captures").glob("*"))


def test_a_second_capture_is_read(monkeypatch):
    """Nothing is traced, and the graph is the same under the name that is asked for."""
    first = captured_model(TINY, "", "own.json", 32, WHY)
    assert len(files()) == 1
    monkeypatch.setattr("simpar.tracing.graph.trace_library", lambda *_: pytest.fail("traced again"))
    second = captured_model(TINY, "", "other.json", 32, WHY)
    assert second.name == "other.json"
    assert second.blocks == first.blocks
    assert second.num_parameters() == first.num_parameters()
    assert (dict(second.dims), second.layers, second.tied_embeddings) == (dict(first.dims), first.layers, False)


def test_a_capture_depends_on_all_that_it_shows(monkeypatch):
    """Another length, another class, other versions and another config are other captures; a torn file is none."""
    keys = {captures._digest(TINY, "", 32), captures._digest(TINY, "", 64), captures._digest(TINY, "OlmoModel", 32)}
    keys.add(captures._digest({**TINY, "hidden_size": 64}, "", 32))
    monkeypatch.setattr(captures, "installed", lambda: ("0", "0"))
    keys.add(captures._digest(TINY, "", 32))
    assert len(keys) == 5
    torn = cache_folder("captures") / "torn.json"
    torn.parent.mkdir(parents=True)
    torn.write_text('{"name": "own", "dims"')
    assert captures._kept(torn) is None


@pytest.mark.slow
def test_a_kept_capture_needs_no_torch(tmp_path):
    """A second command answers without importing it."""
    path = tmp_path / "own.json"
    path.write_text('{"model_type": "openai-gpt", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64}')
    model = simpar.Model(path, seq_len=32)
    assert model.num_parameters() > 0
    assert model.facts["notes"][0].startswith("the model is traced from OpenAIGPTLMHeadModel of transformers ")
    code = (
        "import sys, simpar\n"
        f"assert simpar.Model({str(path)!r}, seq_len=32).num_parameters() == {model.num_parameters()}\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env={**os.environ})


@pytest.mark.slow
def test_a_class_is_a_model(tmp_path):
    """By name with the defaults of its config, or as the reader of a config."""
    path = tmp_path / "own.json"
    path.write_text('{"model_type": "olmo", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}')
    assert simpar.Model(f"{path}:OlmoForCausalLM", seq_len=32).dims["hidden"] == 32
    with pytest.raises(UserError, match=r"has no model class OlmoForNothing"):
        simpar.Model("transformers:OlmoForNothing", seq_len=32)


LLAMA_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
QWEN_30B = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "norm_topk_prob": True,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "class_name", "parameters"),
    [(LLAMA_8B, "LlamaForCausalLM", 8_030_261_248), (QWEN_30B, "Qwen3MoeForCausalLM", 30_532_122_624)],
    ids=["8B", "30B-A3B"],
)
def test_a_capture_takes_seconds(tmp_path, config, class_name, parameters):
    """At most 15 s of CPU at 4,096 tokens, the libraries' imports included; 3 s for the second command."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps(config))
    code = f"import simpar; assert simpar.Model('{path}:{class_name}', seq_len=4096).num_parameters() == {parameters}"
    for most_s in (15, 3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env={**os.environ})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < most_s

"""Models of transformers as its users make them, traced, are the models that their configs say."""

from __future__ import annotations

from pathlib import Path

import pytest

import simpar
from simpar.architectures.hf_config import read
from tests.runtime.tiny_models import MODELS

pytest.importorskip("torch")
pytest.importorskip("transformers")

SEQ = 32
TRAINING = simpar.Training(seq_len=SEQ, global_batch=16)
PLANS = ({"zero": 3}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "recompute": "full"})
QUICK = ("gemma2", "deepseek_v3")
"""One with caps and windows, and one with experts and latent attention."""
CHOOSING = ("deepseek_v3", "glm4_moe", "minimax_m2", "dots1")
"""Families whose routers have a bias that is chosen by and not trained: transformers keeps it as a buffer."""
UNTRACED = {"gpt_neo", "falcon_h1", "bamba", "granitemoehybrid", "mamba2", "nemotron_h", "olmo-clipped", "dbrx"}
"""Families whose causal masks are buffers, which have no values without weights, those with scans in chunks, and those
that clip what they project."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def cases() -> list[object]:
    """Every tiny model, few of them in the quick suite."""
    names = sorted(set(MODELS) - UNTRACED)
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", cases())
def test_a_traced_model_is_its_configs(name: str) -> None:
    """Parameters to the last one, step time and memory to a thousandth, in layouts of three kinds."""
    import tiny_transformers

    traced = simpar.Model(f"tiny_transformers:{name.replace('-', '_')}", seq_len=SEQ)
    said = tiny_transformers.config_of(name).to_dict()
    known = read({key: value for key, value in said.items() if value is not None or key in MODELS[name]}, name)
    biases = sum("moe" in layer for layer in known.layers) * known.dims.get("num_experts", 0)
    buffers = biases if name.startswith(CHOOSING) else 0
    assert traced.num_parameters() == known.num_parameters() - buffers
    cluster = simpar.Cluster("dgx-h100")
    for plan in (*PLANS, {"ep": 2}) if known.is_mixture else PLANS:
        one, two = (
            simpar.simulate(graph, cluster, simpar.Plan(micro_batch=1, **plan), TRAINING, with_timeline=False)
            for graph in (traced, known)
        )
        assert one.speed.step_time_s == pytest.approx(two.speed.step_time_s, rel=0.001)
        assert one.memory.peak_memory_bytes == pytest.approx(two.memory.peak_memory_bytes, rel=0.001)

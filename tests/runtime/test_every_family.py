"""Every declared family in a real run: built by the runtime's decoder, by transformers' class, or refused in one line.

Families of the decoder are compared with transformers, numbers and gradients, in ``test_hf_weights``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from simpar.architectures.families import DECLARED
from simpar.errors import UserError
from simpar.runtime.job import RunJob
from simpar.runtime.request import load_request, make_ready
from tests.runtime.tiny_models import MODELS, WITHOUT_CLASS

pytest.importorskip("torch")

LIBRARY = (
    "afmoe", "apertus", "deepseek_v32", "deepseek_v4", "gemma3n", "gemma3n_text", "gemma4_text", "glm_moe_dsa",
    "kimi_linear", "lfm2", "lfm2_moe", "llama4_text", "longcat_flash", "mimo_v2_flash", "minimax",
    "minimax_m3_vl_text", "mistral4", "nanochat", "olmo_hybrid", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_next",
)  # fmt: skip
"""Trained with transformers' own class: no operator of the decoder stands for some of their parts."""
NOT_CAUSAL = ("bert", "roberta", "xlm-roberta", "t5", "mt5", "umt5")
"""So are encoders, on masked tokens, and encoders with a decoder (``test_from_transformers.py``)."""
TOWERS = "has two towers, or layers that are not causal; the runtime trains decoders"
PICTURES = (
    "gemma3", "internvl", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe",
    "glm4v", "glm46v", "glm4v_moe", "exaone4_5", "minimax_m3_vl", "step3p7", "paligemma", "idefics3", "smolvlm",
    "cohere2_vision", "aya_vision", "ovis2",
)  # fmt: skip
"""Trained with transformers' own class, on images that are made of the tokens."""
ALONE = "allowed: images_per_sequence = 0 beside its fields"
OTHER_PICTURES = (
    "mistral3",
    "ernie4_5_vl_moe",
    "kimi_k25",
    "gemma4",
    "lfm2_vl",
    "llama4",
    "lighton_ocr",
    "llava_next",
    "llava_onevision",
)
"""Whose class reads images in a form that no run makes: text alone is what is left."""
NO_DECODERS = (
    "vit", "dit", "whisper", "FluxTransformer2DModel", "PixArtTransformer2DModel", "SD3Transformer2DModel",
    "QwenImageTransformer2DModel", "WanTransformer3DModel", "mllama", "voxtral", "qwen2_audio", "audioflamingo3",
    "musicflamingo", "glmasr", "qwen3_asr", "qwen2_5_omni", "qwen3_omni_moe",
)  # fmt: skip
REFUSED = {
    **dict.fromkeys(("internvl_chat", "kimi_vl", "dots_ocr", "ernie4_5_moe_vl", *NO_DECODERS), TOWERS),
    **dict.fromkeys(OTHER_PICTURES, ALONE),
    **dict.fromkeys(("qwen2_5_omni_thinker", "qwen3_omni_moe_thinker"), "no run makes sound"),
    "nemotron-nas": "layers whose keys and MLPs have different widths",
    **dict.fromkeys(
        ("minimax_text_01", "minimax_m1", "bailing_moe_linear"),
        "layers of linear attention: simulated, no run computes it",
    ),
    **dict.fromkeys(("minimax_m3", "minimax_m3_text"), "keys that an indexer chooses: simulated"),
    "mimo": "layers that predict further tokens under names of their own",
    "minicpm": "MiniCPM's scales of embeddings, branches and logits",
    **dict.fromkeys(("step3_text", "step3_vl"), "queries that pass a latent, beside a key and a value that all heads"),
    "step3p5": "gates on heads, of which layers have different numbers: simulated",
    "kimi_k3": "simulated, no run computes it",
    "phimoe": "its router scores by sparse_mixer; the runtime knows softmax, sigmoid",
}
"""And why."""
WRAPPED = ("gemma3n",)
"""Families whose tiny config is that of the text alone, which the library expects within the whole."""
SOUND = ("glmasr", "qwen3_asr", "qwen2_5_omni", "qwen3_omni_moe", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
SEEING = (*PICTURES, *OTHER_PICTURES, "internvl_chat", "kimi_vl", "kimi_k3", "step3_vl", "dots_ocr", "ernie4_5_moe_vl")
LENGTHS = {**dict.fromkeys(SEEING, 1024), **dict.fromkeys(SOUND, 2048)}
"""Sequences of models that see or hear, which are longer than the tokens of a picture or of a clip."""


def config_of(kind: str) -> dict[str, Any]:
    """The tiny config of a family, with positions for the test's sequences."""
    tiny = DECLARED[kind].tiny
    image = {"image_token_id": 7, "image_token_index": 7} if kind in PICTURES else {}
    return {**({"text_config": tiny} if kind in WRAPPED else tiny), "model_type": kind, **image}


def ready(kind: str, tmp_path, monkeypatch) -> None:
    """Check a run of one step as it is checked before anything starts. Raises UserError."""
    (tmp_path / "model.json").write_text(json.dumps(config_of(kind)))
    monkeypatch.chdir(tmp_path)
    flags = {"model": "model.json", "training.seq_len": LENGTHS.get(kind, 16), "training.global_batch": 2}
    make_ready(load_request("gpt2-laptop", flags, ["cluster=null"]), 1, 1, {"steps": 1, "folder": "here"})


@pytest.mark.parametrize("kind", sorted(DECLARED))
def test_a_family_runs_or_says_why_not(kind, tmp_path, monkeypatch):
    """In one line, before anything starts."""
    if kind in REFUSED:
        with pytest.raises(UserError) as said:
            ready(kind, tmp_path, monkeypatch)
        assert REFUSED[kind] in str(said.value)
        assert "\n" not in str(said.value)
        return
    ready(kind, tmp_path, monkeypatch)
    job = RunJob(folder="x", plan={}, model=config_of(kind), training={"seq_len": 16, "global_batch": 2}, steps=1)
    assert bool(job.library_parts) is (kind in (*LIBRARY, *NOT_CAUSAL, *PICTURES))
    assert kind in (*LIBRARY, *NOT_CAUSAL, *PICTURES) or kind in MODELS or kind in WITHOUT_CLASS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(LIBRARY))
def test_a_model_of_the_library_trains(kind):
    """Its logits are those of the class that transformers chooses for the config, and a step has finite gradients."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from simpar.runtime.from_transformers import make_library_model

    config = config_of(kind)
    torch.manual_seed(0)
    model = make_library_model(config)
    tokens = torch.randint(0, model.vocab_size, (2, 16))
    logits = model(tokens)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    assert len(gradients) > 5
    assert all(bool(torch.isfinite(each).all()) for each in gradients)
    named = {name: value for name, value in config.items() if name != "model_type"}
    whole = AutoConfig.for_model(kind, **named)
    torch.manual_seed(0)
    classes = AutoModelForImageTextToText if kind == "mistral4" else AutoModelForCausalLM  # where the library has it
    theirs = classes.from_config(whole.get_text_config() if hasattr(whole, "text_config") else whole)
    theirs.load_state_dict(model.inner.state_dict())
    assert torch.equal(theirs.train()(input_ids=tokens, use_cache=False).logits, logits)

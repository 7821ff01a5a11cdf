"""Models of the transformers library by their configs, without weights."""

from __future__ import annotations

import torch
import transformers


def gpt2():
    """GPT-2 as published."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def llama():
    """Llama-3 8B."""
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def vit():
    """ViT-B/16."""
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)), torch.zeros(1, 3, 224, 224)


def t5():
    """T5 small."""
    ids = {name: torch.zeros(1, 64, dtype=torch.int64) for name in ("input_ids", "decoder_input_ids")}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(use_cache=False)), ids


def bert():
    """BERT base."""
    return transformers.BertForMaskedLM(transformers.BertConfig())

"""Names of released models on Hugging Face's hub, for targets that take a model by name."""

from dataclasses import replace

from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.tuning import TUNED, add_adapters
from simpar.plan.choices.tuning import Tuning

HUB = {
    "gpt2": "openai-community/gpt2", "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large", "gpt2-xl": "openai-community/gpt2-xl",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf", "llama-2-13b": "meta-llama/Llama-2-13b-hf",
    "llama-2-70b": "meta-llama/Llama-2-70b-hf", "llama-3-8b": "meta-llama/Meta-Llama-3-8B",
    "llama-3-70b": "meta-llama/Meta-Llama-3-70B", "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B", "llama-3.1-405b": "meta-llama/Llama-3.1-405B",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B", "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "mistral-7b": "mistralai/Mistral-7B-v0.1", "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "mistralai/Mixtral-8x22B-v0.1", "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B", "qwen2.5-7b": "Qwen/Qwen2.5-7B", "qwen2.5-14b": "Qwen/Qwen2.5-14B",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B", "qwen2.5-72b": "Qwen/Qwen2.5-72B", "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B", "qwen3-4b": "Qwen/Qwen3-4B", "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-14b": "Qwen/Qwen3-14B", "qwen3-32b": "Qwen/Qwen3-32B", "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B", "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b", "deepseek-v2-lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek-v2": "deepseek-ai/DeepSeek-V2", "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "gemma-2-2b": "google/gemma-2-2b", "gemma-2-9b": "google/gemma-2-9b", "gemma-2-27b": "google/gemma-2-27b",
    "falcon-7b": "tiiuae/falcon-7b", "opt-1.3b": "facebook/opt-1.3b", "opt-6.7b": "facebook/opt-6.7b",
    "pythia-1.4b": "EleutherAI/pythia-1.4b", "pythia-6.9b": "EleutherAI/pythia-6.9b",
    "glm-4.5-air": "zai-org/GLM-4.5-Air",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B", "olmoe-1b-7b": "allenai/OLMoE-1B-7B-0924",
}  # fmt: skip
QUANTISED = {"gpt-oss-20b": "Mxfp4Config", "gpt-oss-120b": "Mxfp4Config", "deepseek-v3": "FineGrainedFP8Config"}
"""Models whose weights on the hub have fewer than 16 bits, with the transformers config that widens them.

Trainers refuse to train them as they are.
"""


def as_shipped(graph: ModelGraph, tuning: Tuning | None = None) -> bool:
    """Whether a model equals the shipped model of its name, in sizes and in every detail.

    One that has the adapters of a plan's ``tuning`` already is compared with the shipped one with these.
    """
    shipped = load_model(graph.name)
    if tuning is not None and graph.facts.get(TUNED):
        shipped = add_adapters(shipped, **tuning.of_model)
    return replace(shipped, name="") == replace(graph, name="")

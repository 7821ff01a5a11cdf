"""OLMo 1 to 3, OLMoE and FlexOlmo.

OLMo has norms without weights; since OLMo 2 norms follow attention and MLP, and queries and keys are normed as a whole
[arXiv 2501.00656, section 3]. OLMo 3 has windows in three layers of four. FlexOlmo is OLMo 2 with experts, of which a
token chooses most; OLMoE norms before its experts.
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Caps, Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.reading import ATTENTION_BIAS, Windows, all_but_every, experts_of, llama_like, windows_in
from simpar.architectures.transformer import Style
from simpar.architectures.weights import POST_NORMS

NORMED_AFTER = Style(qk_norm="full", extra={"post_norm_only": True})


def _read(config: Config, name: str) -> ModelGraph:
    graph = llama_like(Style(norm="none"))(config, name)
    return replace(graph, details=Details(caps=Caps(projections=config.optional("clip_qkv"))))


def _windows(config: Config, layers: int) -> Windows:
    return windows_in(config, layers, all_but_every(config, layers, default=4), default=4096)


FAMILIES = (
    ModelFamily("olmo", _read, tiny=TINY),
    ModelFamily("olmo2", llama_like(NORMED_AFTER), weights=POST_NORMS, tiny=TINY),
    ModelFamily(
        "olmo3",
        llama_like(NORMED_AFTER, windows=_windows, biases=ATTENTION_BIAS),
        Details(positions=Positions(Rope(500_000.0), Rope(500_000.0))),
        POST_NORMS,
        {**TINY, "num_hidden_layers": 4, "sliding_window": 8, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    ),
    ModelFamily(
        "olmoe",
        llama_like(Style(qk_norm="full"), experts=experts_of("num_experts", "num_local_experts", experts=64, topk=8)),
        Details(gating=Gating(normalised=False)),
        tiny={**TINY, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    ModelFamily(
        "flex_olmo",
        llama_like(
            NORMED_AFTER,
            biases=ATTENTION_BIAS,
            experts=experts_of("num_experts", "num_local_experts", experts=7, topk=5),
        ),
        Details(norm_eps=0.000001, positions=Positions(Rope(500_000.0)), gating=Gating(normalised=False)),
        POST_NORMS,
        {**TINY, "num_experts": 4, "num_experts_per_tok": 3},
    ),
)

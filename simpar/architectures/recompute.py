"""Policies of recomputation: none, selective, full, some layers, segments, chosen modules, or a choice by layer.

``every:C`` recomputes one layer in C and keeps all activations of the others. ``segments:C`` keeps the inputs of every
C-th layer alone (Chen et al. 2016; Megatron's uniform method): of N layers that hold ``a`` each and whose inputs take
``b``, segments of sqrt(N b / a) need the least memory.

``layers:none*10,full:4*8,modules:mlp*2`` chooses layer by layer: ten layers are kept; eight are recomputed in segments
of four, of which only the first input is kept; two run their MLP again. ``optimal`` asks for the best such choice.
Modules have Megatron Core's names; each stands for the operators whose outputs are not kept and run again just before
their backward. Their own inputs are kept.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby

MODULES: Mapping[str, frozenset[str]] = {
    "core_attn": frozenset(["attention"]),
    "layernorm": frozenset(["attention_norm", "mlp_norm"]),
    "mhc": frozenset(["attention_collapse", "attention_merge", "mlp_collapse"]),
    "mla_up_proj": frozenset(["q_up", "q_latent", "kv_up", "k_rotary", "rope", "value"]),
    "mlp": frozenset(["mlp_up", "mlp_clamp", "activation", "mlp_down"]),
    "moe_act": frozenset(["expert_clamp", "expert_activation"]),
    "shared_experts": frozenset(["shared_up", "shared_clamp", "shared_activation", "shared_down"]),
    "moe": frozenset(
        ["router", "dispatch", "expert_up", "expert_clamp", "expert_activation", "expert_down", "combine",
         "shared_up", "shared_clamp", "shared_activation", "shared_down"]
    ),
}  # fmt: skip
_PREFIX = "modules:"
_CHOICE = "|".join(MODULES)
NONE, SELECTIVE, FULL, OPTIMAL = "none", "selective", "full", "optimal"
SIMPLE = (NONE, SELECTIVE, FULL)
"""Policies that treat all layers alike, whatever operators they have."""
_BY_LAYER = "layers:"
_EVERY = "every:"
_SEGMENTS = "segments:"
_NUMBER = r"[1-9]\d{0,5}"
_MODULES = rf"{_PREFIX}({_CHOICE})(\+({_CHOICE}))*"
_ITEM = rf"({NONE}|{SELECTIVE}|{FULL}(:{_NUMBER})?|{_MODULES})\*{_NUMBER}"
PATTERN = (
    rf"({'|'.join(SIMPLE)}|{OPTIMAL}|{_EVERY}{_NUMBER}|{_SEGMENTS}{_NUMBER}|{_MODULES}|{_BY_LAYER}{_ITEM}(,{_ITEM})*)"
)
WORDS = (
    f"{', '.join(SIMPLE)}, {_EVERY}C (one layer in C), {_SEGMENTS}C (all, from checkpoints every C layers) or {OPTIMAL}"
)
"""Values that flags accept, as one text."""
ALLOWED = (
    f"{', '.join(SIMPLE)}, {OPTIMAL}, {_EVERY}C and {_SEGMENTS}C with C >= 1, {_PREFIX} and any of "
    f"{'+'.join(MODULES)}, {_BY_LAYER} and any of those with *COUNT, such as {_BY_LAYER}{NONE}*4,{FULL}*8"
)
"""Values that plans accept, as one text."""


def is_known(policy: str) -> bool:
    """Whether a text names a policy."""
    return re.fullmatch(PATTERN, policy) is not None


def of_layer(policy: str, layer: int) -> str:
    """The policy's mode for one layer: ``every:C`` recomputes every C-th layer in full and keeps the others.

    ``segments:C`` recomputes all layers in segments of C, the first of which begins with the model.
    ``full:J/K`` is the J-th layer (from 0) of a segment of K that is recomputed from the input of the first.
    """
    if policy.startswith(_BY_LAYER):
        return _by_layer(policy)[layer]
    if (count := period(policy)) is not None:
        return FULL if layer % count == 0 else NONE
    if (size := segment_layers(policy)) is not None:
        return _in_segment(layer % size, size)
    return policy


def _in_segment(at: int, size: int) -> str:
    """The mode of the layer at a position of a segment of some size."""
    return f"{FULL}:{at}/{size}" if size > 1 else FULL


def modes(policy: str) -> tuple[str, ...]:
    """All modes that a policy has for single layers; the policy itself if they depend on the layout (``optimal``)."""
    if period(policy) is not None:
        return (FULL, NONE)
    if (size := segment_layers(policy)) is not None:
        return tuple(_in_segment(at, size) for at in range(size))
    return (*dict.fromkeys(_by_layer(policy)),) if policy.startswith(_BY_LAYER) else (policy,)


def policy_of_every(count: int | str) -> str:
    """The policy that recomputes one of ``count`` layers in full."""
    return f"{_EVERY}{count}"


def policy_of_segments(count: int) -> str:
    """The policy that recomputes all layers in segments of ``count``."""
    return f"{_SEGMENTS}{count}"


def period(policy: str) -> int | None:
    """C of ``every:C``; None of other policies."""
    return int(policy.removeprefix(_EVERY)) if policy.startswith(_EVERY) else None


def segment_layers(policy: str) -> int | None:
    """C of ``segments:C``; None of other policies."""
    return int(policy.removeprefix(_SEGMENTS)) if policy.startswith(_SEGMENTS) else None


def by_share(policy: str) -> bool:
    """Whether layers of one kind may differ, so that a share of them is recomputed."""
    return chosen_layers(policy) is not None or period(policy) is not None or segment_layers(policy) is not None


@cache
def _by_layer(policy: str) -> tuple[str, ...]:
    result: list[str] = []
    for item in policy.removeprefix(_BY_LAYER).split(","):
        mode, _, count = item.rpartition("*")
        size = int(mode.removeprefix("full:")) if mode.startswith("full:") else 1
        each = [_in_segment(at, size) for at in range(size)] if size > 1 else [mode.split(":1")[0]]
        result += (each * int(count))[: int(count)]
    return tuple(result)


def chosen_layers(policy: str) -> int | None:
    """The number of layers for which a policy chooses one by one; None for other policies."""
    return len(_by_layer(policy)) if policy.startswith(_BY_LAYER) else None


def says_layers(text: str) -> bool:
    """Whether a text, which may list several policies, has one that chooses layer by layer."""
    return _BY_LAYER in text


def says_segments(text: str) -> bool:
    """Whether a text, which may list several policies, has one that recomputes in segments."""
    return _SEGMENTS in text


def by_layer(chosen: Iterable[tuple[str, int]]) -> str:
    """The policy of consecutive choices (mode, layers): ``full:K`` with layers a multiple of K, or any other mode."""
    joined = ((mode, sum(n for _, n in group)) for mode, group in groupby(chosen, key=lambda pair: pair[0]))
    return _BY_LAYER + ",".join(f"{mode}*{count}" for mode, count in joined)


def is_full(mode: str) -> bool:
    """Whether a layer runs forward again as a whole, alone or in a segment."""
    return mode == FULL or mode.startswith(f"{FULL}:")


def joint_mode(layers: int) -> str:
    """The mode for :func:`by_layer` that recomputes ``layers`` layers together from the input of the first."""
    return f"{FULL}:{layers}" if layers > 1 else FULL


def last_of(layers: int) -> str:
    """The mode of the last layer of a segment of ``layers`` layers, as :func:`of_layer` gives it."""
    return f"{FULL}:{layers - 1}/{layers}"


def segment(mode: str) -> tuple[int, int]:
    """(Position of a layer in its segment, number of layers in the segment), from its mode."""
    at, _, size = mode.removeprefix("full").removeprefix(":").partition("/")
    return (int(at), int(size)) if size else (0, 1)


def count_modes(policy: str, num_layers: int) -> Mapping[str, int]:
    """The number of layers with each mode."""
    return Counter(of_layer(policy, layer) for layer in range(num_layers))


def of_modules(names: Sequence[str]) -> str:
    """The policy that recomputes some modules."""
    return _PREFIX + "+".join(names) if names else NONE


def module_names(policy: str) -> tuple[str, ...]:
    """The modules that a policy names, in order; none for other policies."""
    return tuple(policy.removeprefix(_PREFIX).split("+")) if policy.startswith(_PREFIX) else ()


def operators(policy: str) -> frozenset[str]:
    """Names of the operators that chosen modules run again."""
    return frozenset().union(*(MODULES[name] for name in module_names(policy)))

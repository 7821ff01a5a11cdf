"""What is recomputed instead of kept: nothing, attention, everything, every C-th layer, or chosen modules.

Modules have Megatron Core's names; each stands for the operators whose outputs are not kept and run again just before
their backward. Their own inputs are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MODULES: Mapping[str, frozenset[str]] = {
    "core_attn": frozenset(["attention"]),
    "layernorm": frozenset(["attention_norm", "mlp_norm"]),
    "mla_up_proj": frozenset(["q_up", "kv_up", "k_rotary", "rope", "value"]),
    "mlp": frozenset(["mlp_up", "activation", "mlp_down"]),
    "moe_act": frozenset(["expert_activation"]),
    "shared_experts": frozenset(["shared_up", "shared_activation", "shared_down"]),
    "moe": frozenset(
        ["router", "dispatch", "expert_up", "expert_activation", "expert_down", "combine", "shared_up",
         "shared_activation", "shared_down"]
    ),
}  # fmt: skip
_PREFIX = "modules:"
_CHOICE = "|".join(MODULES)
PATTERN = rf"(none|selective|full|every:[1-9]\d{{0,5}}|{_PREFIX}({_CHOICE})(\+({_CHOICE}))*)"


def is_known(policy: str) -> bool:
    """Whether a text names a policy."""
    return re.fullmatch(PATTERN, policy) is not None


def of_layer(policy: str, layer: int) -> str:
    """What the policy means for one layer: ``every:C`` recomputes every C-th in full and keeps the others."""
    if policy.startswith("every:"):
        return "full" if layer % int(policy.removeprefix("every:")) == 0 else "none"
    return policy


def module_names(policy: str) -> tuple[str, ...]:
    """The modules that a policy names, in order; none for other policies."""
    return tuple(policy.removeprefix(_PREFIX).split("+")) if policy.startswith(_PREFIX) else ()


def operators(policy: str) -> frozenset[str]:
    """Names of the operators that chosen modules run again."""
    return frozenset().union(*(MODULES[name] for name in module_names(policy)))

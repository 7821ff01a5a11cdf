"""Which decoders Megatron-Core can build; shared by the targets based on it."""

from collections.abc import Iterator

from simpar.frameworks.architecture import Architecture
from simpar.frameworks.subject import Loss

MIXTURES = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe",
    "gpt_oss",
)
CLAMPED = "gpt_oss"
"""The family whose experts multiply a quick GELU of clamped inputs with the other half plus one."""
BUILT = {"copy", "kv_down", "shared_up", "join"}  # latent attention, shared experts, prediction layers
BIASES = (frozenset({"qkv", "output", "mlp"}), frozenset({"qkv"}), frozenset[str]())


def megatron_core_losses(style: Architecture, family: str) -> Iterator[Loss]:
    """What Megatron-Core's GPTModel cannot build of a model by options; ``family`` is the config's model_type."""
    if style.experts and family not in MIXTURES:
        yield Loss("model", f"experts of {family or 'an unknown family'}", f"the exporter knows {', '.join(MIXTURES)}")
    for name in sorted(set(style.beyond) - BUILT):
        yield Loss("model", name, "the exporter does not know how this target builds it")
    if style.norm in ("none", "weight"):
        without = "weights" if style.norm == "none" else "biases"
        yield Loss("model", f"norms without {without}", "norms are LayerNorm or RMSNorm")
    if style.residual != "pre":
        yield Loss("model", f"{style.residual} residual", "norms stand before attention and MLP, one after the other")
    if style.gated and style.activation != "silu" and family != CLAMPED:
        yield Loss("model", f"gated {style.activation}", f"the gated activation is SwiGLU, or that of {CLAMPED}")
    if not style.gated and style.activation != "gelu":
        yield Loss("model", style.activation, "the plain activation is GELU")
    if style.positions == "none":
        yield Loss("model", "no rotary or learned positions", "positions are rotary or learned")
    if style.biases not in BIASES:
        yield Loss("model", f"biases of {', '.join(sorted(style.biases))}", "biases are everywhere, on QKV, or nowhere")
    if style.qk_norm == "full":
        yield Loss("model", "norm over all heads of Q and K", "Q and K are normalised head by head")
    if len(set(style.windows)) > 1 and period(style.windows) is None:
        yield Loss("model", "windows by layer", "every n-th layer sees everything, the others one window")


def period(windows: tuple[int | None, ...]) -> int | None:
    """N if every n-th layer has no window and all others share one; None for any other pattern."""
    whole = [layer for layer, window in enumerate(windows) if window is None]
    if not whole or len(set(windows)) != 2:
        return None
    n = whole[0] + 1
    return n if whole == list(range(n - 1, len(windows), n)) else None

"""What serving engines do, as a stack: which kernels are fused, what is launched, how experts compute."""

from simpar.stacks.stack import ExpertHabits, Fusion, Launch, Stack, StackNumerics
from simpar.units import US

HOST_PER_KERNEL_S = 12 * US
"""Time of the host to launch a kernel where nothing is captured: that of the default training stack."""
EXPERT_OVERHEAD = 1.3
"""Time of fused kernels of experts over that of their operands' way through caches and memory: fitted to 512 to 16,384
tokens of H100, H200, B200, GB200 and GB300 together (benchmarks/serving_kernels.py --experts)."""
USUAL_TILES = ((16, 32), (64, 64))
"""Tiles of fused kernels of experts for shapes that nobody tuned, few tokens and more [SGLang 0.5,
fused_moe_triton_config.py, get_default_config]."""
TUNED_TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
"""Those of shapes that the engine has a tuned file for, by device, experts and width [SGLang and vLLM, configs of
fused_moe]."""


def serving_stack(*, graphs: bool, tuned: bool = False) -> Stack:
    """What serving engines do: fused norms with the residual's sum, experts that gather their tokens, no gradients.

    The kernel that writes the input of an 8-bit product casts it, except where blocks have scales.
    """
    launch = Launch(graphs=("step",)) if graphs else Launch(host_time_per_kernel_s=HOST_PER_KERNEL_S)
    tiles = TUNED_TILES if tuned else USUAL_TILES
    experts = ExpertHabits(overhead=EXPERT_OVERHEAD, row_s=0.0, sync_s=0.0, exchange_host_s=0.0)
    return Stack(
        name="serving",
        description="an engine that serves a model",
        fusion=Fusion(residual=True, expert_tiles=tiles),
        launch=launch,
        experts=experts,
        numerics=StackNumerics(casts_apart=True),
    )

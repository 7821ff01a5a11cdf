"""Kernel parameters of boards with the multiprocessors of a timed one, and slower matrix units in them."""

from __future__ import annotations

from collections.abc import Mapping

HALF = 2.0
SLOWER_UNITS = {  # (board with the same multiprocessors, its matrix units' rate over this one's, clock for clock)
    "h20-sxm": ("h100-sxm-80gb", 4.0),  # 1,024 FLOP a clock and multiprocessor in 16 bits, of 4,096
    # 512 of 1,024, summed in fp32
    "rtx-4090": ("l40s", HALF), "rtx-4080": ("l40s", HALF), "rtx-3090": ("l40s", HALF), "rtx-3080": ("l40s", HALF),
    "rtx-3060": ("l40s", HALF), "a10g": ("l40s", HALF), "l20": ("l40s", HALF), "rtx-5090": ("rtx-pro-6000", HALF),
}  # fmt: skip
HALF_RATE_PRODUCTS = 0.955
"""Share of peak of cuBLAS's long 16-bit products where units run at half rate: 113.7 to 114.7 of L20's 119.5 TFLOP/s
[LeetCUDA, kernels/hgemm, README]. What L40S shows is its power limit, which units at half rate do not reach."""
BACKWARD_OF_FORWARD = 0.824
"""Backward over forward share of flash kernels where only the forward is measured: what A100's are."""

RESTS = ("gemm_prologue_k", "gemm_small_tile_loss", "attention_half_seq", "attention_score_dim", "attention_least_dim")
"""Times beside products, in lengths or shares of these."""


def with_slower_units(values: Mapping[str, float], slower: float) -> dict[str, float]:
    """Parameters of the same multiprocessors where their matrix units are ``slower`` times slower.

    Per FLOP at the faster peak a kernel takes 1 / share: 1 in matrix units, which takes ``slower`` there, and the rest
    in everything else (operands, exponentials, waits), which stays. Lengths count such a rest in products, so they
    shrink by as much.
    """
    result = dict(values)
    for name, value in values.items():
        if name.endswith(("_efficiency", "_efficiency_fp8")) and value:
            result[name] = float(f"{slower / (slower + 1 / value - 1):.4g}")
        elif name in RESTS:
            result[name] = float(f"{value / slower:.4g}")
    return result


def with_half_rate(values: Mapping[str, float], slower: float) -> dict[str, float]:
    """Parameters of boards whose products are bound by matrix units and not by power, from a power-limited sibling."""
    return with_slower_units(values, slower) | {"gemm_efficiency": HALF_RATE_PRODUCTS}

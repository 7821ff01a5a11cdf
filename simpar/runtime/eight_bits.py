"""8-bit products of layers by torchao, with one scale per tensor that is recomputed every time.

Forward in e4m3, gradients in e5m2 [Micikevicius et al. 2022, arXiv 2209.05433].

Weights keep their dtype and names; embedding, head, norms and attention stay in 16 bits. CPUs emulate the rounding in
wider numbers.
"""

import importlib
from typing import Any

import torch

from simpar.errors import UserError
from simpar.runtime.decoder import Decoder
from simpar.runtime.operators import CastingLinear

TILE_MULTIPLE = 16  # tensor cores take 8-bit matrices with multiples of so many rows and columns
ADA = (8, 9)


def convert(model: Decoder, device: Any) -> None:
    """Let the products of all layers run in 8 bits, in place.

    Raises UserError for a device without 8-bit products, and for sizes that they do not support.
    """
    float8: Any = importlib.import_module("torchao.float8")
    on_host = device.type != "cuda"
    if not on_host and torch.version.hip is None and torch.cuda.get_device_capability(device) < ADA:
        raise UserError(
            f"plan.precision = fp8: {torch.cuda.get_device_name(device)} computes no 8-bit products; allowed: bf16"
        )
    for name, module in model.layers.named_modules():
        if isinstance(module, CastingLinear) and (
            module.in_features % TILE_MULTIPLE or module.out_features % TILE_MULTIPLE
        ):
            raise UserError(
                f"plan.precision = fp8: {name} is {module.in_features} x {module.out_features}; "
                f"allowed: multiples of {TILE_MULTIPLE}, or bf16"
            )
    config = float8.Float8LinearConfig(emulate=on_host)
    for layer in model.layers.values():
        float8.convert_to_float8_training(
            layer, config=config, module_filter_fn=lambda each, _: isinstance(each, CastingLinear)
        )

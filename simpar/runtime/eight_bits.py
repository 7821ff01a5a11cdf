"""Products of layers in 8 bits by torchao, with one scale a tensor that is made anew every time.

Forward in e4m3, gradients in e5m2 [Micikevicius et al. 2022, arXiv 2209.05433].

Weights keep their dtype and their names; embedding, head, norms and attention stay in 16 bits. Processors compute the
same rounding in wider numbers.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from simpar.errors import UserError
from simpar.runtime.decoder import Decoder
from simpar.runtime.operators import Linear

ALIGNED = 16  # rows and columns of what tensor cores take in 8 bits
ADA = (8, 9)


def convert(model: Decoder, device: Any) -> None:
    """Let the products of all layers run in 8 bits, in place.

    Raises UserError for a device without such products, and for sizes that they do not take.
    """
    float8: Any = importlib.import_module("torchao.float8")
    on_host = device.type != "cuda"
    if not on_host and torch.version.hip is None and torch.cuda.get_device_capability(device) < ADA:
        raise UserError(
            f"plan.precision = fp8: {torch.cuda.get_device_name(device)} computes no 8-bit products; allowed: bf16"
        )
    for name, module in model.layers.named_modules():
        if isinstance(module, Linear) and (module.in_features % ALIGNED or module.out_features % ALIGNED):
            raise UserError(
                f"plan.precision = fp8: {name} is {module.in_features} x {module.out_features}; "
                f"allowed: multiples of {ALIGNED}, or bf16"
            )
    config = float8.Float8LinearConfig(emulate=on_host)
    for layer in model.layers.values():
        float8.convert_to_float8_training(
            layer, config=config, module_filter_fn=lambda each, _: isinstance(each, Linear)
        )

"""DeepSpeed's own DeepSpeedConfig reads the JSON; the script compiles and the model config makes the model."""

from __future__ import annotations

import json
import logging
from typing import Any

from export_checks.hugging_face import check_model
from simpar.frameworks import Exported


class _Ranks:
    """What DeepSpeed asks a launcher for."""

    def __init__(self, data_parallel: int) -> None:
        self.data_parallel = data_parallel

    def get_data_parallel_world_size(self) -> int:
        """Data-parallel ranks."""
        return self.data_parallel


def check(exported: Exported) -> None:
    """Build the config as ``deepspeed.initialize`` does, for the plan's data-parallel ranks."""
    import deepspeed.runtime.config as module

    logging.disable(logging.WARNING)
    module.dist.get_rank = lambda *_: 0
    module.dist.get_world_size = lambda *_: 8
    plan = json.loads(exported.files["plan.json"])
    given = json.loads(exported.files["ds_config.json"])
    config = module.DeepSpeedConfig(given, mpu=_Ranks(plan["mesh"]["dp"]))
    assert config.zero_optimization_stage == plan["data_parallel"]["zero"]
    assert config.gradient_accumulation_steps == given["gradient_accumulation_steps"]
    assert config.tensor_parallel_config.autotp_size in (0, plan["mesh"]["tp"])
    check_model(exported)


def table() -> str:
    """Names that the config classes and constants know, by section."""
    import deepspeed.runtime.constants as constants
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    sections: dict[str, Any] = {
        "zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config,
        "tensor_parallel": TPTrainingConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    }  # fmt: skip
    top = ("TRAIN_BATCH_SIZE", "TRAIN_MICRO_BATCH_SIZE_PER_GPU", "GRADIENT_ACCUMULATION_STEPS", "STEPS_PER_PRINT",
           "GRADIENT_CLIPPING", "ZERO_ALLOW_UNTESTED_OPTIMIZER")  # fmt: skip
    names = [getattr(constants, name) for name in top]
    names += [f"{constants.DATA_TYPES}.{constants.GRAD_ACCUM_DTYPE}", f"{constants.OPTIMIZER}.{constants.TYPE}"]
    names += [f"{constants.OPTIMIZER}.{constants.OPTIMIZER_PARAMS}.{key}" for key in
              ("lr", "betas", "weight_decay", "momentum")]  # fmt: skip
    for section, model in sections.items():
        names += [f"{section}.{field.alias or name}" for name, field in model.model_fields.items()]
    lines = ["# Options by dotted name.", "version: DeepSpeed 0.19.8, runtime/constants.py and config classes"]
    return "\n".join([*lines, "options:", *(f"  {name}: value" for name in names)]) + "\n"

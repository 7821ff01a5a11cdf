"""Configs that trainers ship beside their code: launches name them by a path in a checkout that is not here.

What they set is taken from the revisions in :data:`REVISIONS`; keys that change neither time nor memory are left out.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from simpar.frameworks.overrides import load_beside, text_beside

REVISIONS = {
    "LLaMA-Factory": "hiyouga/LLaMA-Factory ff6d4d1",
    "Axolotl": "axolotl-ai-cloud/axolotl 067b021",
    "TRL": "huggingface/trl f2cd577",
    "LLaVA and Qwen3-VL": "haotian-liu/LLaVA c121f04, QwenLM/Qwen3-VL 9658872",
    "alignment-handbook and open-r1": "huggingface/alignment-handbook 925acdf, huggingface/open-r1 1416fa0",
    "FastChat": "lm-sys/FastChat 0e6d3e4",
    "Qwen": "QwenLM/Qwen af22d5e",
}
_AUTO: dict[str, Any] = dict.fromkeys(
    ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"
)
BY_WIDTH: dict[str, Any] = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
)
"""Sizes that transformers takes from the hidden size."""


def of_deepspeed(
    stage: int, *, overlaps: bool = True, offloads: tuple[str, ...] = (), bf16: Any = "auto", **sizes: Any
) -> dict[str, Any]:
    """A DeepSpeed config: its stage, whether it overlaps, what it ``offloads`` (optimizer, param), and ``sizes``."""
    away = {f"offload_{what}": {"device": "cpu"} for what in offloads}
    zero = {"stage": stage, "overlap_comm": overlaps, "contiguous_gradients": True, **away, **sizes}
    return {**_AUTO, "bf16": {"enabled": bf16}, "fp16": {"enabled": "auto"}, "zero_optimization": zero}


def of_accelerate(kind: str, processes: int | None = 8, **section: Any) -> dict[str, Any]:
    """An Accelerate config of one node in bf16; keywords are those of its section.

    ``processes`` is None where every user sets them.
    """
    name = {"DEEPSPEED": "deepspeed_config", "FSDP": "fsdp_config"}.get(kind, "")
    inner = {name: section} if name else {}
    sizes = {"num_machines": 1, "num_processes": processes} if processes else {}
    return {"distributed_type": kind, "mixed_precision": "bf16", **sizes, **inner}


def _fsdp(version: int, processes: int | None = 8, **more: Any) -> dict[str, Any]:
    own: dict[str, Any] = (
        {"fsdp_reshard_after_forward": True} if version == 2 else {"fsdp_sharding_strategy": "FULL_SHARD"}
    )
    policy: dict[str, Any] = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    return of_accelerate("FSDP", processes, fsdp_version=version, **policy, **own, **more)


def _zero(stage: int) -> dict[str, Any]:
    home: dict[str, Any] = {"offload_optimizer_device": "none", "offload_param_device": "none"}
    return of_accelerate("DEEPSPEED", zero_stage=stage, **home)


def _axes(**sizes: int) -> dict[str, Any]:
    return {"parallelism_config": {f"parallelism_config_{axis}_size": size for axis, size in sizes.items()}}


_BOTH = ("optimizer", "param")
_BUCKETS: dict[str, Any] = {"allgather_bucket_size": 500_000_000, "reduce_bucket_size": 500_000_000}
_LIVE_ADAM = {"optimizer": {"type": "AdamW"}}
_OF_FACTORY: dict[str, dict[str, Any]] = {
    "deepspeed/ds_z0_config.json": of_deepspeed(0, overlaps=False, **_BUCKETS),
    "deepspeed/ds_z2_config.json": of_deepspeed(2, overlaps=False, **_BUCKETS),
    "deepspeed/ds_z2_autotp_config.json": {
        **of_deepspeed(2, overlaps=False, **_BUCKETS),
        "tensor_parallel": {"autotp_size": 2},
    },
    "deepspeed/ds_z2_offload_config.json": of_deepspeed(2, overlaps=False, offloads=("optimizer",), **_BUCKETS),
    "deepspeed/ds_z3_config.json": of_deepspeed(3, overlaps=False, **BY_WIDTH),
    "deepspeed/ds_z3_offload_config.json": of_deepspeed(3, overlaps=False, offloads=_BOTH, **BY_WIDTH),
    "accelerate/fsdp_config.yaml": _fsdp(1, None, fsdp_forward_prefetch=False),
    "accelerate/fsdp_config_offload.yaml": _fsdp(1, None, fsdp_forward_prefetch=False, fsdp_offload_params=True),
    "accelerate/fsdp2_config.yaml": _fsdp(2, None),
}
_OF_AXOLOTL: dict[str, dict[str, Any]] = {
    "zero1.json": of_deepspeed(1),
    "zero2.json": of_deepspeed(2, offloads=("optimizer",)),
    "zero3.json": of_deepspeed(3, **BY_WIDTH),
    "zero3_bf16.json": of_deepspeed(3, bf16=True, **BY_WIDTH),
    "zero3_bf16_cpuoffload_params.json": of_deepspeed(3, bf16=True, offloads=("param",), **BY_WIDTH),
    "zero3_bf16_cpuoffload_all.json": of_deepspeed(3, bf16=True, offloads=_BOTH, **BY_WIDTH),
}
OF_TRL: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": _zero(stage) for stage in (1, 2, 3)},
    "fsdp1": _fsdp(1, fsdp_forward_prefetch=True),
    "fsdp2": _fsdp(2),
    "multi_gpu": of_accelerate("MULTI_GPU"),
    "single_gpu": of_accelerate("NO"),
}
"""Configs that ``trl`` takes by name."""
_OF_TRL: dict[str, dict[str, Any]] = {
    **{f"{'deepspeed_' * name.startswith('zero')}{name}.yaml": config for name, config in OF_TRL.items()},
    "alst_ulysses_4gpu.yaml": {**_zero(3), "num_processes": 4, **_axes(dp_shard=2, sp=2)},
    "context_parallel_2gpu.yaml": {**_fsdp(2, 2, fsdp_activation_checkpointing=True), **_axes(cp=2)},
}
_OF_LLAVA: dict[str, dict[str, Any]] = {
    "zero2.json": of_deepspeed(2, reduce_bucket_size="auto"),
    "zero3.json": of_deepspeed(3, **BY_WIDTH),
    "zero3_offload.json": of_deepspeed(3, offloads=_BOTH, **BY_WIDTH) | _LIVE_ADAM,
}
_OF_HANDBOOK: dict[str, dict[str, Any]] = {
    "ddp.yaml": of_accelerate("MULTI_GPU"),
    "fsdp.yaml": _fsdp(1, fsdp_forward_prefetch=True),
    "zero2.yaml": _zero(2),
    "zero3.yaml": _zero(3),
}
_OF_FASTCHAT: dict[str, dict[str, Any]] = {
    "deepspeed_config_s2.json": of_deepspeed(2, offloads=("optimizer",)),
    "deepspeed_config_s3.json": of_deepspeed(
        3, offloads=_BOTH, stage3_prefetch_bucket_size=500_000_000, stage3_param_persistence_threshold=1_000_000,
    ),
}  # fmt: skip
_OF_QWEN = {
    "ds_config_zero2.json": of_deepspeed(2, allgather_bucket_size=200_000_000, reduce_bucket_size=200_000_000)
    | _LIVE_ADAM
}
FOLDERS: Mapping[str, tuple[str, Mapping[str, dict[str, Any]]]] = {
    "examples": ("LLaMA-Factory", _OF_FACTORY),
    "deepspeed_configs": ("Axolotl", _OF_AXOLOTL),
    "examples/accelerate_configs": ("TRL", _OF_TRL),
    "trl/accelerate_configs": ("TRL", {f"{name}.yaml": config for name, config in OF_TRL.items()}),
    "scripts": ("LLaVA and Qwen3-VL", _OF_LLAVA),
    "recipes/accelerate_configs": ("alignment-handbook and open-r1", _OF_HANDBOOK),
    "playground": ("FastChat", _OF_FASTCHAT),
    "finetune": ("Qwen", _OF_QWEN),
}
"""Configs by folder of a checkout and path in it, and whose they are."""
BY_PATH = {
    f"{folder}/{name}": (owner, values) for folder, (owner, files) in FOLDERS.items() for name, values in files.items()
}


def load_config(path: str, source: str) -> tuple[dict[str, Any], str]:
    """A config that a text names, and a note: "" if the file is here, else whose config of that path is taken.

    Raises UserError if there is no file, and no framework ships one with that path.
    """
    parts = PurePath(path).parts
    tails = ("/".join(parts[at:]) for at in range(len(parts)))
    shipped = next((BY_PATH[tail] for tail in tails if tail in BY_PATH), None)
    if shipped is None or text_beside(path, source) is not None:
        return load_beside(path, source), ""
    owner, values = shipped
    return values, f"{path} is not here: taken as {owner} ships it ({REVISIONS[owner]})."

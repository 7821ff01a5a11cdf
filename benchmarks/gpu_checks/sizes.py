"""Steps of many sizes in one process: time, phases, memory and a trace of each, beside what is predicted."""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from gpu_checks.here import Here, Row, predicted_beside, slug, write_json
from simpar.calibrate import request
from simpar.units import US

FILE = "sizes.json"
STEPS, WARMUP = 5, 2
PRODUCTS = re.compile("nvjet|gemm|cutlass", re.IGNORECASE)


def llama(hidden: int, layers: int, vocab: int = 32_768, head: int = 128) -> dict[str, Any]:
    """The decoder that calibrations time, with half as many key-value heads and long sequences."""
    return {
        **request.llama(hidden, layers, vocab, head=head), "num_key_value_heads": max(hidden // head // 4, 1),
        "max_position_embeddings": 65_536,
    }  # fmt: skip


def gpt(hidden: int, layers: int, dropout: float) -> dict[str, Any]:
    """The one with LayerNorm, biases and learned positions, with dropout in attention as well."""
    return {**request.gpt(hidden, layers, 50_304, dropout=dropout), "attn_pdrop": dropout}


def mixtral(hidden: int, layers: int) -> dict[str, Any]:
    """Eight experts of a layer, two of a token."""
    experts = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    return {**llama(hidden, layers), **experts, "intermediate_size": hidden}


def qwen3_moe(hidden: int, layers: int) -> dict[str, Any]:
    """64 small experts of a layer, eight of a token."""
    experts = {
        "model_type": "qwen3_moe", "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": hidden // 4,
        "head_dim": 128, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
    }  # fmt: skip
    return {**llama(hidden, layers), **experts}


def cases() -> dict[str, tuple[dict[str, Any], int, int, dict[str, Any]]]:
    """By name: model, tokens of a sequence, sequences of a step, fields of the plan."""
    small, middle, large = llama(1024, 8, head=64), llama(2048, 16, head=64), llama(4096, 8)
    return {
        "small, short": (small, 1024, 4, {"micro_batch": 1}),
        "small": (small, 4096, 16, {"micro_batch": 8}),
        "middle": (middle, 2048, 8, {"micro_batch": 4}),
        "middle, eight microbatches": (middle, 2048, 8, {"micro_batch": 1}),
        "middle, fp32": (llama(2048, 4), 2048, 4, {"micro_batch": 2, "precision": "fp32"}),
        "middle, sgd": (middle, 2048, 8, {"micro_batch": 4, "optimizer": "sgd"}),
        "long": (llama(2048, 4), 32_768, 1, {"micro_batch": 1}),
        "large": (large, 4096, 4, {"micro_batch": 2}),
        "large, selective": (large, 4096, 4, {"micro_batch": 2, "recompute": "selective"}),
        "large, full": (large, 4096, 4, {"micro_batch": 2, "recompute": "full"}),
        "wide": (llama(8192, 2), 4096, 2, {"micro_batch": 1}),
        "large vocabulary": (llama(2048, 8, 131_072), 4096, 4, {"micro_batch": 2}),
        "biases": (gpt(2048, 12, 0.0), 1024, 16, {"micro_batch": 8}),
        "dropout": (gpt(2048, 12, 0.1), 1024, 16, {"micro_batch": 8}),
        "experts": (mixtral(2048, 8), 4096, 4, {"micro_batch": 2}),
        "many experts": (qwen3_moe(2048, 8), 4096, 4, {"micro_batch": 2}),
        **(
            {
                "middle, 8 bits": (middle, 2048, 8, {"micro_batch": 4, "precision": "fp8"}),
                "large, 8 bits": (large, 4096, 4, {"micro_batch": 2, "precision": "fp8"}),
            }
            if find_spec("torchao") is not None
            else {}
        ),
    }


def scenarios(here: Here) -> dict[str, dict[str, Any]]:
    """Every case as a scenario; of a rehearsal, one tiny one."""
    if here.dry:
        tiny = (llama(128, 2, 512, head=32), 64, 4, {"micro_batch": 2, "precision": "fp32"})
        return {"tiny": _scenario("tiny", *tiny)}
    return {name: _scenario(name, *case) for name, case in cases().items()}


def _scenario(name: str, model: dict[str, Any], seq_len: int, batch: int, plan: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"name": slug(name), **model},
        "training": {"seq_len": seq_len, "global_batch": batch},
        "plan": {"dp": 1, "precision": "bf16", **plan},
    }


def measure(here: Here) -> None:
    """Every case that the folder lacks, one after the other on the first device."""
    path = here.folder / FILE
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    with ExitStack() as stack:
        device = None
        for name, scenario in scenarios(here).items():
            if name in found:
                continue
            device = device or stack.enter_context(_alone(here))
            try:
                found[name] = {"scenario": scenario, **_measured(scenario, device, here)}
            except RuntimeError as error:  # torch's out of memory among them
                found[name] = {"scenario": scenario, "failed": str(error).splitlines()[0][:200]}
            _forget(here)
            write_json(path, found)


def _alone(here: Here) -> Any:
    """The device of this process as the only rank of a job."""
    from simpar.runtime.job import Machine
    from simpar.runtime.worker import join_process_group

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", GROUP_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )  # fmt: skip
    return join_process_group(Machine.model_validate({"device": here.device}), here.folder)


def _measured(scenario: dict[str, Any], device: Any, here: Here) -> dict[str, Any]:
    """Steps of a case: seconds of each, phases, bytes, and a trace of one more."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from simpar.architectures.training import Training
    from simpar.plan.plan import Plan
    from simpar.runtime.job import Machine, RunJob
    from simpar.runtime.measure import Memory
    from simpar.runtime.prepare import STACK
    from simpar.runtime.train import start, train_step

    memory = Memory.start(device)
    job = RunJob(
        plan=Plan.model_validate({**scenario["plan"], "stack": STACK}), model=scenario["model"],
        training=Training.model_validate(scenario["training"]), steps=STEPS, folder=str(here.folder),
        machine=Machine.model_validate({"device": here.device, "threads": 8}),
    )  # fmt: skip
    session = start(job, 0, 1, device)
    steps = [train_step(session, step) for step in range(WARMUP + STEPS)]
    peak = memory.peak()
    activities = [ProfilerActivity.CPU, *([] if here.dry else [ProfilerActivity.CUDA])]
    with profile(activities=activities) as traced:
        train_step(session, WARMUP + STEPS)
        if not here.dry:
            torch.cuda.synchronize()
    trace = here.folder / "traces" / f"{scenario['model']['name']}.json.gz"
    trace.parent.mkdir(exist_ok=True)
    traced.export_chrome_trace(str(trace))
    counted = steps[WARMUP:]
    return {
        "step_time_s": median(each["step_time_s"] for each in counted),
        "steps_s": [each["step_time_s"] for each in counted],
        "phases_s": {phase: median(each["phases_s"][phase] for each in counted) for phase in counted[0]["phases_s"]},
        "losses": [each["loss"] for each in steps],
        "traced": traced(trace),
        **peak,
    }


def traced(trace: Path) -> dict[str, float]:
    """Kernels that the host launched in a traced step, and device seconds of products and of all other kernels."""
    events = [each for each in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"] if "dur" in each]
    launches = [each for each in events if each["cat"] == "cuda_runtime" and "Launch" in each["name"]]
    kernels = [each for each in events if each["cat"] == "kernel"]
    products_us = sum(each["dur"] for each in kernels if PRODUCTS.search(each["name"]))
    whole_us = sum(each["dur"] for each in kernels)
    return {
        "launches": len(launches), "products_s": round(products_us * US, 6),
        "others_s": round((whole_us - products_us) * US, 6),
    }  # fmt: skip


def _forget(here: Here) -> None:
    """Give memory back, so that the next case finds an empty device."""
    import torch

    gc.collect()
    if not here.dry:
        torch.cuda.empty_cache()


def rows(here: Here) -> Iterator[Row]:
    """What was measured and predicted of every case in the folder."""
    path = here.folder / FILE
    for name, found in json.loads(path.read_text()).items() if path.exists() else ():
        if "failed" in found:
            yield Row("sizes", name, sound=False, note=found["failed"])
            continue
        scenario = here.folder / "sizes" / slug(name) / "scenario.json"
        write_json(scenario, found["scenario"])
        yield from predicted_beside(name, scenario, found, here, part="sizes")

"""Layouts run for real with ``simpar run``: step time and memory peak beside what each profile predicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from gpu_checks.here import Here, Row, Size, predicted_beside, simpar, slug, write_json

STEPS, WARMUP = 12, 4
FEW = 4  # where a step takes seconds


@dataclass(frozen=True)
class Layout:
    """A run of ``ranks`` devices: fields of its plan, further flags, whether its model has experts, and its steps."""

    name: str
    ranks: int = 1
    plan: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    experts: bool = False
    steps: int = STEPS


def layouts(devices: int) -> list[Layout]:
    """What is run on so many devices: single ones first, then each way to use them together."""
    found = [
        Layout("one device"),
        Layout("one device, recompute full", plan={"recompute": "full"}),
        Layout("one device, recompute selective", plan={"recompute": "selective"}),
        Layout("one device, compiled", flags=("--compile",)),
        Layout("one device, activations on the host", plan={"offload_activations": 0.5}),
        Layout("one device, experts", experts=True),
    ]
    if find_spec("torchao") is not None:
        found.append(Layout("one device, 8 bits", plan={"precision": "fp8"}))
    found.append(Layout("one device, optimizer on the host", plan={"offload_optimizer": "cpu"}, steps=FEW))
    if devices > 1:
        n = devices
        found += [
            Layout(f"dp {n}", n, {"dp": n}),
            Layout(f"dp {n}, zero 1", n, {"dp": n, "zero": 1}),
            Layout(f"dp {n}, zero 3", n, {"dp": n, "zero": 3}),
            Layout(f"tp {n}", n, {"tp": n, "sequence_parallel": True}),
            Layout(f"cp {n}, ring", n, {"cp": n, "cp_method": "ring"}),
            Layout(f"cp {n}, all-gather", n, {"cp": n, "cp_method": "all_gather"}),
            Layout(f"pp {n}, 1f1b", n, {"pp": n, "schedule": "1f1b"}),
            Layout(f"pp {n}, dualpipev", n, {"pp": n, "schedule": "dualpipev"}),
            Layout(f"dp {n}, experts, ep {n}", n, {"dp": n, "ep": n}, experts=True),
        ]
    return found


def measure(here: Here) -> None:
    """Run every layout that the folder lacks."""
    chosen = layouts(here.devices)
    if here.dry:
        chosen = [each for each in chosen if each.name in ("one device", "one device, experts")]
    for layout in chosen:
        folder = here.folder / "runs" / slug(layout.name)
        write_json(folder / "scenario.json", scenario(layout, here.size))
        if (folder / "report.json").exists():
            continue
        steps, warmup = (3, 1) if here.dry else (layout.steps, min(WARMUP, layout.steps // 2))
        said = simpar(
            "run", str(folder / "scenario.json"), "--steps", str(steps), "--warmup", str(warmup),
            "--nproc", str(layout.ranks), "--device", here.device, "-o", str(folder), *layout.flags,
        )  # fmt: skip
        write_json(folder / "layout.json", {"name": layout.name, "ranks": layout.ranks, "said": said})


def rows(here: Here) -> Iterator[Row]:
    """What was measured and predicted of every layout in the folder."""
    for path in sorted((here.folder / "runs").glob("*/layout.json")):
        layout, report = json.loads(path.read_text()), path.with_name("report.json")
        if layout["said"] or not report.exists():
            yield Row("steps", layout["name"], sound=False, note=layout["said"])
            continue
        found = {**json.loads(report.read_text())["measured"], "ranks": layout["ranks"]}
        yield from predicted_beside(layout["name"], path.with_name("scenario.json"), found, here)


def scenario(layout: Layout, size: Size) -> dict[str, Any]:
    """A layout as a file: a decoder of grouped heads, or a mixture of eight experts half as wide."""
    hidden, layers = size.model
    head = 64 if hidden % 128 == 0 and hidden > 128 else 32
    model = {
        "model_type": "mixtral" if layout.experts else "llama", "name": f"{hidden}x{layers}", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": hidden // head, "num_key_value_heads": hidden // head // 2,
        "intermediate_size": hidden * (1 if layout.experts else 11) // (2 if layout.experts else 4),
        "vocab_size": size.vocab, "max_position_embeddings": size.seq_len,
    }  # fmt: skip
    if layout.experts:
        model |= {"num_local_experts": 8, "num_experts_per_tok": 2}
    plan = {"precision": size.precision, "micro_batch": 1, **layout.plan}
    if layout.ranks == 1:
        plan["dp"] = 1
    training = {"seq_len": size.seq_len, "global_batch": max(size.batch, 2 * layout.ranks)}
    return {"model": model, "training": training, "plan": plan}

"""Everything about CUDA that a machine with GPUs can tell, as one table with where it comes from.

Usage: python benchmarks/on_gpu.py [--folder DIR] [--only PART] [--dry]

Three parts: ``numbers`` (kernels against plain products, shared heads, experts in one kernel, initial weights),
``kernels`` (this machine calibrated: errors of the fits), ``steps`` (layouts of as many ranks as there are devices:
time and memory peaks measured, and predicted by the shipped profile of the device and by the calibrated one). The
folder gets ``table.md``, ``table.json`` and the runs; a run that is there is not made again. Exit code 1 where a number
is wrong or a run fails, 2 without a GPU. ``--dry`` goes the same way on processors with tiny sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STEPS, WARMUP = 12, 4
PROFILES = {
    "H100 80GB HBM3": "dgx-h100", "H100 PCIe": "h100-pcie-8", "H200": "hgx-h200", "H20": "hgx-h20", "H800": "hgx-h800",
    "A100-SXM4-80GB": "dgx-a100-80gb", "A100-SXM4-40GB": "dgx-a100-40gb", "A100-PCIE": "a100-pcie-8",
    "A100 80GB PCIe": "a100-pcie-8", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "B200": "hgx-b200",
    "B300": "hgx-b300", "L40S": "l40s-8", "L4": "l4-8", "A10G": "a10g-8", "RTX 4090": "rtx-4090-8",
    "RTX 3090": "rtx-3090-8", "V100-SXM2": "dgx-v100", "MI300X": "mi300x-8", "MI325X": "mi325x-8",
    "MI355X": "mi355x-8", "MI250X": "mi250x-8",
}  # fmt: skip
"""The shipped profile whose device has these words in torch's name for it."""


@dataclass(frozen=True)
class Row:
    """A line of the table: measured, what it is held against and the relative error; ``sound`` is False where wrong."""

    part: str
    what: str
    measured: float | None = None
    against: float | None = None
    error: float | None = None
    unit: str = ""
    sound: bool = True
    note: str = ""


@dataclass(frozen=True)
class Size:
    """How large things are: of a decoder (hidden, layers), its sequences, and of attention alone."""

    model: tuple[int, int] = (2048, 16)
    vocab: int = 32_768
    seq_len: int = 4096
    batch: int = 8
    attention: tuple[int, int, int, int] = (32, 8, 2048, 128)
    precision: str = "bf16"


TINY = Size((128, 2), 512, 64, 4, (4, 2, 64, 16), "fp32")


@dataclass(frozen=True)
class Layout:
    """A run of ``ranks`` devices: fields of its plan, further flags, and whether its model has experts."""

    name: str
    ranks: int = 1
    plan: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    experts: bool = False


def layouts(devices: int) -> list[Layout]:
    """What is run on so many devices: single ones first, then each way to use them together."""
    found = [
        Layout("one device"),
        Layout("one device, recompute full", plan={"recompute": "full"}),
        Layout("one device, recompute selective", plan={"recompute": "selective"}),
        Layout("one device, compiled", flags=("--compile",)),
        Layout("one device, optimizer on the host", plan={"offload_optimizer": "cpu"}),
        Layout("one device, activations on the host", plan={"offload_activations": 0.5}),
        Layout("one device, experts", experts=True),
    ]
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


def main() -> int:
    """Run the parts that are asked for and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("on-gpu"))
    arguments.add_argument("--only", choices=list(PARTS), help="one part")
    arguments.add_argument("--dry", action="store_true", help="on processors, tiny: no numbers to rely on")
    given = arguments.parse_args()
    from simpar.runtime.request import accelerators

    devices = 1 if given.dry else accelerators()
    if not devices:
        print("no GPU: torch finds no device; --dry goes through it on processors", file=sys.stderr)
        return 2
    given.folder.mkdir(parents=True, exist_ok=True)
    here = Here(given.folder.resolve(), devices, dry=given.dry)
    rows = [row for name, part in PARTS.items() if given.only in (None, name) for row in part(here)]
    text = table(rows, here.provenance())
    (here.folder / "table.md").write_text(text)
    written = {"provenance": here.provenance(), "rows": [asdict(row) for row in rows]}
    (here.folder / "table.json").write_text(json.dumps(written, indent=2) + "\n")
    print(text)
    return 0 if all(row.sound for row in rows) else 1


@dataclass(frozen=True)
class Here:
    """Where it runs: a folder for results, how many devices there are, and whether it is only a rehearsal."""

    folder: Path
    devices: int
    dry: bool

    @property
    def size(self) -> Size:
        """How large things are here."""
        return TINY if self.dry else Size()

    @property
    def device(self) -> str:
        """As torch names it."""
        return "cpu" if self.dry else "cuda"

    def provenance(self) -> dict[str, str]:
        """What the numbers are of: devices, software, commit and day."""
        import torch

        root = Path(__file__).parent
        commit = _said("git", "-C", str(root), "rev-parse", "--short", "HEAD")
        changed = _said("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
        found = {
            "day": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": f"{commit}{' with changes' if changed else ''}",
            "torch": str(torch.__version__),
        }
        if self.dry:
            return {"devices": "none: a rehearsal on processors, tiny", **found}
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        driver = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
        return {
            "devices": f"{self.devices} x {torch.cuda.get_device_name(0)}", **found, "nccl": nccl,
            "cuda": str(torch.version.cuda or torch.version.hip), "driver": driver[0] if driver else "unknown",
        }  # fmt: skip

    def profile(self, devices: int) -> Path | None:
        """The shipped profile of this device, of a node with so many of them; None for a device without."""
        import torch

        if self.dry:
            return None
        name = torch.cuda.get_device_name(0)
        known = next((profile for words, profile in PROFILES.items() if words in name), None)
        return None if known is None else resized(known, devices, self.folder)


def resized(name: str, devices: int, folder: Path) -> Path:
    """A shipped profile with so many devices a node, as a file."""
    from simpar.profiles import load_profile

    path = folder / f"{name}-{devices}.json"
    as_written = load_profile(name, "clusters", "hardware")[0].data
    mine = {**as_written, "name": path.stem, "devices_per_node": devices}
    if "devices_per_switch" in (host := dict(mine.get("host", {}))):
        mine["host"] = {**host, "devices_per_switch": math.gcd(host["devices_per_switch"], devices)}
    path.write_text(json.dumps(mine, indent=2) + "\n")
    return path


def _said(*command: str) -> str:
    """What a command prints; nothing where it is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def numbers(here: Here) -> Iterator[Row]:
    """Kernels against plain products in fp32, each on the same tensors."""
    yield from _bands(here)
    yield _shared_heads(here)
    yield _experts(here)
    yield _initial(here)


def _bands(here: Here) -> Iterator[Row]:
    """Attention to a block seen whole, causally, through windows, and through the end of one."""
    import torch

    from simpar.runtime import banded
    from simpar.runtime.banded import Band, Run, band

    heads, kv_heads, length, dim = here.size.attention
    torch.manual_seed(0)
    dtype = torch.float32 if here.dry else torch.bfloat16
    query, key, value, gradient = (
        torch.randn(2, each, length, dim, device=here.device).to(dtype)
        for each in (heads, kv_heads, kv_heads, heads)
    )
    run, before = Run(length, 1, length), Run(0, 1, length)
    cases = {
        "whole": band(run, before, None), "causal": band(run, run, None), "window": band(run, run, length // 4),
        "end of a window": band(run, before, length // 4), "strided": band(Run(0, 2, length), Run(1, 2, length), None),
    }  # fmt: skip
    for name, seen in cases.items():
        assert isinstance(seen, Band), "every case sees something"
        q, k, v = query[:, :, seen.rows], key[:, :, seen.columns], value[:, :, seen.columns]
        wide = [x.float() for x in (q, k, v)]
        expected, lse = banded._plain_forward(*wide, seen)
        out, found = banded.forward(q, k, v, seen)
        upstream = gradient[:, :, seen.rows]
        ours = banded.backward(q, k, v, (upstream, out, found), seen)
        theirs = banded._plain_backward(*wide, (upstream.float(), expected, lse), seen)
        pairs = [(out, expected), (found, lse), *zip(ours, theirs, strict=True)]
        fused = "flash" if banded.is_fused(q) else here.device
        yield _close(f"attention, {name} ({fused})", pairs, here)


def _shared_heads(here: Here) -> Row:
    """Attention of grouped heads without and with copies of keys and values."""
    import torch
    from torch.nn import functional

    from simpar.models.details import Details
    from simpar.models.graph import Attention as Mask
    from simpar.runtime.attention import Attention, Place

    heads, kv_heads, length, dim = here.size.attention
    dtype = torch.float32 if here.dry else torch.bfloat16
    qkv = [
        torch.randn(1, length, each * dim, device=here.device).to(dtype)
        for each in (heads, kv_heads, kv_heads)
    ]
    found = Attention(Mask(causal=True), dim, Place(), Details())(qkv)
    split = [x.float().unflatten(-1, (-1, dim)).transpose(1, 2) for x in qkv]
    copied = [split[0], *(x.repeat_interleave(heads // kv_heads, dim=1) for x in split[1:])]
    expected = functional.scaled_dot_product_attention(*copied, is_causal=True).transpose(1, 2).flatten(-2)
    return _close("attention, heads that are shared", [(found, expected)], here)


def _experts(here: Here) -> Row:
    """Products of all experts at once and one by one, an expert without rows among them."""
    import torch
    from torch.nn import functional

    from simpar.runtime.experts import grouped_product, is_grouped

    hidden, counts = here.size.model[0], torch.tensor([7, 0, 32, 25], device=here.device)
    dtype = torch.float32 if here.dry else torch.bfloat16
    x = torch.randn(64, hidden, device=here.device).to(dtype)
    weight = torch.randn(4, 2 * hidden, hidden, device=here.device).to(dtype)
    found = grouped_product(x, weight, None, counts)
    pieces = zip(x.float().split(counts.tolist()), weight.float(), strict=True)
    expected = torch.cat([functional.linear(*each) for each in pieces])
    how = "one kernel" if is_grouped(x, weight) else "one by one"
    return _close(f"products of experts ({how})", [(found, expected)], here)


def _initial(here: Here) -> Row:
    """Initial weights made on the device and on the host."""
    from simpar.runtime.initial import initial_value

    shape = (here.size.vocab, here.size.model[0])
    found = initial_value("head.lm_head.parts.0.weight", shape, 0, device=here.device)
    expected = initial_value("head.lm_head.parts.0.weight", shape, 0)
    return _close("initial weights, device and host", [(found.cpu(), expected)], here)


def _close(what: str, pairs: Sequence[tuple[Any, Any]], here: Here) -> Row:
    """The largest difference of any pair over the largest number there, and whether rounding explains it."""
    error = max(
        float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())
        for ours, theirs in pairs
    )
    limit = 0.0001 if here.dry else 0.02
    return Row("numbers", what, error=error, sound=error <= limit, note=f"allowed {limit:g} of the largest")


def kernels(here: Here) -> Iterator[Row]:
    """The machine calibrated; how well the fits meet what was measured."""
    profile, report = _calibrated(here), here.folder / "calibration.json"
    if not profile.exists():
        quick = ["--quick"] if here.dry else []
        said = _simpar(
            "calibrate", "-o", str(profile), "--ranks", str(here.devices), "--device", here.device,
            "--json", str(report), *quick,
        )  # fmt: skip
        if said:
            yield Row("kernels", "simpar calibrate", sound=False, note=said)
            return
    for part, fit in json.loads(report.read_text())["quality"].items():
        yield Row(
            "kernels",
            part,
            error=fit["error_median"],
            note=f"{fit['samples']} samples, p90 {fit['error_p90']:.1%}",
        )


def _calibrated(here: Here) -> Path:
    """Where the profile of this machine lies."""
    return here.folder / "here.yaml"


def steps(here: Here) -> Iterator[Row]:
    """Layouts run for real: step time and memory peak beside what each profile predicts."""
    chosen = layouts(here.devices)
    if here.dry:
        chosen = [each for each in chosen if each.name in ("one device", "one device, experts")]
    for layout in chosen:
        yield from _step(layout, here)


def _step(layout: Layout, here: Here) -> Iterator[Row]:
    folder = here.folder / "runs" / layout.name.replace(",", "").replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    scenario = folder / "scenario.json"
    scenario.write_text(json.dumps(_scenario(layout, here), indent=2) + "\n")
    report = folder / "report.json"
    if not report.exists():
        count = (
            ["--steps", "3", "--warmup", "1"]
            if here.dry
            else ["--steps", str(STEPS), "--warmup", str(WARMUP)]
        )
        said = _simpar(
            "run", str(scenario), *count, "--nproc", str(layout.ranks), "--device", here.device, "-o", str(folder),
            *layout.flags,
        )  # fmt: skip
        if said:
            yield Row("steps", layout.name, sound=False, note=said)
            return
    found = json.loads(report.read_text())["measured"]
    own = _calibrated(here) if layout.ranks == here.devices and _calibrated(here).exists() else None
    profiles = {"shipped": here.profile(layout.ranks), "calibrated": own}
    for name, path in profiles.items():
        if path is not None:
            yield from _errors(f"{layout.name}, {name}", scenario, path, found)
    if not any(profiles.values()):
        yield Row("steps", f"{layout.name}: step time", found["step_time_s"], unit="s", note="not predicted")
        yield Row(
            "steps", f"{layout.name}: peak", found["peak_memory_bytes"], unit="bytes", note="not predicted"
        )


def _errors(what: str, scenario: Path, profile: Path, found: Mapping[str, Any]) -> Iterator[Row]:
    """Step time and peak of a profile's prediction beside what was measured."""
    out = scenario.with_name(f"predicted-{profile.stem}.json")
    stack = profile.with_suffix(".stack.yaml")
    own = ["--stack", str(stack)] if stack.exists() else ["--stack", "simpar"]
    said = _simpar("simulate", str(scenario), "--hardware", str(profile), *own, "--json", str(out))
    if said:
        yield Row("steps", what, sound=False, note=said)
        return
    result = json.loads(out.read_text())
    for name, unit, figures in (
        ("step time", "s", ("step_time_s", "step_time_s")),
        ("peak", "bytes", ("peak_memory_bytes", "peak_memory_bytes")),
    ):
        measured, predicted = found[figures[0]], _figure(result, figures[1])
        yield Row("steps", f"{what}: {name}", measured, predicted, predicted / measured - 1, unit)


def _figure(result: Mapping[str, Any], name: str) -> float:
    """A figure of a result, at its top or in its memory."""
    return float(result[name] if name in result else result["memory"][name])


def _scenario(layout: Layout, here: Here) -> dict[str, Any]:
    """A layout as a file: a decoder of grouped heads, or a mixture of eight experts half as wide."""
    size = here.size
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


def _simpar(*arguments: str) -> str:
    """Run a command; empty, or the last line of what it says where it fails."""
    command = [sys.executable, "-m", "simpar", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


def table(rows: Sequence[Row], provenance: Mapping[str, str]) -> str:
    """The rows as Markdown, with where they come from above."""
    lines = ["# Measured on a GPU", "", *(f"- {name}: {value}" for name, value in provenance.items()), ""]
    lines += ["| part | what | measured | predicted | error | sound | |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        shown = [_written(value, row.unit) for value in (row.measured, row.against)]
        error = "" if row.error is None else f"{row.error:+.2%}"
        cells = [
            row.part,
            row.what,
            *shown,
            error,
            "yes" if row.sound else "**no**",
            row.note.replace("|", "/"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _written(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value / 2.0**30:.3f} GiB" if unit == "bytes" else f"{value:.4f} {unit}"


PARTS: Mapping[str, Callable[[Here], Iterator[Row]]] = {
    "numbers": numbers,
    "kernels": kernels,
    "steps": steps,
}

if __name__ == "__main__":
    sys.exit(main())

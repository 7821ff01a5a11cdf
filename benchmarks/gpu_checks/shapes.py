"""Matrix products and attention over many shapes, each timed alone, in the columns of tables of published kernels.

Rows of the first dimension go up in steps smaller than a wave of tiles, so that the table tells how a last wave that
is not full is paid.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from itertools import product as every
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from gpu_checks.here import Here, Row
from simpar.units import MS, US

FILE = "kernels.csv"
COLUMNS = (
    "source", "citation", "gpu_type", "op", "direction", "dtype", "batch", "m", "n", "k", "n_heads", "n_kv_heads",
    "seq_len", "head_dim", "causal", "layout", "accumulate", "time_us", "tflops", "statistic", "notes",
)  # fmt: skip
WINDOW_S, ROUNDS = 0.012, 3
LAYOUTS = ("TN", "NN", "NT")  # y = x W^T, its gradient of x, its gradient of W
Case = dict[str, Any]


def products(here: Here) -> Iterator[Case]:
    """Rows in steps of 128 and 256 for a few layers; every layout and 8 bits for those of models."""
    if here.dry:
        yield {"op": "matmul", "dtype": "fp32", "m": 64, "n": 64, "k": 64, "layout": "TN"}
        return
    steps = [(128, 64, 4096, 4096), (256, 32, 6144, 4096), (256, 32, 2048, 2048), (512, 16, 8192, 8192)]
    for step, count, n, k in steps:
        for m in range(step, step * count + 1, step):
            yield {"op": "matmul", "dtype": "bf16", "m": m, "n": n, "k": k, "layout": "TN"}
    layers = [
        (2048, 5632),
        (4096, 4096),
        (4096, 11_264),
        (4096, 14_336),
        (5120, 13_824),
        (8192, 28_672),
        (4096, 32_768),
    ]
    for m, (inner, outer), layout in every((1024, 2048, 4096, 8192), layers, LAYOUTS):
        sizes = {"TN": (m, outer, inner), "NN": (m, inner, outer), "NT": (outer, inner, m)}[layout]
        yield {"op": "matmul", "dtype": "bf16", **dict(zip("mnk", sizes, strict=True)), "layout": layout}
    for m, (inner, outer) in every((1024, 2048, 4096, 8192), layers):
        yield {"op": "matmul", "dtype": "fp8", "m": m, "n": outer, "k": inner, "layout": "TN"}


def attentions(here: Here) -> Iterator[Case]:
    """Causal attention forward and backward, of few and many blocks, by each fused kernel of torch."""
    if here.dry:
        return
    tokens = [
        (seq, batch) for seq in (512, 1024, 2048, 4096, 8192, 16_384) for batch in (1, 4) if seq * batch <= 16_384
    ]
    for (seq, batch), (heads, dim), kernel in every(tokens, [(8, 128), (32, 128), (32, 64)], ("flash", "cudnn")):
        for direction in ("fwd", "bwd"):
            op = "flash_attention_2" if kernel == "flash" else "cudnn_attention"
            yield {
                "op": op, "direction": direction, "dtype": "bf16", "batch": batch, "n_heads": heads,
                "n_kv_heads": heads, "seq_len": seq, "head_dim": dim, "causal": True,
            }  # fmt: skip


def measure(here: Here) -> None:
    """Time every shape, unless the folder has them."""
    path = here.folder / FILE
    if path.exists():
        return
    source = {
        "source": "simpar measured", "gpu_type": here.provenance["device"],
        "citation": f"benchmarks/on_gpu.py with torch {here.provenance['torch']}", "statistic": "median of windows",
    }  # fmt: skip
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for case in (*products(here), *attentions(here)):
            try:
                call = _product(case, here) if case["op"] == "matmul" else _attention(case)
                seconds = _seconds(call, here)
            except RuntimeError as error:  # no such kernel here
                print(f"{case}: {str(error).splitlines()[0]}", flush=True)
                continue
            writer.writerow({**source, **case, "time_us": f"{seconds / US:.3f}"})


def _product(case: Case, here: Here) -> Callable[[], Any]:
    import torch

    torch.manual_seed(0)
    m, n, k = (case[name] for name in "mnk")
    if case["dtype"] == "fp8":
        left, right = (torch.randn(rows, k, device=here.device).to(torch.float8_e4m3fn) for rows in (m, n))
        one = torch.ones((), device=here.device)
        return lambda: torch._scaled_mm(left, right.t(), one, one, out_dtype=torch.bfloat16)
    dtype = torch.bfloat16 if case["dtype"] == "bf16" else torch.float32
    layout = case["layout"]
    left = torch.randn((k, m) if layout == "NT" else (m, k), device=here.device).to(dtype)
    right = torch.randn((n, k) if layout == "TN" else (k, n), device=here.device).to(dtype)
    a, b = left.t() if layout == "NT" else left, right.t() if layout == "TN" else right
    out = torch.empty(m, n, device=here.device, dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def _attention(case: Case) -> Callable[[], Any]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    shape = (case["batch"], case["n_heads"], case["seq_len"], case["head_dim"])
    backward = case["direction"] == "bwd"
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
    kernel = SDPBackend.FLASH_ATTENTION if case["op"] == "flash_attention_2" else SDPBackend.CUDNN_ATTENTION

    def forward() -> Any:
        with sdpa_kernel(kernel):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    if not backward:
        return forward
    out = forward()
    upstream = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True)


def _seconds(call: Callable[[], Any], here: Here) -> float:
    """The median of a few windows of calls in a row, a call; kernels are queued faster than they run."""
    if here.dry:
        start_s = perf_counter()
        call()
        return perf_counter() - start_s
    import torch

    def window(times: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * MS / times

    window(3)
    times = max(3, int(WINDOW_S / window(3)))
    return median(window(times) for _ in range(ROUNDS))


def rows(here: Here) -> Iterator[Row]:
    """How far the shipped profile of the device is off, by kind of kernel."""
    from simpar.hardware.catalogue import load_cluster
    from simpar.validation.kernels import LAUNCH_BOUND_S, kernel, times_s

    path = here.folder / FILE
    if not path.exists() or here.shipped is None:
        return
    device = load_cluster(here.shipped).device
    with path.open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    for kind in dict.fromkeys(_kind(each) for each in table):
        of_kind = [each for each in table if _kind(each) == kind]
        long = [kernel(each) for each in of_kind if float(each["time_us"]) * US >= LAUNCH_BOUND_S]
        if not long:
            continue
        errors = times_s(device, long) / np.array([each.time_s for each in long]) - 1
        p90, bias = np.quantile(abs(errors), 0.9), np.median(errors)
        note = f"{len(long)} shapes of {len(of_kind)}, p90 {p90:.1%}, bias {bias:+.1%}"
        yield Row("shapes", kind, error=float(np.median(abs(errors))), unit="", note=note)


def _kind(row: dict[str, str]) -> str:
    return f"{row['op']} {row['dtype']} {row['layout'] or row['direction']}"

"""Step times from published rates, if a row has nothing better; they depend on what the source counts as FLOP."""

from __future__ import annotations

from dataclasses import replace

from simpar.architectures.flops import hardware_flop_per_token, model_flop_per_token
from simpar.cost.kernels import KernelModel
from simpar.units import TERA
from simpar.validation.cells import Row, measurement, read_word
from simpar.validation.predict import cluster_of
from simpar.validation.rows import Case, Measurements

COUNTS = ("model", "causal", "hardware")


def has_rate(row: Row) -> bool:
    """Whether a row gives tokens per second, FLOP/s or a share of the peak."""
    return any(measurement(row, name) for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"))


def with_rates(found: Measurements, row: Row, case: Case) -> Measurements:
    """The measurements with the step time that a row's rate implies, and that of another tool's predicted rate."""
    tokens = measurement(row, "tokens_per_s_per_gpu")
    if tokens:
        return replace(found, step_time_s=case.training.tokens_per_step / case.num_devices / tokens)
    rate = (measurement(row, "tflops_per_gpu") or 0.0) * TERA or (
        measurement(row, "mfu_pct") or 0.0
    ) / 100 * peak_flop_per_s(case)
    flop = _flop_per_token(row, case) * case.training.tokens_per_step / case.num_devices
    peer = measurement(row, "peer_pred_tflops_per_gpu")
    return replace(found, step_time_s=flop / rate, peer_step_time_s=flop / (peer * TERA) if peer else None)


def peak_flop_per_s(case: Case) -> float:
    """The dense peak of one device at the precision of a case."""
    precision = str(case.plan["precision"])
    return KernelModel(cluster_of(case).device).peak("bf16" if precision == "fp16" else precision)


def _flop_per_token(row: Row, case: Case) -> float:
    counts = read_word(row, "flop_count", {name: name for name in COUNTS}, "model")
    if counts == "hardware":
        return hardware_flop_per_token(case.graph, case.training.seq_len, str(case.plan["recompute"]))
    convention = "causal" if counts == "causal" else "full"
    return model_flop_per_token(case.graph, case.training.seq_len, convention)

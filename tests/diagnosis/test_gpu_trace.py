"""A step of ``simpar run`` on one H200, as torch's profiler saw it: a decoder of two layers, hidden 8,192.

Of each event only what tells when and where it ran is kept.
"""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from simpar.diagnosis.answer import explain
from simpar.scenario import Scenario

HERE = Path(__file__).parents[2] / "benchmarks/measured/h200/here.yaml"
TRACE = Path(__file__).parent / "traces/h200-llama.json.gz"
CLASS_OF_OPERATOR = {
    "aten::mm": "gemm", "aten::_cudnn_attention_forward": "attention", "aten::_cudnn_attention_backward": "attention",
    "aten::_fused_adamw_": "optimizer", "aten::_fused_rms_norm": "norm", "aten::_fused_rms_norm_backward": "norm",
    "aten::_log_softmax": "loss", "aten::_log_softmax_backward_data": "loss", "aten::nll_loss_forward": "loss",
    "aten::nll_loss_backward": "loss",
}  # fmt: skip


@pytest.fixture(scope="module")
def events():
    """What the trace has."""
    with gzip.open(TRACE) as stream:
        return json.load(stream)["traceEvents"]


@pytest.fixture(scope="module")
def found():
    """The trace explained."""
    return explain(TRACE).measured


def by_operator(events):
    """Seconds of kernels by the innermost operator that launched them."""
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    seconds = Counter()
    for event in events:
        if event.get("cat") != "kernel":
            continue
        launch = launches[event["args"]["correlation"]]
        around = [
            each
            for each in operators
            if each["tid"] == launch["tid"] and each["ts"] <= launch["ts"] <= each["ts"] + each["dur"]
        ]
        innermost = max(around, key=lambda each: each["ts"])["name"] if around else ""
        seconds[innermost] += event["dur"] * 1e-6
    return seconds


def test_classes_are_those_of_the_operators_that_launched_the_kernels(events, found):
    """Names of CUDA's kernels tell what they are, within 1 %."""
    (rank,) = found.ranks
    wanted = Counter()
    for operator, seconds in by_operator(events).items():
        wanted[CLASS_OF_OPERATOR.get(operator, "")] += seconds
    assert wanted["gemm"] > 0.7 * (sum(wanted.values()) - wanted["optimizer"])
    for name in set(CLASS_OF_OPERATOR.values()):
        assert rank.classes_s[name] == pytest.approx(wanted[name], rel=0.01), name
    assert sum(rank.unknown_s.values()) == 0


def test_its_parts_are_the_step(found):
    """Compute, optimizer, host and copies add up to the step; a device that is never short of work waits 2 %."""
    (rank,) = found.ranks
    assert sum(rank.causes_s.values()) == pytest.approx(rank.step_time_s)
    busy = sum(rank.classes_s.values())
    assert 0.97 * rank.step_time_s < busy <= rank.step_time_s


def test_sums_of_gradients_are_set_against_their_own_kernels():
    """On the profile of that machine: a tenth of the step are copies and additions behind products, not products."""
    model = {
        "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 2, "num_attention_heads": 64,
        "num_key_value_heads": 16, "intermediate_size": 22528, "vocab_size": 32768, "max_position_embeddings": 65536,
    }  # fmt: skip
    scenario = Scenario.model_validate({
        "model": model, "cluster": {"hardware": str(HERE)}, "training": {"seq_len": 4096, "global_batch": 2},
        "plan": {"micro_batch": 1, "stack": "simpar"},
    })  # fmt: skip
    found = explain(TRACE, plan=scenario, changes=False)
    measured_s = found.measured.mean_s("classes_s")
    for name, closely in (("gemm", 0.15), ("elementwise", 0.25), ("copy", 0.4)):
        assert found.against.classes_s[name] == pytest.approx(measured_s[name], rel=closely), name

"""How sure a result is: intervals around its figures, kept in its JSON, said in its report."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import cache
from math import exp, hypot, log

import pytest
from rich.console import Console

import simpar
from simpar.report.certainty import step_time_error
from simpar.report.result import Result
from simpar.report.terminal import print_report
from simpar.report.words import describe_certainty, memory_state, probably
from simpar.scenario import load_scenario
from simpar.uncertainty.support import Traits
from simpar.units import number_of


@cache
def _result(stack: str, **plan: object) -> Result:
    return simpar.simulate(
        "llama-3-8b",
        simpar.Cluster("dgx-h100", nodes=1),
        simpar.Plan.model_validate({"tp": 2, "micro_batch": 1, **plan}),
        simpar.Training(seq_len=4096, global_batch=32),
        stack=stack,
    )


def test_the_interval_holds_the_prediction_and_survives_the_file() -> None:
    """Central values lie inside, and JSON gives back what was written under the promised keys."""
    result = _result("nemo")
    known = result.certainty
    assert known is not None
    assert known.step_time_interval_s[0] < result.step_time_s < known.step_time_interval_s[1]
    low, high = known.reserved_memory_interval_bytes
    assert low < result.memory.peak_reserved_bytes < high
    data = json.loads(result.to_json())
    assert data["step_time_interval_s"] == list(known.step_time_interval_s)
    assert "certainty" not in data["why"]
    assert Result.from_dict(data).certainty == known


def test_a_stack_that_nobody_measured_is_wider_and_says_so() -> None:
    """Of the same layout the interval is wider under a stack without runs."""
    known, unknown = _result("nemo"), _result("torchtune")
    widths = []
    for result in (known, unknown):
        assert result.certainty is not None
        low, high = result.certainty.step_time_interval_s
        widths.append((high - low) / result.step_time_s)
    assert widths[0] < widths[1]
    assert unknown.certainty is not None
    assert "no measured run of stack torchtune" in unknown.certainty.unsupported


def _over(network: str, nodes: int = 2, **plan: object) -> tuple[float, float, Result]:
    """(Low, high) ends of the interval over the step, of 8B on nodes of A100 that a network joins, and the result."""
    result = simpar.simulate(
        "llama-3-8b",
        simpar.Cluster(f"dgx-a100-80gb over {network}", nodes=nodes),
        simpar.Plan.model_validate({"micro_batch": 1, **plan}),
        simpar.Training(seq_len=4096, global_batch=32),
    )
    assert result.certainty is not None
    low, high = result.certainty.step_time_interval_s
    return low / result.step_time_s, high / result.step_time_s, result


def _on(cluster: str, **plan: object) -> Result:
    """8B on one node of a cluster, and its interval."""
    fields = {"micro_batch": 1, "zero": 3, **plan}
    training = simpar.Training(seq_len=4096, global_batch=32)
    return simpar.simulate("llama-3-8b", cluster, simpar.Plan.model_validate(fields), training, with_timeline=False)


def test_kernels_of_a_device_without_runs_may_take_what_other_devices_differ_by() -> None:
    """A clock known by a data sheet alone makes a step less sure by its kernels' share, the same in all layouts."""
    result, known = _on("tpu-v7x-pod"), _on("hgx-b200").certainty
    told, parts, step_s = result.certainty, result.time_breakdown_s, result.step_time_s
    assert known
    assert told
    assert not any("time of kernels" in words for words in known.unsupported)
    assert "time of kernels on device tpu-v7x is uncertain by a factor of 0.73 to 1.4" in told.unsupported
    share = (parts.compute + parts.optimizer + parts.bubble + parts.waiting) / step_s
    slower = 1 + share * (exp(1.645 * hypot(0.1, 0.07, 0.15)) - 1)  # generation, clock, shares of peak
    alone = step_time_error(Traits("megatron", "tpu-v7x"), step_s)
    assert told.step_time_interval_s[1] / step_s == pytest.approx(exp(hypot(alone.high, log(slower))), rel=1e-3)
    assert told.step_time_interval_s[0] < alone.interval_s(step_s)[0]
    assert told.layout_spread == alone.layout
    kin = _on("rtx-5090-8").certainty  # shares of peak of its kin: its generation and its clock alone are open
    assert kin
    assert "time of kernels on device rtx-5090 is uncertain by a factor of 0.82 to 1.2" in kin.unsupported


def test_a_network_that_no_run_tells_makes_a_step_less_sure() -> None:
    """By what it is of the step: ZeRO-3's gathers are most of it over TCP; within a node nothing is."""
    known, told, alone = _over("25 Gb/s roce", zero=3), _over("25 Gb/s ethernet", zero=3), _over("25 Gb/s ethernet", 1)
    assert known[2].time_breakdown_s.exposed_dp > 0.8 * known[2].step_time_s
    assert known[1] < 1.5
    assert alone[1] < 1.5
    assert told[1] > 2.0
    assert told[0] > 0.8  # it cannot be faster than the threads of its sockets or its wires
    (unsupported,) = (words for words in told[2].certainty.unsupported if "TCP" in words)  # type: ignore[union-attr]
    assert "uncertain by a factor of" in unsupported


def test_only_communication_between_nodes_rests_on_their_network() -> None:
    """Tensor-parallel collectives within a node do not, however much of the step they are exposed."""
    inside, across = _over("25 Gb/s ethernet", tp=8, pp=2), _over("25 Gb/s ethernet", tp=16)
    parts = inside[2].time_breakdown_s
    assert parts.exposed_tp > 3 * parts.exposed_pp
    assert parts.exposed_tp > 0.1 * inside[2].step_time_s
    assert inside[1] < 1.5
    assert across[1] > 2.0


def test_a_layout_that_barely_fits_is_not_sure_to() -> None:
    """Memory far below the device is sure, far above it is not, and the verdict agrees where it is clear."""
    roomy, full = _result("nemo", recompute="full"), _result("nemo", micro_batch=8)
    assert roomy.certainty is not None
    assert full.certainty is not None
    assert roomy.fits
    assert roomy.certainty.fit_probability > 0.95
    assert not full.fits
    low, high = full.certainty.reserved_memory_interval_bytes
    assert low < full.memory.peak_reserved_bytes < high  # on a device with room for it
    tight = _result("nemo")
    assert tight.fits
    assert tight.certainty is not None
    assert tight.certainty.reserved_memory_interval_bytes[1] <= tight.memory.capacity_bytes
    assert full.certainty.fit_probability < 0.5


def test_the_report_says_it_in_words() -> None:
    """The headline figures carry the interval and the probability."""
    out = io.StringIO()
    print_report(_result("deepspeed"), Console(file=out, width=200))
    text = out.getvalue()
    assert "(90 % interval " in text
    assert "% sure" in text
    assert "no measured run of stack deepspeed" in text


def test_words_never_claim_more_than_the_number() -> None:
    """Nothing is 100 % sure."""
    assert probably(0.99999) == "over 99 % sure"
    assert probably(0.001) == "less than 1 % sure"
    assert probably(0.614) == "61 % sure"


def test_causes_of_what_must_stay_free_are_told_and_kept() -> None:
    """A mixture names its experts, in words and in JSON; a dense model does not."""
    dense = _result("nemo")
    mixture = simpar.simulate(
        "mixtral-8x7b",
        simpar.Cluster("dgx-h100", nodes=2),
        simpar.Plan(ep=8, micro_batch=1, zero=1),
        simpar.Training(seq_len=4096, global_batch=32),
        stack="nemo",
    )
    for result in (dense, mixture):
        assert result.certainty is not None
        causes = result.certainty.fit_causes
        assert sum(causes.values()) == pytest.approx(1.0)
        assert ("experts" in causes) == (result is mixture)
        assert json.loads(result.to_json())["fit_causes"] == causes
        told = describe_certainty(result)[-1]
        assert told.startswith("memory margin for 95 %: ")
        assert ("uneven experts" in told) == (result is mixture)
        assert f"{100 * causes['stack']:.0f} % memory of the framework that is not modelled" in told


def test_the_sources_of_the_runs_behind_an_answer_are_named() -> None:
    """As the page of validation lists them, three at most; files that were written before have none."""
    result = simpar.simulate(**load_scenario("gpt3-175b-64-a100").inputs(), with_timeline=False)
    assert result.certainty is not None
    sources = result.certainty.support_sources
    assert 3 < len(sources) <= result.certainty.support
    (said,) = [line for line in describe_certainty(result) if line.startswith("measured runs stand behind this answer")]
    assert f"({', '.join(sources[:3])} and {number_of(len(sources) - 3, 'more source')})" in said
    data = json.loads(result.to_json())
    assert data.pop("support_sources") == [*sources]
    read = Result.from_dict(data)
    assert read.certainty is not None
    assert read.certainty.support_sources == ()


def test_files_that_do_not_say_causes_are_read() -> None:
    """A result written before causes were told has none, and its report no line of them."""
    data = json.loads(_result("nemo").to_json())
    del data["fit_causes"]
    read = Result.from_dict(data)
    assert read.certainty is not None
    assert read.certainty.fit_causes == {}
    assert not any("stay free" in line for line in describe_certainty(read))


def test_what_is_more_likely_to_fit_than_not_is_at_the_limit() -> None:
    """No report says of one step that it does not fit and that it probably does."""
    result = _result("deepspeed")
    memory = result.memory.model_copy(
        update={"peak_reserved_bytes": 1.01 * result.memory.capacity_bytes, "fits": False}
    )
    assert result.certainty is not None
    for probability, state in ((0.53, "is at the limit: "), (0.47, "DOES NOT FIT: ")):
        certainty = result.certainty.model_copy(update={"fit_probability": probability})
        why = result.why.model_copy(update={"certainty": certainty})
        said = memory_state(replace(result, memory=memory, why=why))
        assert said.startswith(state)
        assert said.endswith(f", {100 * probability:.0f} % sure to fit")

"""The report for people."""

import io

import pytest
from rich.console import Console

import simpar
from simpar.report.explain import add_explanation
from simpar.report.notebook import to_html
from simpar.report.result import Result
from simpar.report.terminal import compare_published, memory_rows, print_report, shorten_rows
from simpar.report.words import assumptions, figures, headline
from simpar.scenario import Published, load_scenario
from simpar.simulation import simulate
from tests.gate import some


def printed(result: Result, *, terminal: bool, width: int = 200) -> str:
    """The report as text."""
    stream = io.StringIO()
    print_report(result, Console(file=stream, force_terminal=terminal, highlight=False, width=width))
    return stream.getvalue()


def test_piped_reports_are_plain_text(result):
    """No box characters, bars or escape codes where nobody looks."""
    text = printed(add_explanation(result), terminal=False)
    assert not set(text) & set("│─━┃█\x1b")


def test_no_color_is_honoured(result, monkeypatch):
    """With NO_COLOR a terminal report has no colour codes."""
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in printed(result, terminal=True)


def test_the_headline_names_model_cluster_and_layout(result):
    """One line: what, where, how."""
    assert headline(result) == ("gpt3-175b (175 B) on 4 x dgx-h100 (32 H100): tp8 pp4, 1f1b, micro-batch 2, bf16")


def test_a_report_fits_eighty_columns(result):
    """Tables are not cut off on a narrow terminal."""
    text = printed(add_explanation(result), terminal=True, width=80)
    assert "…" not in text
    assert "peak" in text


def test_every_part_above_zero_is_listed(result):
    """The breakdown names each part with its share, and the sum."""
    text = printed(result, terminal=False)
    for name in ("compute", "exposed pp", "exposed dp", "bubble", "optimizer", "step"):
        assert name in text
    assert "exposed ep" not in text


def test_each_bubble_says_of_what_it_is_a_share():
    """The headline's is a mean over ranks of the window of passes, the breakdown's the critical rank's of the step."""
    found = simulate(**load_scenario("gpt3-175b-64-a100").inputs())
    of_step = found.time_breakdown_s.bubble / found.step_time_s
    assert f"{found.bubble_fraction:.1%}" != f"{of_step:.1%}"
    text = printed(found, terminal=False)
    assert f"{found.bubble_fraction:.1%} (mean over ranks, from first to last pass)" in text
    table = text[text.index("(rank that waits least)") :]
    assert "of the step" in table.splitlines()[1]
    row = next(line for line in table.splitlines() if line.startswith("bubble"))
    assert row.split()[-1] == f"{of_step:.1%}"


def test_a_published_figure_stands_beside_the_prediction(result):
    """Each published number with ours, the difference in percent, and the source."""
    beside = result.with_published(Published(source="a paper", step_time_s=result.step_time_s / 1.1, mfu=0.41))
    assert [name for name, _, _ in compare_published(beside)] == ["step time, s", "MFU, %"]
    text = printed(beside, terminal=False)
    assert "(+10.0%)" in text
    assert "source: a paper" in text


def test_stages_that_read_alike_share_a_row(result):
    """Equal neighbours are merged, and very long tables are shortened in the middle."""
    first = result.memory.stages[0]
    stages = [first.model_copy(update={"stage": index}) for index in range(5)]
    assert [name for name, _ in memory_rows(stages)] == ["0-4"]
    different = [first.model_copy(update={"stage": i, "activations_bytes": i * 1e10}) for i in range(40)]
    rows = shorten_rows(memory_rows(different))
    assert len(rows) == 12
    assert rows[0][0] == "0"
    assert rows[-1][0] == "39"


def test_html_is_escaped_and_complete(result):
    """The notebook form carries the figures and escapes names."""
    text = to_html(result)
    assert "step time" in text
    assert "<script" not in to_html(
        Result(**{**result.__dict__, "setup": result.setup.model_copy(update={"model": {"name": "<script>"}})})
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_layout_that_does_not_fit_is_shouted(result, terminal):
    """The memory line says so in capitals."""
    memory = result.memory.model_copy(update={"fits": False, "capacity_bytes": 1e9})
    assert "DOES NOT FIT" in printed(Result(**{**result.__dict__, "memory": memory}), terminal=terminal)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"kind": "single_process"}, "dp8, micro-batch 1 x 2, bf16, one process for all devices, megatron stack"),
        ({"zero": 3, "hsdp": 2}, "dp8, micro-batch 1 x 2, ZeRO-3, bf16, HSDP of 2 replicas, megatron stack"),
        ({"tp": 4, "sync": "diloco"}, "tp4 dp2, micro-batch 1 x 8, bf16, diloco, megatron stack"),
        ({"lora_rank": 8, "frozen_dtype": "nf4"}, "dp8, micro-batch 1 x 2, LoRA 8 on nf4, bf16, huggingface stack"),
        ({"frozen_layers": 1}, "dp8, micro-batch 1 x 2, 1 frozen layer, bf16, megatron stack"),
    ],
)
def test_the_first_line_says_what_decides(plan, words):
    """Replicas of sharded states, replicas that do not sum in every step, and what is trained."""
    training = simpar.Training(seq_len=512, global_batch=16)
    result = simpar.simulate("llama-3.2-1b", simpar.Cluster("dgx-h100"), {**plan, "micro_batch": 1}, training)
    assert headline(result).endswith(f": {words}")


def test_prices_accumulation_and_masked_pairs_are_said():
    """What decides a figure stands beside it."""
    training = simpar.Training(seq_len=131072, global_batch=16, tokens=10**12)
    cluster = simpar.Cluster("dgx-h100", nodes=1)
    result = simpar.simulate("llama-3-8b", cluster, simpar.Plan(cp=8, recompute="full"), training)
    assert result.setup.num_microbatches == 16
    assert "micro-batch 1 x 16" in headline(result)
    rows = dict(figures(result))
    assert "(2.90 USD per device and hour)" in rows["cost per step"]
    assert "at 2.90 USD per GPU-hour (--price-per-gpu-hour sets another)" in rows["dollars"]
    assert result.bill.usd_per_device_hour == pytest.approx(2.90)
    causal = simpar.simulate(
        "llama-3-8b", cluster, simpar.Plan(cp=8, recompute="full"), training, flops_convention="causal"
    )
    assert f"full, with masked pairs: {causal.mfu:.1%} without" in rows["MFU / HFU"]
    assert "without" not in dict(figures(causal))["MFU / HFU"]


@pytest.mark.parametrize(
    ("hardware", "precision"),
    some([("dgx-v100", "fp16"), ("dgx-h100", "bf16"), ("t4-4", "fp16")], [("dgx-v100", "fp16")], tuples=True),
)
def test_devices_without_units_for_bf16_compute_in_fp16(hardware, precision):
    """bf16 at the fp32 rate is what nobody runs; who asks for it gets it."""
    training = {"seq_len": 1024, "global_batch": 32}
    left, stated = (simpar.simulate("gpt2", hardware, plan, training) for plan in ({}, {"precision": "bf16"}))
    assert left.setup.plan["numerics"]["precision"] == left.asked_plan.numerics.precision == precision
    assert stated.setup.plan["numerics"]["precision"] == "bf16"
    assert any("has no units for bf16" in line for line in assumptions(left)) == (precision != "bf16")
    assert assumptions(stated) == []


def test_four_lines_lead(result):
    """Fits, speed, limit and what to do stand right below the first line; tables follow."""
    said = add_explanation(result)
    lines = [line for line in printed(said, terminal=False).splitlines() if line.strip()]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["memory", "speed", "limit", "to do"]
    assert "fits: " in lines[1]
    assert " tokens/s, MFU " in lines[2]
    assert lines[3].removeprefix("limit").strip() == said.why.binds[0]
    assert "--advise" in lines[4]
    hinted = Result(**{**said.__dict__, "why": said.why.model_copy(update={"hints": ("use ZeRO-3",)})})
    assert "to do   use ZeRO-3" in printed(hinted, terminal=False)
    full = Result(**{**said.__dict__, "memory": said.memory.model_copy(update={"fits": False})})
    assert "to do   --advise says which layouts near it fit, simpar search " in printed(full, terminal=False)


def test_the_answer_leads_and_details_follow_below_a_rule(result):
    """Name, what is assumed, four lines of answer, the rule, and then everything else."""
    before, after = printed(add_explanation(result), terminal=False).split("--- details ---\n")
    assert [line.split()[0] for line in before.split("\n\n")[1].splitlines()] == ["memory", "speed", "limit", "to"]
    assert after.startswith("step time ")

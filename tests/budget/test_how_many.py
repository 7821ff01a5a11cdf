"""How many devices: against every plan simulated by the public API, and the answer's own logic on made-up rows."""

import json
from itertools import product

import pytest

import simpar
from simpar.budget.answer import HowMany, how_many
from simpar.budget.nodes import Row, halves
from simpar.budget.summary import summary
from simpar.budget.wanted import Wanted
from simpar.cli import run
from simpar.errors import UserError
from simpar.hardware.price import set_price
from simpar.planner.problem import Constraints, make_problem
from simpar.report.bill import Amount, WholeRun

COUNTS = [1, 2]
AXES = {"tp": [1, 2], "pp": [1, 2], "micro_batch": [1, 2], "zero": [1]}
HELD = {"schedule": "1f1b", "sequence_parallel": False, "overlap_grad_reduce": True}
ONE = {"cp": 1, "ep": 1, "vpp": 1, "hsdp": 1, "recompute": "none", "tp_overlap": False, "overlap_param_gather": True}
SMALL = ["search", "--model", "gpt2", "--hardware", "dgx-h100", "--seq-len", "1024", "--global-batch", "32", "--tokens",
         "10B", "--nodes", "2", "--zero", "1", "--tp", "1", "--pp", "1", "--cp", "1"]  # fmt: skip


@pytest.fixture(scope="module")
def problem():
    """A small model on up to two nodes, in a space of 8 plans each."""
    fixed = {**AXES, **HELD, **ONE, "order": "tp-cp-dp-pp"}
    return make_problem(
        simpar.Model("gpt2"),
        set_price(simpar.Cluster("dgx-h100", nodes=2), 2.5),
        simpar.Training(seq_len=1024, global_batch=32, tokens="10B"),
        stack="megatron",
        constraints=Constraints(fixed=fixed, portable="any"),
    )


@pytest.fixture(scope="module")
def found(problem):
    """The answer without limits."""
    return how_many(problem, Wanted("dollars"), node_counts=COUNTS)


def simulated(problem, nodes):
    """Days and dollars of every plan of the space on some nodes that fits as surely as a search wants."""
    cluster = set_price(simpar.Cluster("dgx-h100", nodes=nodes), 2.5)
    for values in product(*AXES.values()):
        choice = dict(zip(AXES, values, strict=True))
        plan = simpar.Plan(stack="megatron", **choice, **HELD)
        try:
            result = simpar.simulate(problem.graph, cluster, plan, problem.training, with_timeline=False)
        except (UserError, ValueError):
            continue
        if result.fits and result.certainty.fit_probability >= 0.95:
            yield result.whole_run.days.value, result.whole_run.cost_usd.value


def test_every_row_is_the_best_of_all_plans(problem, found):
    """On each number of nodes no plan takes less days or dollars; so the chosen rows are the best of all."""
    best = {nodes: list(simulated(problem, nodes)) for nodes in COUNTS}
    assert found.is_certified
    for row in found.rows:
        assert len(best[row.nodes]) > 4
        assert row.days == pytest.approx(min(days for days, _ in best[row.nodes]), rel=1e-9)
        assert row.dollars == pytest.approx(min(usd for _, usd in best[row.nodes]), rel=1e-9)
    assert found.chosen.dollars == pytest.approx(min(usd for plans in best.values() for _, usd in plans), rel=1e-9)
    deadline = sorted(row.days for row in found.rows)[1]
    in_time = HowMany(Wanted("dollars", deadline_days=deadline), found.rows)
    every = [usd for plans in best.values() for days, usd in plans if days <= deadline * (1 + 1e-9)]
    assert in_time.chosen.dollars == pytest.approx(min(every), rel=1e-9)
    assert found.to_dict()["rows"][0]["nodes"] == 1
    frame = found.to_frame()
    assert list(frame.index) == COUNTS
    assert frame.loc[2, "cost_usd"] == found.rows[1].dollars
    assert (frame["days_low"] < frame["days"]).all()


def made_up(nodes, days, dollars):
    """A row with an interval of a tenth on both sides."""

    def between(value):
        return Amount(value=value, low=0.9 * value, high=1.1 * value)

    total = WholeRun(tokens=1, steps=1, days=between(days), device_hours=between(1.0), cost_usd=between(dollars))
    return Row(nodes, 8 * nodes, run=total, is_certified=True)


ROWS = (made_up(1, 100.0, 10.0), made_up(2, 55.0, 11.0), made_up(4, 30.0, 12.0), made_up(8, 29.0, 20.0),
        made_up(16, 40.0, 30.0), Row(32, 256, reason="nothing fits"))  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "chosen", "surely"),
    [
        (Wanted("dollars"), 1, 1),
        (Wanted("days"), 8, 8),
        (Wanted("dollars", deadline_days=60.0), 2, 4),
        (Wanted("days", budget_usd=12.5), 4, 2),
        (Wanted("dollars", deadline_days=60.0, budget_usd=11.5), 2, None),
        (Wanted("days", deadline_days=20.0), None, None),
    ],
)
def test_choice(wanted, chosen, surely):
    """The best that keeps the limits as predicted, and at the high ends of the intervals."""
    found = HowMany(wanted, ROWS)
    assert (found.chosen and found.chosen.nodes) == chosen
    assert (found.surely and found.surely.nodes) == surely
    assert [row.nodes for row in found.front] == [8, 4, 2, 1]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted("dollars", deadline_days=20.0), "the quickest takes 29 days on 8 nodes: try --deadline 29d"),
        (Wanted("days", budget_usd=5.0), "the cheapest costs 10.0 dollars on 1 node: try --budget 10"),
        (Wanted("days", deadline_days=40.0, budget_usd=11.0), "the cheapest by the deadline costs 12.0 dollars"),
        (Wanted("days", deadline_days=40.0, budget_usd=11.0), "the quickest within the budget takes 55 days"),
    ],
)
def test_what_would_be_needed(wanted, told):
    """Where no row keeps the limits the nearest of each is said; with it there is one."""
    found = HowMany(wanted, ROWS)
    assert found.chosen is None
    assert told in found.needed()


def test_more_nodes_where_the_most_were_too_slow():
    """29 days on 8 nodes are for 10 days a matter of four times as many, unless dollars or larger numbers say no."""
    rows = ROWS[:4]
    said = HowMany(Wanted("dollars", deadline_days=10.0), rows).needed()
    assert said.startswith("none of 1, 2, 4, 8 nodes keeps to 10 days; ")
    assert said.endswith("try --deadline 29d or more nodes: --nodes 32")
    one = HowMany(Wanted("days", deadline_days=60.0, budget_usd=2e6), ROWS[:1]).needed()
    assert one.startswith("1 node cannot keep to 60 days and 2.00 M dollars; ")
    assert one.endswith("or more nodes: --nodes 2")
    for other in (Wanted("days", deadline_days=10.0, budget_usd=11.0), Wanted("days", budget_usd=5.0)):
        assert "more nodes" not in HowMany(other, rows).needed()
    assert "more nodes" not in HowMany(Wanted("days", deadline_days=10.0), ROWS).needed()


def test_halves():
    """As other objectives over numbers of nodes have them."""
    assert halves(12) == [3, 6, 12]
    assert halves(7) == [7]


def test_limits_are_read():
    """As people write them; others are refused."""
    assert Wanted.of("days", "60d", "$2M") == Wanted("days", 60.0, 2e6)
    assert Wanted.of("dollars", "36 h", "1.5e5") == Wanted("dollars", 1.5, 150000.0)
    for deadline, budget in (("60", None), ("x", None), (None, "cheap"), (None, "0")):
        with pytest.raises(UserError, match=r"deadline|budget"):
            Wanted.of("days", deadline, budget)
    with pytest.raises(UserError, match="objective"):
        Wanted("speed")


def test_the_command(capsys, tmp_path):
    """The answer, its table and the plan; exit code 3 with what would be needed; bad input."""
    plan = tmp_path / "plan.json"
    table = tmp_path / "days.csv"
    saved = tmp_path / "days.json"
    wanted = ["--objective", "dollars", "--deadline", "10d"]
    assert run([*SMALL, *wanted, "-o", str(plan), "--csv", str(table), "--json", str(saved)]) == 0
    said = capsys.readouterr().out
    head, *rows = table.read_text().splitlines()
    assert head.startswith("nodes,devices,")
    assert "days_low" in head
    assert [row.split(",")[0] for row in rows] == ["1", "2"]
    assert "certified: on none of 1, 2 nodes" in said
    assert "assumed: megatron stack (--stack sets another)" in said
    assert "price: 2.90 USD per GPU-hour (--price-per-gpu-hour sets another)" in said
    assert simpar.Plan.load(plan).world_size == 8
    assert run([*SMALL, "--objective", "days", "--over", "nodes=1,2", "--budget", "1", "--json", "-"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["chosen"], [row["nodes"] for row in found["rows"]]) == (None, [1, 2])
    _on_one_page(saved, capsys)
    laptop = ["search", "--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8",
              "--tokens", "1B", "--tp", "1", "--pp", "1", "--cp", "1", "--objective"]  # fmt: skip
    assert run([*laptop, "days"]) == 0
    assert "at no known price" in capsys.readouterr().out
    assert run([*laptop, "dollars"]) == 2
    assert "no price" in capsys.readouterr().err
    for more, told in (
        (["--objective", "days", "--over", "tp=1,2"], "nodes=8,16,32"),
        (["--objective", "days", "--deadline", "60"], "--deadline 60"),
        (["--objective", "time", "--budget", "2M"], "--budget"),
        (["--objective", "speed"], "dollars"),
    ):
        assert run([*SMALL, *more]) == 2
        assert told in capsys.readouterr().err


def _on_one_page(saved, capsys):
    """A saved answer is read back whole, and its page answers five questions."""
    page = saved.with_name("why.html")
    found = HowMany.load(saved)
    assert found.to_dict() == json.loads(saved.read_text())
    assert run(["report", str(saved), "--summary", "-o", str(page)]) == 0
    titles = ["What was asked", "What was chosen", "By how much", "How sure", "What would change it"]
    assert [section["title"] for section in summary(found)] == titles
    assert all(section["lines"] for section in summary(found))
    text = page.read_text()
    assert f"{found.chosen.devices:,} GPUs" in text
    assert "dollars: " in text
    other = saved.with_name("plan.json")
    assert run(["report", str(other), "--summary", "-o", str(page)]) == 2
    assert "has no search_schema_version" in capsys.readouterr().err

"""What simpar wrote can be handed back to it: results and searches as scenarios, of any size."""

import json

import pytest

from simpar import cli

SMALL = ["--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """What a saved result with slow ranks says."""
    path, slow = tmp_path_factory.mktemp("saved") / "result.json", "perturbation.slow_ranks.1=1.5"
    assert cli.run(["simulate", *SMALL, "--zero", "1", "--set", slow, "--json", str(path)]) == 0
    return path.read_text()


@pytest.fixture
def saved(text, tmp_path):
    """That result in a file of one's own, and what it holds."""
    path = tmp_path / "result.json"
    path.write_text(text)
    return path, json.loads(text)


def step_of(arguments, capsys):
    """Seconds of the step that a command prints as JSON."""
    assert cli.run([*arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)["step_time_s"]


def test_a_result_is_simulated_again_as_it_was(saved, capsys):
    """The plan, cluster, training and slow ranks of a result are those of the scenario that it came from."""
    path, found = saved
    assert step_of(["simulate", str(path)], capsys) == found["step_time_s"]
    assert step_of(["simulate", str(path), "--zero", "0"], capsys) != found["step_time_s"]


def test_a_result_is_exported(saved, tmp_path, capsys):
    """A result goes where its plan goes."""
    path, _ = saved
    assert cli.run(["export", str(path), "--to", "torch", "--lossy", "-o", str(tmp_path / "out")]) == 0
    assert "wrote" in capsys.readouterr().out


def test_a_search_is_simulated_by_its_best_plan(tmp_path, capsys):
    """The first candidate of a saved search takes the step that the search printed."""
    path = tmp_path / "search.json"
    few = ["--model", "tiny-llama", "--schedules", "1f1b", "--recompute", "none", "--micro-batch", "1"]
    assert cli.run(["search", *SMALL, *few, "--json", str(path)]) == 0
    capsys.readouterr()
    best = json.loads(path.read_text())["candidates"][0]
    assert step_of(["simulate", str(path)], capsys) == best["step_time_s"]


def test_results_of_any_size_are_compared(saved, capsys):
    """The timeline of a large job passes what a scenario may weigh."""
    path, _ = saved
    path.write_text(path.read_text() + " " * 10**7)
    assert cli.run(["compare", str(path), str(path)]) == 0
    assert cli.run(["simulate", str(path)]) == 0
    said = capsys.readouterr().out
    assert "asked: the same" in said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ('{"a": "NaN",\n"step_time_s": NaN}', "r.json:2: NaN: numbers must be finite"),
        ("", "is empty"),
        ("model: gpt2", "wants what `simpar simulate --json` wrote"),
        ("[]", "a result is a JSON object"),
        ("{}", "training.global_batch missing"),
    ],
)
def test_what_is_no_result_is_one_line(wrong, message, tmp_path, capsys):
    """Plot and report say the same of the same file, with its name."""
    path = tmp_path / "r.json"
    path.write_text(wrong)
    for command in ("plot", "report"):
        assert cli.run([command, str(path), "-o", str(tmp_path / "x.svg")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert message in said
        assert "r.json" in said


def test_figures_compared_read_as_in_a_report(saved, capsys):
    """No exponents and no bare bytes: every figure has the words and units of the report of one result."""
    path, _ = saved
    assert cli.run(["compare", str(path), "llama-3-8b-8-h100"]) == 0
    said = capsys.readouterr().out
    assert "e+" not in said
    for word in ("tokens/s per device", "model TFLOP/s per device", "8,030,261,248", " MB", "kJ"):
        assert word in said


@pytest.mark.slow
def test_an_answer_by_numbers_of_nodes_is_its_choice(tmp_path, capsys):
    """How many nodes a run needs, saved, stands for the plan that was chosen; without one that is said."""
    path = tmp_path / "days.json"
    of_run = ["search", *SMALL, "--tokens", "1M", "--objective", "days", "--json", str(path)]
    assert cli.run(of_run) == 0
    capsys.readouterr()
    (row,) = json.loads(path.read_text())["rows"]
    assert step_of(["simulate", str(path)], capsys) == row["step_time_s"]
    assert cli.run(["plot", str(path), "-o", str(tmp_path / "x.svg")]) == 0
    assert cli.run(["report", str(path), "-o", str(tmp_path / "x.html")]) == 0
    assert cli.run(["compare", str(path), str(path)]) == 0
    assert cli.run([*of_run, "--deadline", "1 s"]) == 3
    capsys.readouterr()
    assert cli.run(["simulate", str(path)]) == 2
    assert "days.json: no number of nodes meets the limits" in capsys.readouterr().err


def test_a_checked_launch_is_simulated(tmp_path, capsys):
    """What check wrote is the scenario that it simulated."""
    path = tmp_path / "checked.json"
    command = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 1 --bf16"
    arguments = ["--hardware", "dgx-h100", "--model", "gpt2", "--seq-len", "1024", "--json", str(path)]
    assert cli.run(["check", *arguments, "--", *command.split()]) == 0
    capsys.readouterr()
    assert step_of(["simulate", str(path)], capsys) == json.loads(path.read_text())["step_time_s"]


OWN = """
like: laptop-cpu-4
name: ours
device: {name: our-device, memory_bytes: 12 GiB}
scale_up: {bandwidth: 7 GB/s}
"""


@pytest.mark.slow
def test_a_cluster_of_ones_own_goes_along(tmp_path, monkeypatch, capsys):
    """Results, searches and plans of a profile's file are taken without it, to the same step; flags name another."""
    monkeypatch.chdir(tmp_path)
    profile = tmp_path / "ours.yaml"
    profile.write_text(OWN)
    own = ["--model", "gpt2", "--hardware", "ours.yaml", "--seq-len", "128", "--global-batch", "8"]
    assert cli.run(["simulate", *own, "--json", "result.json"]) == 0
    assert cli.run(["search", *own, "--json", "search.json", "-o", "plan.json"]) == 0
    capsys.readouterr()
    profile.unlink()
    steps = {
        "result.json": json.loads((tmp_path / "result.json").read_text())["step_time_s"],
        "search.json": json.loads((tmp_path / "search.json").read_text())["candidates"][0]["step_time_s"],
    }
    steps["plan.json"] = steps["search.json"]
    for name, step_time_s in steps.items():
        assert step_of(["simulate", name], capsys) == step_time_s
        assert step_of(["simulate", name, "--hardware", "laptop-cpu-4"], capsys) != step_time_s
        assert cli.run(["export", name, "--to", "torch", "--lossy", "-o", f"{name}-out"]) == 0
        assert cli.run(["report", name, "-o", "page.html"]) == 0
        capsys.readouterr()
    found = json.loads((tmp_path / "plan.json").read_text())["cluster"]["hardware"]
    assert (found["name"], found["device"]["name"]) == ("ours", "our-device")


def test_a_shipped_cluster_is_named(saved):
    """Whoever names a shipped profile keeps its name, not a copy of it."""
    _, found = saved
    assert "profile" not in found["cluster"]
    assert found["cluster"]["hardware"] == "laptop-cpu-4"


MIXED = """
model: gpt2
cluster:
  hardware:
    name: both
    groups: [{hardware: ours.yaml, nodes: 1}, {hardware: dgx-a100-80gb, nodes: 1}]
training: {seq_len: 1024, global_batch: 32}
"""


def test_own_kinds_of_nodes_in_a_mixture_go_along(tmp_path, capsys):
    """The group whose profile only a file holds is written out, the other named."""
    (tmp_path / "ours.yaml").write_text("like: dgx-h100\nname: ours\nscale_up: {bandwidth: 300 GB/s}\n")
    (tmp_path / "mixed.yaml").write_text(MIXED)
    path = tmp_path / "result.json"
    assert cli.run(["simulate", str(tmp_path / "mixed.yaml"), "--json", str(path)]) == 0
    capsys.readouterr()
    (tmp_path / "ours.yaml").unlink()
    found = json.loads(path.read_text())
    assert [group["hardware"] for group in found["cluster"]["groups"]][1] == "dgx-a100-80gb"
    assert step_of(["simulate", str(path)], capsys) == found["step_time_s"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("bandwith: 7 GB/s", "unknown key cluster.hardware.scale_up.bandwith"),
        ("bandwidth: 7", "cluster.hardware.scale_up.bandwidth = 7: needs a unit"),
    ],
)
def test_a_profile_in_a_scenario_is_read_as_strictly(tmp_path, capsys, wrong, said):
    """A line and a key; not what would be wrong with it as groups of several kinds of nodes."""
    path = tmp_path / "scenario.yaml"
    hardware = (
        f"{{name: a, device: cpu-laptop, devices_per_node: 1, "
        f"scale_up: {{kind: shared_memory, latency: 1 us, {wrong}}}, "
        "host: {memory_bytes: 1 GiB, memory_bandwidth: 1 GB/s, pcie_bandwidth: 1 GB/s}}"
    )
    path.write_text(f"model: gpt2\ncluster:\n  hardware: {hardware}\ntraining: {{seq_len: 128, global_batch: 8}}\n")
    assert cli.run(["simulate", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"scenario.yaml:3: {said}" in error
    assert "groups" not in error

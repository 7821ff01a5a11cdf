"""Scenarios: a file and flags mean the same things, and what is wrong says where and what to do."""

import json

import pytest

from simpar import files
from simpar.errors import UserError
from simpar.plan.flat import SECTION_OF
from simpar.plan.plan import Plan
from simpar.scenario import MOST_CLUSTERS, Scenario, SharedClusters, load_scenario
from simpar.simulation import simulate

FLAGS = {
    "model": "llama-3-8b",
    "cluster.hardware": "dgx-h100",
    "cluster.nodes": 2,
    "training.seq_len": 4096,
    "training.global_batch": 32,
    "plan.tp": 2,
}
SHIPPED = sorted(files.bundled("scenarios"))


@pytest.fixture
def scenario_file(tmp_path):
    """A scenario file that says the same as FLAGS."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3-8b\ncluster:\n  hardware: dgx-h100\n  nodes: 2\n"
        "training:\n  seq_len: 4096\n  global_batch: 32\nplan:\n  tp: 2\n"
    )
    return path


def test_a_file_and_flags_mean_the_same(scenario_file):
    """The same values by file or by flags give equal scenarios."""
    assert load_scenario(scenario_file) == load_scenario(None, FLAGS)


def test_flags_win_over_the_file_and_settings_over_both(scenario_file):
    """The last word counts; what is not mentioned stays."""
    loaded = load_scenario(scenario_file, {"plan.tp": 4, "plan.zero": 1}, ["plan.zero=2"])
    assert loaded.plan.mesh.tp == 4
    assert loaded.plan.data_parallel.zero == 2
    assert loaded.cluster.nodes == 2


def test_nested_and_flat_plan_keys_overwrite_each_other(scenario_file):
    """--set plan.mesh.tp beats a flat tp in the file."""
    assert load_scenario(scenario_file, {}, ["plan.mesh.tp=8"]).plan.mesh.tp == 8


def test_everything_missing_is_named_with_its_flag():
    """An empty call lists all required values at once."""
    with pytest.raises(UserError) as caught:
        load_scenario(None, {})
    for flag in ("--model", "--hardware", "--seq-len", "--global-batch"):
        assert flag in str(caught.value)


def test_errors_point_into_the_file(scenario_file):
    """The message starts with file and line, names the key and what is allowed."""
    scenario_file.write_text(scenario_file.read_text() + "  zero: 4\n")
    with pytest.raises(UserError) as caught:
        load_scenario(scenario_file)
    assert str(caught.value).startswith(f"{scenario_file}:")
    assert "zero = 4" in str(caught.value)


def test_an_unknown_key_gets_a_suggestion(scenario_file):
    """A misspelt section is not ignored."""
    scenario_file.write_text(scenario_file.read_text().replace("training:", "trainig:"))
    with pytest.raises(UserError, match=r"training"):
        load_scenario(scenario_file)


def test_an_unknown_scenario_gets_a_suggestion():
    """A near miss names the scenario that was meant."""
    with pytest.raises(UserError, match="did you mean 'gpt2-laptop'"):
        load_scenario("gpt2-laptob")


def test_a_plan_file_is_a_scenario_without_a_cluster(tmp_path):
    """What search writes, simulate reads: plan, model and shape come from it, the cluster from flags."""
    plan = Plan(tp=2, micro_batch=2, model="gpt2", training={"seq_len": 512, "global_batch": 8})
    plan.save(tmp_path / "plan.json")
    loaded = load_scenario(tmp_path / "plan.json", {"cluster.hardware": "laptop-cpu"})
    assert loaded.model == "gpt2"
    assert loaded.training.seq_len == 512
    assert loaded.plan.mesh.tp == 2


SETTLED = {"tp": 1, "dp": 8, "kind": "fsdp", "zero": 3, "sequence_parallel": False, "schedule": "1f1b"}
"""A plan as a search writes it, with all that follows from its choices on one node of eight."""


@pytest.mark.parametrize(
    ("flags", "settings", "opened"),
    [
        ({"plan.tp": 2}, (), {"dp", "sequence_parallel"}),
        ({}, ("plan.mesh.tp=2",), {"dp", "sequence_parallel"}),
        ({"plan.pp": 2}, (), {"dp", "schedule"}),
        ({"cluster.nodes": 2}, (), {"dp"}),
        ({"cluster.hardware": "laptop-cpu-4"}, (), {"dp"}),
        ({"plan.zero": 1}, (), {"kind"}),
        ({"plan.micro_batch": 2}, (), set()),
    ],
)
def test_what_follows_in_a_plan_of_a_cluster_gives_way_to_flags(tmp_path, flags, settings, opened):
    """Of a plan that was made for a cluster, ranks and all else that follows from a changed choice are decided anew."""
    shape, cluster = {"seq_len": 512, "global_batch": 8}, {"hardware": "dgx-h100", "nodes": 1}
    Plan(**SETTLED, model="gpt2", training=shape, cluster=cluster).save(tmp_path / "plan.json")
    plan = load_scenario(tmp_path / "plan.json", flags, settings).plan
    now = {name: getattr(getattr(plan, SECTION_OF[name]), name) for name in SETTLED}
    assert {name for name, value in now.items() if value is None} == opened


def test_ranks_that_are_said_stay(tmp_path):
    """A flag that sets dp is obeyed, and so is a plan of no cluster, whose dp somebody chose."""
    shape, cluster = {"seq_len": 512, "global_batch": 8}, {"hardware": "dgx-h100", "nodes": 1}
    made = Plan(dp=8, model="gpt2", training=shape, cluster=cluster)
    made.save(tmp_path / "plan.json")
    for flags, settings in (({"plan.tp": 2, "plan.dp": 2}, ()), ({"plan.tp": 2}, ("plan.mesh.dp=2",))):
        assert load_scenario(tmp_path / "plan.json", flags, settings).plan.mesh.dp == 2
    made.with_values(cluster=None).save(tmp_path / "plan.json")
    flags = {"plan.tp": 2, "cluster.hardware": "dgx-h100"}
    assert load_scenario(tmp_path / "plan.json", flags).plan.mesh.dp == 8


def test_files_named_in_a_scenario_lie_beside_it(tmp_path, scenario_file):
    """A relative config.json is looked for next to the scenario, not in the current folder."""
    scenario_file.write_text(scenario_file.read_text().replace("llama-3-8b", "config.json"))
    assert load_scenario(scenario_file).model == str(tmp_path / "config.json")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text("{}")
    scenario_file.write_text(scenario_file.read_text().replace("config.json", "own"))
    assert load_scenario(scenario_file).model == str(tmp_path / "own" / "config.json")


def test_perturbations_reach_the_program():
    """Slow ranks and jitter are handed over as the Program takes them."""
    data = FLAGS | {"perturbation.slow_ranks": {"3": 1.5}, "perturbation.jitter": {"sigma": 0.1, "seed": 7}}
    found = load_scenario(None, data).perturb()
    assert found.slow_ranks == {3: 1.5}
    assert (found.jitter_sigma, found.seed) == (0.1, 7)


def test_degraded_links_reach_the_cluster():
    """A degraded link has a share of its capacity."""
    nominal = load_scenario(None, FLAGS).build_cluster()
    degraded = load_scenario(None, FLAGS | {"perturbation.degraded_links": {"nic_tx[0]": 0.5}}).build_cluster()
    ratio = degraded.link_capacity_bytes_per_s / nominal.link_capacity_bytes_per_s
    assert sorted(set(ratio.tolist())) == [0.5, 1.0]


@pytest.mark.parametrize("factor", [0, 1.5, -1])
def test_a_degradation_is_a_share(factor):
    """Links keep more than nothing and at most everything."""
    data = FLAGS | {"perturbation.degraded_links": {"nic_tx[0]": factor}}
    with pytest.raises(UserError):
        load_scenario(None, data).build_cluster()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_scenarios_load_and_cite(name):
    """Every shipped scenario is valid, describes itself, and cites what it compares with."""
    loaded = load_scenario(name)
    assert loaded.description
    loaded.graph()
    loaded.build_cluster()
    if loaded.published is not None:
        numbers = loaded.published.model_dump(exclude={"source", "note"})
        assert any(value is not None for value in numbers.values())


def test_enough_scenarios_are_shipped():
    """At least seven, most of them beside a published figure."""
    assert len(SHIPPED) >= 7
    assert sum(load_scenario(name).published is not None for name in SHIPPED) >= 6


def test_an_inline_model_is_read_like_a_config_file():
    """The model may be a Hugging Face config inline."""
    config = {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    assert len(load_scenario(None, FLAGS | {"model": config}).graph().layers) == 2


def test_the_schema_is_json():
    """The published schema describes every section."""
    schema = json.loads(json.dumps(Scenario.model_json_schema()))
    assert {"model", "cluster", "training", "plan", "perturbation", "published"} <= set(schema["properties"])


def test_a_misspelt_section_is_said_before_what_it_leaves_missing(tmp_path):
    """The nearest name comes first, not which flags would stand in."""
    text = files.find("gpt2-laptop", "scenarios", "scenario").read_text()
    (tmp_path / "s.yaml").write_text(text.replace("training:", "trainin:"))
    with pytest.raises(UserError, match=r"^\S+:\d+: unknown key trainin; did you mean 'training'\?$"):
        load_scenario(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("hardware: dgx-h100", "cluster.hardware"),
        ("zero: 3", "plan.zero"),
        ("seq_len: 128", "training.seq_len"),
        ("days: 3", "operation.days"),
    ],
)
def test_a_key_outside_its_section_is_told_its_place(line, key, tmp_path):
    """One line that says where the key belongs, not what is missing without it."""
    (tmp_path / "s.yaml").write_text(f"model: gpt2\n{line}\n")
    with pytest.raises(UserError, match=rf"^\S+:2: unknown key \w+; did you mean {key}\?$"):
        load_scenario(tmp_path / "s.yaml")


def test_a_saved_result_is_drawn_from_its_own_seed(tmp_path):
    """Jitter comes back with its seed, and what else is drawn from one without any jitter."""
    for sigma in (0.1, 0.0):
        saved, options = (tmp_path / f"{sigma}.json", {"perturbation.jitter": {"sigma": sigma, "seed": 7, "seeds": 2}})
        first = simulate(**load_scenario("gpt2-laptop", options).inputs())
        first.save(saved)
        again = load_scenario(saved)
        assert (again.perturb().jitter_sigma, again.perturb().seed) == (sigma, 7)
        assert simulate(**again.inputs()).step_time_s == first.step_time_s


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model: llama-3-8b", "model: llama-3-8x", "1: model = llama-3-8x: unknown model"),
        ("dgx-h100", "dgx-h10", "3: cluster.hardware = dgx-h10: unknown hardware"),
        ("plan:", "stack: megatrom\nplan:", "8: stack = megatrom: unknown stack"),
    ],
)
def test_an_unknown_name_says_where_it_stands(old, new, said, scenario_file):
    """File, line and key, then the nearest name; a flag in its place is obeyed."""
    scenario_file.write_text(scenario_file.read_text().replace(old, new))
    with pytest.raises(UserError, match=rf"^{scenario_file}:{said} '\S+'; did you mean"):
        load_scenario(scenario_file)
    assert load_scenario(scenario_file, FLAGS | {"stack": "megatron"}).model == "llama-3-8b"


def test_an_unknown_device_says_where_it_stands(tmp_path):
    """In the profile that names it."""
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nlike: hgx-h100\ndevice: h10-sxm\n")
    with pytest.raises(UserError, match=rf"^{path}:3: device = h10-sxm: unknown device 'h10-sxm'; did you mean"):
        load_scenario(None, FLAGS | {"cluster.hardware": str(path)}).build_cluster()


def test_scenarios_of_one_cluster_share_it():
    """Whatever else they say; degraded links make another, and only the last few are kept."""
    clusters = SharedClusters()
    first = load_scenario(None, FLAGS)
    shared = clusters.of(first)
    assert clusters.of(load_scenario(None, FLAGS | {"training.global_batch": 16})) is shared
    assert first.inputs(clusters)["cluster"] is shared
    slow = clusters.of(load_scenario(None, FLAGS | {"perturbation.degraded_links": {"nic_tx[0]": 0.5}}))
    assert slow is not shared
    assert slow.scaling
    for nodes in range(3, 3 + MOST_CLUSTERS):
        assert clusters.of(load_scenario(None, FLAGS | {"cluster.nodes": nodes})).nodes == nodes
    assert clusters.of(first) is not shared

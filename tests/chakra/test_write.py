"""The files of an export: the same bytes, a network that mirrors the profile, refusals in a line."""

from __future__ import annotations

import json

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

import simpar
from simpar.architectures.catalogue import load_model
from simpar.chakra.fabric import dimensions, list_unexpressed, network_text
from simpar.chakra.write import export_traces
from simpar.cli.app import app
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.simulation import make_job, simulate

from .conftest import TRAINING, exported, job_and_cluster


def network(hardware, nodes=1):
    """The network of a cluster as its file has it."""
    return YAML(typ="safe").load(network_text(dimensions(simpar.Cluster(hardware, nodes=nodes))))


def test_the_same_step_gives_the_same_bytes():
    """Files are a function of the plan."""
    assert export_traces(*job_and_cluster("3d")).files == exported("3d").files


def test_there_is_a_file_for_every_rank_and_all_that_a_replay_takes():
    """The page names the files that are there."""
    files = exported("3d").files
    assert {f"trace.{rank}.et" for rank in range(8)} < set(files)
    for name in ("comm_groups.json", "system.json", "network.yml", "memory.json"):
        assert f"={name}" in files["README.md"].decode()
        assert files[name]
    assert all(json.loads(files[name]) is not None for name in files if name.endswith(".json"))


def test_the_network_mirrors_the_profile():
    """Devices of a node behind a switch, nodes behind another; GiB/s of one device, ns of a link."""
    found = network("dgx-h100", nodes=4)
    assert (found["topology"], found["npus_count"]) == (["Switch", "Switch"], [8, 4])
    port, nic = (rate * 2**30 for rate in found["bandwidth"])
    fitted = load_cluster("dgx-h100").profile.collectives
    assert port == pytest.approx(450e9 * fitted["port_efficiency"], rel=1e-6)
    assert nic == pytest.approx(50e9 * fitted["nic_efficiency"], rel=1e-6)
    assert found["latency"] == pytest.approx([fitted["port_hop_us"] * 500, fitted["nic_hop_us"] * 500])
    assert network("mi300x-8")["topology"] == ["FullyConnected"]
    assert network("gb200-nvl72", nodes=18)["npus_count"] == [72]


@pytest.mark.parametrize("hardware", ["tpu-v5p-pod"])
def test_networks_without_a_place_are_left_out_aloud(hardware):
    """Of a torus there is no network file, and the page says so."""
    cluster = simpar.Cluster(hardware, nodes=2)
    assert dimensions(cluster) is None
    assert any("no network.yml" in line for line in list_unexpressed(cluster))


def test_uplinks_that_bind_are_told():
    """Degraded or oversubscribed ones."""
    bound = simpar.Cluster("meta-llama3-h100", nodes=1024)
    assert bound.leaves_bind
    assert any("uplinks" in line for line in list_unexpressed(bound))
    assert not any("uplinks" in line for line in list_unexpressed(simpar.Cluster("dgx-h100", nodes=4)))


def refusal(nodes=1, lossy=False, **values):
    """Why a plan is not exported."""
    cluster = simpar.Cluster("dgx-h100", nodes=nodes)
    training = simpar.Training(seq_len=512, global_batch=8 * nodes)
    job = make_job(load_model("tiny-llama"), cluster, Plan.model_validate(values), training)
    with pytest.raises(UserError) as error:
        export_traces(job, cluster, lossy=lossy)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_has_no_node_is_refused():
    """Copies to the host, replicas that do not step together, more ranks or ops than are written."""
    assert "cannot express host_update, to_device, to_host" in refusal(dp=8, zero=1, offload_optimizer="cpu")
    assert "plan.sync" in refusal(dp=8, sync="local-sgd", sync_every=4)
    assert "1,032 ranks: execution traces are a file a rank; allowed: 1,024" in refusal(nodes=129, dp=1032)


def test_more_ops_than_are_written_are_refused_before_they_are_made(monkeypatch):
    """With what makes them fewer."""
    monkeypatch.setattr("simpar.chakra.write.MOST_OPS", 1000)
    assert " ops on 8 ranks: execution traces write all of them; allowed: 1,000 (fewer microbatches" in refusal(dp=8)


def test_lossy_writes_copies_as_work_of_the_host():
    """Listed with what they are."""
    cluster = simpar.Cluster("dgx-h100", nodes=1)
    plan = Plan.model_validate({"dp": 8, "zero": 1, "offload_optimizer": "cpu"})
    made = export_traces(make_job(load_model("tiny-llama"), cluster, plan, TRAINING), cluster, lossy=True)
    assert [line.split(":")[0] for line in made.lost] == ["host update", "to device", "to host"]
    assert "## Lost" in made.files["README.md"].decode()


def run(*words):
    """The command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_writes_what_the_step_is(tmp_path):
    """Step time as simulated, files in the folder, JSON with their names."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"tp": 2, "dp": 4, "zero": 1, "model": "tiny-llama", "training": TRAINING.model_dump()}))
    words = ("export", plan, "--to", "chakra", "-o", tmp_path / "out", "--hardware", "dgx-h100", "--json", "-")
    found = run(*words)
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    assert {each.name for each in (tmp_path / "out").iterdir()} == set(said["files"])
    result = simulate("tiny-llama", simpar.Cluster("dgx-h100"), Plan(tp=2, dp=4, zero=1), TRAINING)
    assert said["notes"][0] == f"One step, {simpar.units.format_seconds(result.step_time_s)} as simulated."


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--to", "chakra"), "--hardware is missing"),
        (("--to", "chakr"), "did you mean 'chakra'"),
        (("--to", "chakra", "--hardware", "dgx-h100", "--nearest"), "--nearest: not with --to chakra"),
    ],
)
def test_commands_that_cannot_are_told_why(tmp_path, more, said):
    """In one line; nothing is written."""
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"dp": 8, "model": "tiny-llama", "training": TRAINING.model_dump()}))
    found = run("export", plan, "-o", tmp_path / "out", *more)
    assert isinstance(found.exception, UserError)
    assert said in str(found.exception)
    assert not (tmp_path / "out").exists()

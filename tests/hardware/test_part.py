"""A part of a node, by every way of saying it."""

import json
from pathlib import Path

import pytest

import simpar
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.part import part_of_node


def test_a_part_has_the_links_of_its_devices() -> None:
    """Half of a node: ports as before, half of the NICs, the host's switches still of pairs."""
    whole, half = (load_cluster("dgx-a100-80gb", devices=n).profile for n in (8, 4))
    assert half.scale_up == whole.scale_up
    assert (whole.scale_out and whole.scale_out.nics_per_node, half.scale_out and half.scale_out.nics_per_node) == (
        8,
        4,
    )
    assert (half.devices_per_node, half.host.devices_per_switch) == (4, 2)
    assert load_cluster("dgx-a100-80gb", devices=1).profile.host.devices_per_switch == 1


def test_a_part_of_a_mesh_has_fewer_links() -> None:
    """Of eight devices each has seven links; of four of them, three."""
    whole, part = (load_cluster("mi300x-8", devices=n).profile.scale_up.bandwidth for n in (8, 4))
    assert part == pytest.approx(whole * 3 / 7)


def test_a_part_of_a_torus_is_a_box() -> None:
    """Two chips of a host are neighbours along one axis."""
    assert load_cluster("tpu-v5p-pod", devices=2).profile.scale_up.dims == (2, 1, 1)


def test_devices_of_several_nodes_are_equally_many() -> None:
    """Whole nodes follow from the number of devices; parts of several need the number of nodes."""
    assert load_cluster("dgx-h100", devices=32).nodes == 4
    two = load_cluster("dgx-h100", nodes=2, devices=8)
    assert (two.nodes, two.world_size, two.profile.name) == (2, 8, "4 of dgx-h100")


@pytest.mark.parametrize(
    ("nodes", "devices", "told"),
    [
        (None, 13, "multiples of 2 up to 16"),
        (1, 9, "1 to 8"),
        (2, 7, "multiples of 2 up to 16"),
        (2, 18, "multiples of 2 up to 16"),
    ],
)
def test_other_numbers_are_refused(nodes: int | None, devices: int, told: str) -> None:
    """The message names what is allowed."""
    with pytest.raises(UserError, match=told):
        load_cluster("dgx-h100", nodes, devices)


def test_more_than_a_node_is_no_part() -> None:
    """Only numbers that a node has."""
    with pytest.raises(UserError, match="1 to 8"):
        part_of_node(load_cluster("dgx-h100").profile, 9)


def test_two_devices_are_as_fast_beside_six_idle_ones() -> None:
    """Over a switch, the step of two devices is that of a node that has two."""
    job = {"seq_len": 512, "global_batch": 8}
    part = simpar.simulate("gpt2", simpar.Cluster("dgx-h100", devices=2), {"zero": 1}, job)
    profile = load_cluster("dgx-h100").profile
    host = profile.host.model_copy(update={"devices_per_switch": 1})
    own = simpar.Cluster(profile.model_copy(update={"devices_per_node": 2, "host": host}))
    assert part.step_time_s == simpar.simulate("gpt2", own, {"zero": 1}, job).step_time_s


def test_a_saved_part_is_read_again(tmp_path: Path) -> None:
    """A result on a part of a node says so in its file, and simulating the file gives the same step."""
    result = simpar.simulate(
        "gpt2", simpar.Cluster("dgx-h100", devices=2), {"zero": 1}, {"seq_len": 512, "global_batch": 8}
    )
    (tmp_path / "saved.json").write_text(json.dumps(result.to_dict()))
    again = simpar.load_scenario(str(tmp_path / "saved.json"))
    assert again.build_cluster().world_size == 2
    assert simpar.simulate(**again.inputs()).step_time_s == result.step_time_s


def test_a_profile_may_have_fewer_devices_than_the_one_it_is_like(tmp_path: Path) -> None:
    """``devices_per_node: 1`` of a profile whose devices share switches in pairs."""
    (tmp_path / "one.yaml").write_text("name: one\nlike: dgx-a100-80gb\ndevices_per_node: 1\n")
    profile = load_cluster(tmp_path / "one.yaml").profile
    assert (profile.devices_per_node, profile.host.devices_per_switch) == (1, 1)
    assert profile.scale_out is not None
    assert profile.scale_out.nics_per_node == 1


def test_a_flag_replaces_the_size_of_a_file() -> None:
    """``--gpus`` instead of a scenario's nodes, and ``--nodes`` instead of its devices."""
    scenario = simpar.load_scenario("llama-3.1-405b-16384-h100", {"cluster.devices": 1024})
    assert scenario.build_cluster().world_size == 1024

"""Files of a cluster become a profile that is like a shipped one, reads back, and says what is not known."""

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.machine.profile_of import import_profile
from tests.hardware.machine.samples import matrix, node, rccl, topology

TREE = "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\n"


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def written(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def test_four_files_make_one_profile(write, tmp_path, capsys):
    """As a user does it: the profile is like the shipped one that others with that device are like; these figures."""
    names = [
        write("topo.txt", matrix()), write("nccl.xml", topology()), write("topology.conf", TREE),
        write("nodes.txt", "".join(node(f"n{i}") for i in range(1, 5)) + node("old", "gpu:a100:4", partitions="b")),
    ]  # fmt: skip
    output = str(tmp_path / "ours.yaml")
    assert cli.run(["hardware", "import", *names, "--partition", "train", "-o", output]) == 0
    said = capsys.readouterr().out
    assert "wrote" in said
    assert "like hgx-h200" in said
    assert "not read: as hgx-h200 has them: scale_out.kind" in said
    assert "--nodes 4" in said
    ours, base = load_cluster(output).profile, load_cluster("hgx-h200").profile
    assert (ours.name, ours.device, ours.devices_per_node) == ("ours", "h200-sxm", 8)
    assert ours.scale_out.nodes_per_leaf == 2
    assert ours.host.memory_bytes == 2060000 * 2**20
    assert ours.scale_up.bandwidth == 450e9
    assert ours.collectives == base.collectives
    assert "# not read: scale_out.kind" in (tmp_path / "ours.yaml").read_text()


def test_what_the_files_know_wins_over_what_it_is_like(write, tmp_path):
    """Another device than the base's, and links without switches, which is said: its constants are of switches."""
    found = import_profile([write("x.xml", topology())], "x", like="dgx-h100", folder=tmp_path)
    assert found.data["device"] == "h200-sxm"
    found = import_profile([write("y.txt", matrix(4, "NV4", 0))], "y", like="dgx-h100", folder=tmp_path)
    assert found.data["scale_up"] == {"bandwidth": "300 GB/s", "kind": "mesh", "nvls": False}
    said = "\n".join(found.unread)
    assert "12 of 18 links" in said
    assert "fitted to its nvswitch" in said


def test_of_several_profiles_the_one_that_all_are_like_is_taken(write, tmp_path):
    """H100s of clouds and reference designs are variants of one board."""
    found = import_profile([write("x.xml", topology(device="0x2330"))], "x", folder=tmp_path)
    assert found.data["like"] == "hgx-h100"


def test_a_mesh_of_rccl_is_one(write, tmp_path):
    """Case of MI300X: the shipped profile with that device, a mesh, all seven links of every device."""
    found = import_profile([write("x.xml", rccl())], "x", folder=tmp_path)
    assert (found.data["like"], found.data["scale_up"]) == ("mi300x-8", {"bandwidth": "448 GB/s", "kind": "mesh"})


def test_links_of_every_shipped_mesh_of_amd_have_a_rate(write, tmp_path):
    """MI350X and MI355X have the same links, MI325X those of MI300X."""
    for device, bandwidth in (("0x74a5", "448 GB/s"), ("0x75a0", "537.6 GB/s"), ("0x75a3", "537.6 GB/s")):
        read = import_profile([write("x.xml", rccl(device=device))], "x", folder=tmp_path)
        assert (read.facts["scale_up.kind"].value, read.facts["scale_up.bandwidth"].value) == ("mesh", bandwidth)


def test_a_file_of_ones_own_is_named_from_the_profile(write, tmp_path):
    """``like`` is relative to where the profile lies."""
    base = write("base.yaml", "name: base\nlike: dgx-h100\nhost:\n  memory_bytes: 1 TiB\n")
    (tmp_path / "made").mkdir()
    found = import_profile([write("t.txt", matrix())], "ours", like=base, folder=tmp_path / "made")
    assert found.data["like"] == "../base.yaml"
    (tmp_path / "made" / "ours.yaml").write_text(found.text())
    assert load_cluster(tmp_path / "made" / "ours.yaml").profile.host.memory_bytes == 2**40


@pytest.mark.parametrize(
    ("files", "like", "words"),
    [
        ({"t.txt": matrix()}, None, "do not say which GPU it is: name a shipped profile"),
        (
            {"x.xml": topology(device="0x2fff")},
            None,
            r"which GPU it is \(device: PCI 10de:2fff is none that simpar knows",
        ),
        ({"x.xml": topology(device="0x20b0")}, None, "several shipped profiles are like it.*dgx-a100-40gb "),
        ({"x.xml": topology(device="0x2331", gpus=5)}, None, "no shipped profile is like it"),
        ({"n.txt": node("n1", "gpu:a100:8")}, "dgx-h100", "its device is h100-sxm-80gb, the files have a100"),
        ({"n.txt": node("n1", "gpu:a100:8"), "x.xml": topology()}, None, "the files name different ones"),
        ({"t.txt": matrix(4), "n.txt": node("n1")}, "hgx-h200", "devices_per_node: .*t.txt has 4, .*n.txt has 8"),
        ({"t.txt": matrix(4, "NV18")}, "dgx-a100-80gb", "18 links, and a a100-sxm-80gb has 12"),
        ({"a.md": "# hello"}, "dgx-h100", "is none of nvidia-smi topo -m, NCCL topology"),
        ({"t.txt": matrix()}, "dgx-h10", "did you mean 'dgx-h100'"),
    ],
)
def test_what_is_open_or_contradicts_itself_is_refused(write, tmp_path, files, like, words):
    """Nothing is guessed, and nothing is written."""
    paths = [write(name, text) for name, text in files.items()]
    with pytest.raises(UserError, match=words):
        import_profile(paths, "ours", like=like, folder=tmp_path)


def test_a_base_without_links_or_network_takes_neither(write, tmp_path):
    """What it has no constants for is listed."""
    found = import_profile([write("t.txt", matrix())], "ours", like="laptop-cpu", folder=tmp_path)
    assert set(found.facts) == {"devices_per_node"}
    said = "\n".join(found.unread)
    assert "no network to be like" in said
    assert "whose rate simpar does not know" in said


def test_a_shipped_name_is_not_taken(write, capsys, tmp_path):
    """A profile of one's own has a name of its own."""
    arguments = [
        "hardware",
        "import",
        write("t.txt", matrix()),
        "--like",
        "dgx-h100",
        "-o",
        str(tmp_path / "dgx-h100.yaml"),
    ]
    assert cli.run(arguments) == 2
    assert "is a shipped profile" in capsys.readouterr().err
    assert not (tmp_path / "dgx-h100.yaml").exists()

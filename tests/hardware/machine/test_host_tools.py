"""ibstat and lspci of a host: cards that are up, and accelerators by their ids."""

import pytest

from simpar.errors import UserError
from simpar.hardware.machine.host_tools import is_bus, is_cards, is_list, read_bus, read_cards, read_list
from simpar.hardware.machine.nccl_xml import DEVICES
from simpar.hardware.machine.profile_of import import_profile
from tests.hardware.machine.samples import matrix, node


def card(name, rate=400, state="Active", layer="InfiniBand"):
    """A card of ``ibstat``."""
    return (
        f"CA '{name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n"
        f"\tNode GUID: 0xa088c20300a1b2c3\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: LinkUp\n"
        f"\t\tRate: {rate}\n\t\tBase lid: 12\n\t\tLMC: 0\n\t\tLink layer: {layer}\n"
    )


H100 = "3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)"
BRIDGE = "05:00.0 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)\n"
SCREEN = "03:00.0 VGA compatible controller [0300]: ASPEED Technology, Inc. ASPEED Graphics Family [1a03:2000]\n"


def test_cards_that_are_up():
    """Eight of 400 Gb/s; one is down, and one of 100 Gb/s is for storage."""
    text = "".join(card(f"mlx5_{at}") for at in range(8)) + card("mlx5_8", 100) + card("mlx5_9", 10, "Down")
    assert is_cards(text)
    read = read_cards(text, "ibstat.txt")
    facts = {key: fact.value for key, fact in read.facts.items()}
    assert facts == {
        "scale_out.nics_per_node": 8, "scale_out.nic_bandwidth": "400 Gb/s", "scale_out.kind": "ib",
    }  # fmt: skip
    assert read.unread == [
        "1 of 10 ports are not active: left out of the network",
        "slower ports, 1 of 100 Gb/s: left out of the network",
    ]


def test_cards_that_speak_ethernet():
    """Whether RoCE or TCP runs over them nobody says."""
    read = read_cards(card("mlx5_0", layer="Ethernet"), "ibstat.txt")
    assert "scale_out.kind" not in read.facts
    assert read.unread == ["scale_out.kind: the fastest ports speak Ethernet; whether the job uses RDMA is not said"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (card("mlx5_0", state="Down"), "none of 1 ports is active"),
        (card("mlx5_0", rate="NDR"), "a port of mlx5_0 has the rate 'NDR': wants Gb/s"),
        (card("mlx5_0", rate=-400), "has the rate '-400'"), (card("mlx5_0")[:150], "has the rate ''"),
    ],
)  # fmt: skip
def test_cards_that_say_no_rate(text, message):
    """In one line."""
    with pytest.raises(UserError, match=message):
        read_cards(text, "ibstat.txt")


def test_devices_by_their_ids():
    """With class and id in brackets (-nn), or numbers alone (-n); switches and screens are no devices."""
    text = SCREEN + BRIDGE + "".join(f"0000:{18 + at:02x}:00.0 {H100}\n" for at in range(8))
    assert is_bus(text)
    read = read_bus(text, "lspci.txt")
    assert (read.devices, read.facts["devices_per_node"].value) == (("h100-sxm-80gb",), 8)
    read = read_bus("18:00.0 0302: 10de:2330 (rev a1)\n19:00.0 0302: 10de:2330 (rev a1)\n", "lspci.txt")
    assert (read.devices, read.facts["devices_per_node"].value) == (("h100-sxm-80gb",), 2)


@pytest.mark.parametrize("number", DEVICES)
def test_every_id_is_read(number):
    """AMD's accelerators have a class of their own."""
    kind = "Processing accelerators [1200]" if number.startswith("1002") else "3D controller [0302]"
    read = read_bus(f"0000:18:00.0 {kind}: Some Name [Other] [{number}] (rev a1)\n", "lspci.txt")
    assert read.devices == (DEVICES[number],)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("18:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n", "the output of lspci -nn"),
        (f"18:00.0 {H100}\n19:00.0 {H100.replace('2330', '20b2')}\n", "1 x a100-sxm-80gb, 1 x h100-sxm-80gb"),
    ],
)
def test_lists_that_do_not_say_the_device(text, message):
    """Without ids, and with devices of two kinds."""
    assert is_bus(text)
    with pytest.raises(UserError, match=message):
        read_bus(text, "lspci.txt")


def test_other_files_are_neither():
    """Nor is what these tools print another kind."""
    for text in (matrix(), node("n1"), "SwitchName=s1 Nodes=n[1-2]\n", ""):
        assert not is_cards(text)
        assert not is_bus(text)


def test_beside_a_matrix_the_cards_of_the_devices_count(tmp_path):
    """Ten cards are up, and each of eight devices has one behind its switch."""
    files = {"topo.txt": matrix(), "ibstat.txt": "".join(card(f"mlx5_{at}") for at in range(10)),
             "lspci.txt": "".join(f"{18 + at:02x}:00.0 {H100}\n" for at in range(8))}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    read = import_profile([str(tmp_path / name) for name in files], "x", folder=tmp_path)
    assert read.data["scale_out"] == {"kind": "ib", "nic_bandwidth": "400 Gb/s", "nics_per_node": 8}
    assert (read.data["like"], read.data["devices_per_node"]) == ("hgx-h100", 8)
    assert any("scale_out.nics_per_node = 10" in line for line in read.unread)


def listed(*names):
    """``nvidia-smi -L``."""
    return "".join(f"GPU {at}: {name} (UUID: GPU-5f3c2a1b-0000-{at:04d})\n" for at, name in enumerate(names))


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"), ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"), ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA L40S", "l40s"), ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"), ("NVIDIA GB200", "gb200"),
    ],
)  # fmt: skip
def test_devices_that_the_driver_lists(name, device):
    """By its own names."""
    read = read_list(listed(*[name] * 4), "list.txt")
    assert is_list(listed(name))
    assert (read.devices, read.facts["devices_per_node"].value, read.unread) == ((device,), 4, [])


def test_lists_that_no_profile_has():
    """Several kinds and slices are refused; a name that nobody knows is said."""
    with pytest.raises(UserError, match="several kinds of devices: 1 x NVIDIA A40, 1 x Tesla T4; a profile has one"):
        read_list(listed("NVIDIA A40", "Tesla T4"), "list.txt")
    with pytest.raises(UserError, match=r"list.txt: devices are in slices .MIG."):
        read_list(listed("NVIDIA H100 80GB HBM3") + "  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n", "list.txt")
    read = read_list(listed("NVIDIA Foo 9000"), "list.txt")
    assert (read.devices, read.unread) == (
        (), ["device: the driver calls it NVIDIA Foo 9000, which is none that simpar knows"],
    )  # fmt: skip


def test_a_matrix_and_a_list_need_no_profile_to_start_from(tmp_path):
    """The list says which device, the matrix how the devices are joined."""
    (tmp_path / "topo.txt").write_text(matrix())
    (tmp_path / "list.txt").write_text(listed(*["NVIDIA H20"] * 8))
    paths = [str(tmp_path / name) for name in ("topo.txt", "list.txt")]
    assert import_profile(paths, "ours", folder=tmp_path).data["like"] == "hgx-h20"

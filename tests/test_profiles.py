"""Learnt files: the part of a kind, by its name where there are several; profiles that are like others."""

import pytest

from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import load_device
from simpar.hardware.reliability import load_reliability
from simpar.hardware.shown import annotate_profile
from simpar.profiles import LEARNED, REVISION, as_written, base_name, load_profile, yaml_text
from simpar.stacks.stack import load_stack
from simpar.units import GIB


def learned(path, *, stacks=("nemo",), clusters=("dgx-h100",), about=None):
    """A learnt file of shipped profiles as they are."""
    path.write_text(
        yaml_text(
            {
                LEARNED: {"simpar": "0.0.9", "revision": REVISION} if about is None else about,
                "stacks": {name: as_written(load_stack(name)) for name in stacks},
                "clusters": {name: as_written(load_cluster(name).profile) for name in clusters},
            }
        )
    )
    return str(path)


def test_one_file_is_a_stack_and_a_cluster(tmp_path):
    """Whoever wants a stack gets the stack, whoever wants a cluster the cluster."""
    path = learned(tmp_path / "ours.yaml")
    assert as_written(load_stack(path)) == as_written(load_stack("nemo"))
    assert load_cluster(path, 2).profile.collectives == load_cluster("dgx-h100").profile.collectives
    assert base_name(path, "stacks", "stack") == "nemo"


def test_of_several_one_is_named(tmp_path):
    """FILE#NAME is one of several; a file alone is refused with an example."""
    path = learned(tmp_path / "ours.yaml", stacks=("nemo", "fsdp"))
    assert as_written(load_stack(f"{path}#fsdp")) == as_written(load_stack("fsdp"))
    assert base_name(f"{path}#fsdp", "stacks", "stack") == "fsdp"
    with pytest.raises(UserError, match=r"has 2: name one, such as .*#nemo"):
        load_stack(path)
    with pytest.raises(UserError, match="has no stack 'megatron'; allowed: fsdp, nemo"):
        load_stack(f"{path}#megatron")


def test_a_file_without_the_kind_says_so(tmp_path):
    """A file that learnt nothing of clusters is no hardware."""
    path = learned(tmp_path / "ours.yaml", clusters=())
    with pytest.raises(UserError, match="hardware wanted, the file has none"):
        load_cluster(path)


@pytest.mark.parametrize("about", [{"simpar": "0.0.1"}, {"simpar": "0.0.1", "revision": 0}, {}, "words"])
def test_what_an_older_version_learnt_is_refused(tmp_path, about):
    """Parameters that meant something else are not used in silence."""
    path = learned(tmp_path / "ours.yaml", about=about)
    with pytest.raises(UserError, match="learn again from the same runs") as error:
        load_profile(path, "stacks", "stack")
    assert "\n" not in str(error.value)


def test_a_mistake_in_a_part_is_found_at_its_line(tmp_path):
    """Lines are those of the file."""
    path = tmp_path / "ours.yaml"
    learned(path)
    path.write_text(
        path.read_text().replace("    data_parallel:", "    data_paralel:").replace("    launch:", "    lunch:")
    )
    with pytest.raises(UserError, match=r"ours.yaml:\d+: unknown key lunch; did you mean 'launch'"):
        load_stack(str(path))


def test_a_part_of_a_file_that_was_not_learnt_is_refused(tmp_path):
    """Only learnt files have parts."""
    path = tmp_path / "own.yaml"
    path.write_text(yaml_text(as_written(load_stack("nemo"))))
    assert load_stack(str(path)).launch == load_stack("nemo").launch
    with pytest.raises(UserError, match="is not a learnt file"):
        load_stack(f"{path}#nemo")


def profile(folder, file, **fields):
    """A file of a cluster or a device, called as it is unless it says another name."""
    path = folder / f"{file}.yaml"
    path.write_text(yaml_text({"name": file, **fields}))
    return str(path)


def test_a_cluster_of_ones_own_says_only_what_is_different(tmp_path):
    """Field by field in every section; a list replaces the other's; sources and where numbers come from add up."""
    base = load_cluster("dgx-h100").profile
    path = profile(
        tmp_path, "ours", like="dgx-h100", devices_per_node=4, host={"memory_bytes": "1 TiB"},
        scale_out={"nics_per_node": 4, "nic_bandwidth": "200 Gb/s"}, sources=["an invoice of 2026"],
    )  # fmt: skip
    ours = load_cluster(path).profile
    out = base.scale_out.model_copy(update={"nics_per_node": 4, "nic_bandwidth": 25e9})
    host = base.host.model_copy(update={"memory_bytes": 2.0**40})
    assert ours == base.model_copy(
        update={
            "name": "ours", "devices_per_node": 4, "scale_out": out, "host": host,
            "sources": ("an invoice of 2026", *base.sources), "provenance": f"like dgx-h100; {base.provenance}",
        }
    )  # fmt: skip


def test_profiles_are_like_one_another_over_folders(tmp_path):
    """A file names another relative to itself, and what that one names is found from there."""
    (tmp_path / "chips").mkdir()
    profile(tmp_path / "chips", "chip", like="h100-sxm-80gb", memory_bytes="94 GiB")
    profile(tmp_path / "chips", "rack", like="dgx-h100", device="chip.yaml")
    path = profile(tmp_path, "ours", like="chips/rack.yaml", devices_per_node=4)
    device = load_cluster(path).device
    assert (device.name, device.memory_bytes) == ("chip", 94 * GIB)
    assert device.kernels == load_device("h100-sxm-80gb").kernels


def test_a_device_is_changed_inside_a_cluster(tmp_path):
    """Single fields are laid over the device that the other names, or over the one that it is like."""
    path = profile(tmp_path, "ours", like="dgx-h100", device={"name": "chip", "memory_bytes": "94 GiB"})
    h100 = load_device("h100-sxm-80gb")
    changed = {"name": "chip", "memory_bytes": 94 * GIB, "provenance": f"like {h100.name}; {h100.provenance}"}
    assert load_cluster(path).device == h100.model_copy(update=changed)
    path = profile(tmp_path, "mine", like="dgx-h100", device={"name": "chip", "like": "h20-sxm"})
    h20 = load_device("h20-sxm")
    said = {"name": "chip", "provenance": f"like {h20.name}; {h20.provenance}".rstrip("; ")}
    assert load_cluster(path).device == h20.model_copy(update=said)


def test_stacks_and_learnt_profiles_can_be_built_on(tmp_path):
    """A stack is like another; a part of a learnt file is named as everywhere."""
    learned(tmp_path / "learned.yaml", clusters=("dgx-h100", "hgx-b200"))
    path = profile(tmp_path, "stack", like="nemo", launch={"step_overhead_s": "1 ms"})
    assert load_stack(path).launch == load_stack("nemo").launch.model_copy(update={"step_overhead_s": 0.001})
    path = profile(tmp_path, "ours", like="learned.yaml#hgx-b200", devices_per_node=4)
    assert load_cluster(path).profile.collectives == load_cluster("hgx-b200").profile.collectives


def test_what_is_shown_is_what_is_read(tmp_path):
    """The resolved profile, written out, is the same profile; it says what comes from where."""
    path = profile(tmp_path, "ours", like="dgx-h100", host={"memory_bytes": "1 TiB"})
    text = annotate_profile(load_profile(path, "clusters", "hardware")[0], "clusters")
    assert "  memory_bytes: 1 TiB\n" in text
    assert "  latency: 2 us # like hgx-h100\n" in text
    (tmp_path / "whole.yaml").write_text(text)
    assert load_cluster(tmp_path / "whole.yaml").profile == load_cluster(path).profile


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"like": "dgx-h10"}, r"ours.yaml:2: like = dgx-h10: unknown hardware 'dgx-h10'; did you mean 'dgx-h100'"),
        ({"like": "ours.yaml"}, r"ours.yaml:2: like = ours.yaml: .*ours.yaml inherits from itself through 'like'"),
        ({"like": "other.yaml"}, r"other.yaml:2: like = ours.yaml: .*ours.yaml inherits from itself through 'like'"),
        ({"like": "missing.yaml"}, "missing.yaml: cannot be read"),
        ({"like": 3}, "ours.yaml:2: like = 3: allowed: the name or the file of a hardware"),
        ({"lik": "dgx-h100"}, "ours.yaml:2: unknown key lik; did you mean 'like'"),
        ({"like": "dgx-h100", "host": {"memory_byte": "1 GB"}},
         "ours.yaml:4: unknown key host.memory_byte; did you mean 'memory_bytes'"),
        ({"like": "dgx-h100", "devices_per_node": 0}, "ours.yaml:3: devices_per_node = 0"),
        ({"like": "wrong.yaml"}, "wrong.yaml:4: scale_out.latency = '2 lightyears'"),
        ({"like": "dgx-h100", "device": {"memory_bytes": "1 GB"}}, "ours.yaml.*name is missing"),
        ({"like": "dgx-h100", "groups": [{"hardware": "dgx-h100"}]}, "has one kind of nodes"),
        ({"name": "", "like": "dgx-h100"}, "name is missing: what is like dgx-h100 has a name of its own"),
    ],
)  # fmt: skip
def test_what_cannot_be_inherited_is_said_at_its_line(tmp_path, fields, words):
    """Circles, unknown names and fields, and mistakes of the other file, which are found there."""
    profile(tmp_path, "other", like="ours.yaml")
    profile(tmp_path, "wrong", like="dgx-h100", scale_out={"latency": "2 lightyears"})
    with pytest.raises(UserError, match=words):
        load_cluster(profile(tmp_path, "ours", **fields))


@pytest.mark.parametrize(
    ("kind", "load", "shipped"),
    [
        ("stacks", load_stack, "megatron"),
        ("devices", load_device, "h100-sxm-80gb"),
        ("clusters", lambda name: load_cluster(name).profile, "dgx-h100"),
        ("reliability", load_reliability, None),
    ],
)
def test_a_file_that_was_rewritten_is_read_again(tmp_path, kind, load, shipped):
    """As in a notebook, where the next cell simulates with it."""
    files = bundled(kind)
    text, path = files[shipped or next(iter(files))].read_text(), tmp_path / "mine.yaml"
    own = load(shipped or next(iter(files))).name
    for name in ("first", "second"):
        path.write_text(text.replace(f"name: {own}", f"name: {name}", 1))
        assert load(str(path)).name == name

"""Learnt files: the part of a kind, by its name where there are several; old ones are refused in a line."""

import pytest

from simpar.cost.stack import load_stack
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.profiles import LEARNED, REVISION, as_written, base_name, load_profile, yaml_text


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
        path.read_text()
        .replace("    data_parallel:", "    data_paralel:")
        .replace("    launch:", "    lunch:")
    )
    with pytest.raises(UserError, match=r"ours.yaml:\d+: unknown key lunch; did you mean 'launch'"):
        load_stack(str(path))


def test_a_part_of_a_file_that_was_not_learnt_is_refused(tmp_path):
    """Only learnt files have parts."""
    path = tmp_path / "own.yaml"
    path.write_text(yaml_text(as_written(load_stack("nemo"))))
    assert load_stack(str(path)).launch == load_stack("nemo").launch
    with pytest.raises(UserError, match="no learnt file"):
        load_stack(f"{path}#nemo")

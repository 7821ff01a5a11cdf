"""The contract of every family of models."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simpar.architectures import families
from simpar.architectures.families import DECLARED
from simpar.architectures.families.unmodelled import UNCAPTURED, UNMODELLED
from simpar.architectures.hf_config import read
from simpar.declared import entries
from simpar.errors import UserError
from simpar.tracing.load import load_config


@pytest.mark.parametrize("kind", DECLARED)
def test_its_tiny_config_is_read_whole(kind):
    """No field is left unread, and what the config does not say is as declared."""
    family = DECLARED[kind]
    graph = read({**family.tiny, "model_type": kind}, kind)
    assert graph.details.unread == ()
    assert graph.num_parameters() < 1e6
    named = {"hidden_activation", "hidden_act"} & set(family.tiny)
    assert named or family.details is None or graph.details.activation == family.details.activation


def test_every_name_is_declared_once():
    """No two families have a name, and none that is refused is declared."""
    declared = entries(families.__name__, families.__path__, "FAMILIES")
    names = [name for each in declared for name in (each.model_type, *each.aliases)]
    assert len(names) == len(set(names)) == len(DECLARED) > 70
    assert not set(names) & {*UNMODELLED, *UNCAPTURED}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"model_type": "ernie4_5_vl", "text_config": {"hidden_size": 32}},
            "of two widths in a layer, are neither modelled nor captured",
        ),
        ({"model_type": "blt"}, "patches that data cut from bytes are neither .*; allowed: a model without them"),
        (
            {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV2_5ForCausalLM"]},
            r"theirs: architectures = \['BailingMoeV2_5ForCausalLM'\]: lightning attention beside latent attention",
        ),
        ({"_class_name": "UNet2DModel"}, "this class of diffusers is not read; allowed: .*, or a model_type"),
    ],
)
def test_what_no_capture_finds_is_refused_in_one_line(config, words):
    """Before a library is asked for its class."""
    with pytest.raises(UserError, match=words) as refused:
        load_config(config, "theirs")
    assert "\n" not in str(refused.value)


def test_a_new_family_is_one_file(tmp_path, monkeypatch):
    """A file that is dropped into the folder is found by its names."""
    (tmp_path / "new.py").write_text(
        "from simpar.architectures.families.family import ModelFamily\n"
        "FAMILIES = (ModelFamily('new', lambda config, name: None, aliases=('new_text',)),)\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    try:
        assert set(families.Families()) == {*DECLARED, "new", "new_text"}
        assert families.Families()["new"] is families.Families()["new_text"]
    finally:
        sys.modules.pop(f"{families.__name__}.new", None)


def test_no_two_files_declare_one_type():
    """So a family that is found in the file of its name is that of all files."""
    every = entries(families.__name__, families.__path__, "FAMILIES")
    names = [name for family in every for name in (family.model_type, *family.aliases)]
    assert len(set(names)) == len(names)
    assert {name: families.Families()[name] for name in names} == dict(DECLARED)


def test_a_family_of_a_file_of_its_name_is_found_without_the_others():
    """Commands load the one that they need; what is no family is none, whatever files are there."""
    code = (
        "import sys; from simpar.architectures.families import DECLARED; DECLARED['llama']; "
        "print('simpar.architectures.families.gemma' in sys.modules, 'family' in DECLARED, 'os.path' in DECLARED, "
        "'simpar.architectures.families.gemma' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "False", "False", "True"]


def test_names_that_transformers_lacks_become_those_of_their_class():
    """Kimi K2 is DeepSeek-V3's class under another name; classes of their own keep theirs."""
    assert DECLARED["kimi_k2"].library_type("kimi_k2") == "deepseek_v3"
    same = {name for name, family in DECLARED.items() if family.library_type(name) == name}
    assert set(DECLARED) - same == {"kimi_k2"}

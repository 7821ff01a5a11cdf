"""The contract of every family that is declared in a file of its own."""

from __future__ import annotations

import pytest

from simpar.models import families
from simpar.models.families import DECLARED
from simpar.models.hf_config import FAMILIES, read
from simpar.models.hf_details import DEFAULTS


@pytest.mark.parametrize("kind", DECLARED)
def test_its_tiny_config_is_read_whole(kind):
    """No table has it, too; no field is left unread, and what the config does not say is as declared."""
    each = DECLARED[kind]
    assert FAMILIES[kind] is each.read
    assert kind not in DEFAULTS
    graph = read({**each.tiny, "model_type": kind}, kind)
    assert graph.details.unread == ()
    assert graph.num_parameters() < 1e6
    said = {"hidden_activation", "hidden_act"} & set(each.tiny)
    assert said or graph.details.activation == each.details.activation


def test_a_new_family_is_one_file(tmp_path, monkeypatch):
    """A file that is dropped into the folder is found by its kinds."""
    (tmp_path / "new.py").write_text(
        "from simpar.models.details import Details\n"
        "from simpar.models.families.family import ModelFamily\n"
        "FAMILIES = (ModelFamily(('new', 'new_text'), lambda config, name: None, Details(), {}),)\n"
    )
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    assert set(families._listed()) == {*DECLARED, "new", "new_text"}

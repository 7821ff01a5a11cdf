"""Values of a scenario by dotted keys."""

import pytest

from simpar.errors import UserError
from simpar.settings import parse_setting, with_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1", 1),
        ("a.b=3e-4", 3e-4),
        ("a.b=true", True),
        ("a.b=no", "no"),
        ("a.b=null", None),
        ("a.b=[1, 2]", [1, 2]),
        ("a.b=every:2", "every:2"),
        ("a.b=80 GiB", "80 GiB"),
    ],
)
def test_a_setting_is_a_yaml_scalar(text, value):
    """YAML 1.2: 3e-4 is a number and no is a word."""
    assert parse_setting(text) == ("a.b", value)


@pytest.mark.parametrize("text", ["plan.tp", "=3", "a={b: 1}", "a=[", "a=!!python/name:os.system", "a=&x *x"])
def test_a_malformed_setting_is_refused_in_one_line(text):
    """The message repeats the text and says what is wanted."""
    with pytest.raises(UserError) as caught:
        parse_setting(text)
    assert "\n" not in str(caught.value)
    assert "--set" in str(caught.value)


def test_a_section_is_set_key_by_key():
    """The message names the key of its first entry."""
    with pytest.raises(UserError, match=r"key by key: --set perturbation.slow_ranks.0=VALUE$"):
        parse_setting("perturbation.slow_ranks={0: 1.2}")


def test_values_are_set_without_touching_the_original():
    """with_value copies the sections it changes."""
    data = {"plan": {"tp": 1}}
    changed = with_value(data, "plan.mesh.tp", 4)
    assert data == {"plan": {"tp": 1}}
    assert changed == {"plan": {"mesh": {"tp": 4}}}


def test_a_value_has_no_parts():
    """model.name cannot be set where model is a name."""
    with pytest.raises(UserError, match="has no parts"):
        with_value({"model": "gpt2"}, "model.name", "x")

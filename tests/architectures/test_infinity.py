"""``Infinity`` and ``NaN`` as Python writes them in a config.json."""

import json
import math
from pathlib import Path

import pytest

from simpar.architectures.catalogue import config_of, load_model
from simpar.errors import UserError

CONFIG = {**config_of("nemotron-h-4b"), "time_step_limit": [0.0, math.inf]}


def test_infinity_is_read_where_a_field_allows_it(tmp_path: Path) -> None:
    """As Hugging Face writes the limit of time steps; elsewhere the field is named."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert "Infinity" in path.read_text()
    assert load_model(str(path)).num_parameters() == load_model("nemotron-h-4b").num_parameters()
    for value in (math.inf, math.nan):
        path.write_text(json.dumps({**CONFIG, "hidden_size": value}))
        with pytest.raises(UserError, match=r"hidden_size = (inf|nan)") as error:
            load_model(str(path))
        assert len(str(error.value).splitlines()) == 1


def test_a_start_that_is_no_number_is_the_usual_one(tmp_path: Path) -> None:
    """Of weights, which decides neither time nor memory; an infinite one is named."""
    path = tmp_path / "config.json"
    config = config_of("qwen3-30b-a3b")
    path.write_text(json.dumps({**config, "initializer_range": math.nan, "rms_norm_eps": 1e-6}))
    assert load_model(str(path)).details.init_std == load_model("qwen3-30b-a3b").details.init_std
    path.write_text(json.dumps({**config, "initializer_range": math.inf}))
    with pytest.raises(UserError, match=r"initializer_range = inf: allowed: a number above 0"):
        load_model(str(path))

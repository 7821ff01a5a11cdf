"""Values of configs that refer to others."""

import pytest

from simpar.errors import UserError
from simpar.frameworks.overrides import ToldReader
from simpar.frameworks.references import is_untold, resolved

VALUES = {"model.hidden": 1024, "model.ffn": "${multiply:4, ${.hidden}}", "model.attention.width": "${..hidden}",
          "data.hidden": "${model.hidden}", "twice": "${data.hidden}", "path": "${dir}/${model.hidden}", "dir": "out",
          "nodes": "${oc.env:NODES,2}", "rank": "${oc.env:RANK}", "seq": "${oc.select:model.seq,512}",
          "gone": "${model.gone}", "circle": "${circle}"}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("model.ffn", 4096), ("model.attention.width", 1024), ("data.hidden", 1024), ("twice", 1024),
        ("path", "out/1024"), ("nodes", 2), ("seq", 512), ("gone", "${model.gone}"), ("rank", "${oc.env:RANK}"),
        ("circle", "${circle}"),
    ],
)  # fmt: skip
def test_what_a_value_refers_to(key: str, expected: object) -> None:
    """Keys by name or beside it, products, defaults; what nothing says stays as it is, and so does a circle."""
    assert resolved(VALUES)[key] == expected


def test_what_the_text_does_not_say_is_refused_where_it_is_needed() -> None:
    """Never taken as absent; a name may be asked for."""
    given = ToldReader(resolved(VALUES), "job.yaml")
    assert (given.whole("model.ffn"), given.name_of("rank"), given.name_of("dir")) == (4096, None, "out")
    with pytest.raises(UserError, match=r"job.yaml: gone = \$\{model.gone\}: a value that the text does not say"):
        given.get("gone")
    assert [key for key, value in resolved(VALUES).items() if is_untold(value)] == ["rank", "gone", "circle"]
    assert "gone" in given.words().used

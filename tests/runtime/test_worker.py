"""What ranks of several nodes leave for each other's launchers."""

import json

import pytest

torch = pytest.importorskip("torch")

from simpar.runtime import worker  # noqa: E402


@pytest.mark.parametrize(("rank", "local", "left"), [(0, 0, [2, 3]), (1, 1, []), (2, 0, [0, 1]), (3, 1, [])])
def test_every_node_gets_what_the_others_measured(tmp_path, monkeypatch, rank, local, left):
    """Two nodes of two ranks: the first rank of each writes those of the other, whichever node has rank 0."""
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)

    def gather(every, found):
        assert found == {"rank": rank}
        every[:] = [{"rank": other} for other in range(4)]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    worker._bring_home({"rank": rank}, tmp_path)
    found = {path.name: json.loads(path.read_text())["rank"] for path in tmp_path.iterdir()}
    assert found == {f"rank{other}.json": other for other in left}

"""Operators placed one by one: random numbers of ranks, and the parts of parameters by role."""

import pytest

torch = pytest.importorskip("torch")

from simpar.architectures.catalogue import load_model  # noqa: E402
from simpar.plan.megatron_roles import with_roles  # noqa: E402
from simpar.plan.stages import StagePlan  # noqa: E402
from simpar.runtime.placed import find_stored, seed_by_place  # noqa: E402


def test_ranks_with_slices_draw_numbers_of_their_own_and_go_on_alike():
    """What is drawn inside depends on the place; what is drawn after it does not."""
    inside, after = [], []
    for place in ((0,), (1,), (0,)):
        torch.manual_seed(7)
        with seed_by_place(place):
            inside.append(torch.rand(8))
        after.append(torch.rand(8))
    assert torch.equal(inside[0], inside[2])
    assert not torch.equal(inside[0], inside[1])
    assert torch.equal(after[0], after[1])
    assert not torch.equal(inside[0], after[0])


@pytest.mark.parametrize(
    ("role", "gathered", "parts"),
    [
        ("vocabulary", False, [(2048, 256)] * 2),
        ("features", False, [(4096, 128)] * 2),
        ("batch", False, [(4096, 256)] * 2),
        ("batch", True, [(2048, 256)] * 2),
    ],
)
def test_tables_are_cut_by_role_and_where_they_are_gathered(role, gathered, parts):
    """By rows for the vocabulary, by columns for features, by rows between uses where every use gathers them."""
    graph = load_model("tiny-llama")
    stage = with_roles(StagePlan(layers=4, first_device=0, mesh=(2,)), graph, sequence_parallel=False)
    block = stage.sharding["embedding"]
    own = block.model_copy(
        update={"operators": {"token_embedding": (role,)}, "gathered": ("token_embedding",) if gathered else ()}
    )
    stage = stage.model_copy(update={"sharding": {**stage.sharding, "embedding": own}})
    held = find_stored(stage, graph.embedding, graph.embedding.operators[0], (4096, 256))
    assert [tuple(end - begin for begin, end in held.box(rank)) for rank in (0, 1)] == parts

"""Which copies of tokens go to which expert, with and without a limit."""

import math
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.autograd.graph import saved_tensors_hooks  # noqa: E402
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts  # noqa: E402

from simpar.runtime import experts  # noqa: E402
from simpar.runtime.exchange import Reordered, ScatteredRows, inverse_of  # noqa: E402
from simpar.runtime.experts import Combine, TokenDispatch, choose, grouped_product, limit  # noqa: E402

SCORES = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.8, 0.2]])
EXPERTS = torch.tensor([[0, 1], [0, 2], [0, 1], [0, 3]])
MATRICES = [torch.ops.aten.mm.default]
RECOMPUTE = {
    "none": lambda run, *given: run(*given),
    "full": partial(checkpoint, use_reentrant=False),
    "selective": partial(
        checkpoint, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, MATRICES)
    ),
}


def pair(factor):
    """What is around four experts that take ``factor`` times the mean."""
    modules = torch.nn.ModuleList([TokenDispatch(4), Combine()])
    limit(modules, factor)
    return modules


def mixture(factor):
    """Dispatch and combine around experts that give every copy back as it came."""
    dispatch, combine = pair(factor)
    return lambda x, routed: combine(dispatch(x, routed))


def inputs(seed):
    """Tokens [2, 9, 6], scores and numbers of the best 3 of 4 experts, and their matrices."""
    torch.manual_seed(seed)
    scores, chosen = torch.softmax(torch.randn(18, 4).double(), -1).topk(3)
    x, matrices = torch.randn(2, 9, 6).double(), torch.randn(4, 6, 6).double()
    return [x.requires_grad_(), scores.requires_grad_(), matrices.requires_grad_()], chosen


def product(rows, matrices, of_rows):
    """Every row times the matrix of its expert."""
    return torch.bmm(rows.unsqueeze(1), matrices[of_rows]).squeeze(1)


def test_an_expert_keeps_the_copies_with_the_highest_scores():
    """Expert 0 is wanted four times and has room for two: ceil(1 x 8 copies / 4 experts)."""
    chosen = choose(SCORES, EXPERTS, 4, 1.0)
    assert chosen.counts.tolist() == [2, 2, 2, 2]
    assert chosen.order.tolist() == [0, 6, 5, 1, 3, 7]  # tokens 0 and 3, then 2 and 0, then 1, then 3
    assert chosen.slots.tolist() == [0, 1, 2, 3, 4, 6]


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0, 1.7, 4.0])
def test_the_capacity_is_the_factor_times_the_mean(factor):
    """Every expert has as many rows, of which copies take at most as many as want to go there."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.softmax(torch.randn(20, 6, generator=generator), -1)
    best, experts = scores.topk(2)
    chosen = choose(best, experts, 6, factor)
    capacity = math.ceil(factor * 40 / 6)
    assert chosen.counts.tolist() == [capacity] * 6
    wanted = torch.bincount(experts.flatten(), minlength=6)
    kept = torch.bincount(experts.flatten()[chosen.order], minlength=6)
    assert kept.tolist() == wanted.clamp(max=capacity).tolist()
    assert len(set(chosen.slots.tolist())) == len(chosen.slots)
    assert (chosen.slots // capacity).tolist() == experts.flatten()[chosen.order].tolist()


def test_what_is_dropped_adds_nothing():
    """Tokens 1 and 2 lose their best expert and keep their second; scores of the others do not change."""
    x = torch.ones(1, 4, 3)
    torch.testing.assert_close(mixture(None)(x, (SCORES, EXPERTS)), x)
    limited = mixture(1.0)(x, (SCORES, EXPERTS))
    torch.testing.assert_close(limited[0, :, 0], torch.tensor([1.0, 0.4, 0.3, 1.0]))


def test_a_limit_that_nothing_reaches_changes_nothing():
    """With room for all tokens everywhere the outputs are those without a limit."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(2, 5, 3, generator=generator)
    scores = torch.softmax(torch.randn(10, 2, generator=generator), -1)
    experts = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(10)])
    torch.testing.assert_close(mixture(4.0)(x, (scores, experts)), mixture(None)(x, (scores, experts)))


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("factor", [None, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_numbers_and_gradients_are_those_of_plain_indexing(seed, factor, recompute):
    """Of tokens, scores and matrices, computed again in backward or not; an expert may get nothing."""
    leaves, chosen = inputs(seed)
    if seed == 2:
        chosen = torch.arange(3).repeat(18, 1)
    dispatch, combine = pair(factor)

    def ours(x, scores, matrices):
        rows, routing = dispatch(x, (scores, chosen))
        assert routing.arrived is None, "one rank has its rows in order"
        of_rows = torch.repeat_interleave(torch.arange(4), routing.counts)
        return combine((product(rows, matrices, of_rows), routing))

    def plain(x, scores, matrices):
        kept = choose(scores, chosen, 4, factor).order
        y = product(x.flatten(0, 1)[kept // 3], matrices, chosen.flatten()[kept])
        weighed = y * scores.flatten()[kept].unsqueeze(1)
        return torch.zeros(18, 6, dtype=y.dtype).index_add(0, kept // 3, weighed).view(2, 9, 6)

    found = []
    for run in (partial(RECOMPUTE[recompute], ours), plain):
        y = run(*leaves)
        found.append((y, *torch.autograd.grad(y.sin().sum(), leaves)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [None, 1.0])
def test_rows_are_kept_for_the_gradient_of_scores_only(factor):
    """Once, by what adds up; what brings tokens to experts keeps none."""
    (x, scores, _), chosen = inputs(0)
    dispatch, combine = pair(factor)
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        rows, routing = dispatch(x, (scores, chosen))
        of_tokens = [tensor for tensor in kept if tensor.is_floating_point()]
        kept.clear()
        combine((rows, routing))
    assert of_tokens == []
    assert [tensor.shape for tensor in kept if tensor.shape[-1:] == (6,)] == [(18, 3, 6)]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_order_and_its_inverse_are_the_gradients_of_each_other(rows, times, dtype):
    """Also of no rows; copies are added up in the dtype in which they come."""
    torch.manual_seed(0)
    x = torch.randn(rows, 5, dtype=dtype, requires_grad=True)
    order = torch.randperm(rows * times)
    y = Reordered.apply(x, order, inverse_of(order), times)
    assert torch.equal(y, x[order // times])
    upstream = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, upstream)
    expected = torch.zeros(rows, 5, dtype=torch.float64).index_add(0, order // times, upstream.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype))


def test_what_is_placed_among_zeros_gets_its_gradient_from_there():
    """Torch's numerical gradient."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    places = torch.tensor([4, 0, 2])
    assert torch.equal(ScatteredRows.apply(x, places, 6)[places], x)
    assert torch.autograd.gradcheck(lambda x: ScatteredRows.apply(x, places, 6), x)


@pytest.mark.parametrize("bias", [False, True])
def test_one_kernel_for_all_experts_gives_the_numbers_of_a_loop(bias, monkeypatch):
    """Output and gradients of torch's grouped product, an expert without rows included; a bias is rounded apart."""
    torch.manual_seed(0)
    x, weight = torch.randn(20, 16), torch.randn(4, 24, 16)
    leaves = [each.bfloat16().requires_grad_() for each in (x, weight, torch.randn(4, 24))]
    found, upstream = {}, torch.randn(20, 24).bfloat16().float()
    for grouped in (False, True):
        monkeypatch.setattr(experts, "has_grouped", lambda _, grouped=grouped: grouped)
        given = leaves if bias else [*leaves[:2], None]
        y = grouped_product(*given, torch.tensor([5, 0, 7, 8]))
        wanted = leaves if bias else leaves[:2]
        found[grouped] = (y, *torch.autograd.grad((y.float() * upstream).sum(), wanted))
    for ours, theirs in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.016, atol=0.02 if bias else 0.0)


@pytest.mark.parametrize(
    ("dtype", "out", "taken"), [(torch.bfloat16, 24, True), (torch.float32, 24, False), (torch.bfloat16, 20, False)]
)
def test_the_kernel_is_asked_only_for_what_it_takes(dtype, out, taken, monkeypatch):
    """bf16 in rows of whole 16 bytes on a device that has it."""
    monkeypatch.setattr(experts, "has_grouped", lambda _: True)
    x, weight = torch.empty(20, 16, dtype=dtype), torch.empty(4, out, 16, dtype=dtype)
    assert experts.is_grouped(x, weight) == taken

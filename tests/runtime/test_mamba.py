"""Mamba-2 in torch against the recurrence that it is made from, token by token."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.decoder import Decoder, Part, Recompute  # noqa: E402
from simpar.runtime.initial import initial_value  # noqa: E402
from simpar.runtime.mamba import GroupNorm, scan  # noqa: E402

TINY = {
    "model_type": "nemotron_h", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "hybrid_override_pattern": "M*-", "num_attention_heads": 2, "num_key_value_heads": 1, "mamba_num_heads": 4,
    "mamba_head_dim": 4, "ssm_state_size": 6, "n_groups": 2, "chunk_size": 4,
}  # fmt: skip


def recurrence(x, size, decay, b, c):
    """The state carried from token to token."""
    copies = x.shape[2] // b.shape[2]
    b, c = (each.repeat_interleave(copies, dim=2) for each in (b, c))
    state, outputs = torch.zeros(*x.shape[:1], *x.shape[2:], b.shape[-1], dtype=x.dtype), []
    for t in range(x.shape[1]):
        fed = (size[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = state * torch.exp(size[:, t] * decay)[..., None, None] + fed
        outputs.append((state * c[:, t, :, None]).sum(-1))
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("chunk", [1, 4, 5, 16, 64])
def test_the_scan_is_the_recurrence(chunk):
    """In chunks that divide the sequence and such that do not, forward and backward."""
    made = torch.Generator().manual_seed(0)
    x, b, c = (torch.randn(2, 16, n, m, generator=made).double() for n, m in ((4, 3), (2, 5), (2, 5)))
    size = torch.rand(2, 16, 4, generator=made).double()
    decay = -torch.exp(torch.randn(4, generator=made).double())
    inputs = [each.requires_grad_() for each in (x, size, decay, b, c)]
    found, expected = scan(*inputs, chunk=chunk), recurrence(*inputs)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn(found.shape, generator=made).double()
    gradients = [torch.autograd.grad((y * weights).sum(), inputs) for y in (found, expected)]
    assert all(torch.allclose(one, other, rtol=0, atol=1e-11) for one, other in zip(*gradients, strict=True))


def test_strong_decay_over_a_long_chunk_stays_finite():
    """Exp of sums of decays underflows; no difference of them overflows, and no gradient is lost in a mask."""
    x = torch.ones(1, 256, 1, 2, requires_grad=True)
    size, b = torch.full((1, 256, 1), 4.0, requires_grad=True), torch.ones(1, 256, 1, 3)
    y = scan(x, size, torch.tensor([-16.0]), b, b, chunk=128)
    gradients = torch.autograd.grad(y.sum(), [x, size])
    assert all(torch.isfinite(each).all() for each in (y, *gradients))
    assert torch.allclose(y, torch.full_like(y, 12.0))


def test_no_layer_looks_ahead():
    """A later token changes nothing before it, in a model with a mixer, attention and an MLP."""
    graph = read(TINY, "tiny")
    model = Decoder(graph, Part(range(3), embedding=True, head=True), Place(), Recompute()).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, tuple(parameter.shape), 0))
    tokens = torch.arange(10).view(1, -1)
    changed = tokens.clone()
    changed[0, 6] = 50
    one, other = model(tokens), model(changed)
    assert torch.equal(one[:, :6], other[:, :6])
    assert not torch.allclose(one[:, 6:], other[:, 6:])


def test_mixers_begin_as_released():
    """-a between 1 and 16, steps between 0.001 and 0.1, a skip of one."""
    decay, bias, skip = (initial_value(f"layers.0.scan.{name}", (500,), 3) for name in ("decay", "step_bias", "skip"))
    assert 1 <= decay.exp().min() < 2
    assert 15 < decay.exp().max() <= 16
    size = functional.softplus(bias)
    assert 0.99e-3 < size.min() < 2e-3
    assert 0.08 < size.max() < 0.101
    assert (skip == 1).all()


def test_groups_are_normed_apart():
    """Each group of features has a mean square of one."""
    norm = GroupNorm({"mamba_groups": 2, "mamba_heads": 4, "mamba_head_dim": 3}, 0.0)
    torch.nn.init.ones_(norm.weight)
    y = norm(torch.cat((torch.randn(5, 6), 100 * torch.randn(5, 6)), dim=-1))
    assert torch.allclose(y.unflatten(-1, (2, 6)).square().mean(-1), torch.ones(5, 2), atol=1e-5)

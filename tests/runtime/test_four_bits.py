"""Matrices in 4 bits: by hand, byte for byte as bitsandbytes keeps them, and products that widen them twice."""

import pytest

torch = pytest.importorskip("torch")

from simpar.architectures.tuning import NF4_BYTES  # noqa: E402
from simpar.runtime.four_bits import BLOCK, NF4, FourBitMatrix, FourBitProduct, dynamic_map  # noqa: E402


def rounded(values):
    """A matrix in 4 bits."""
    result = FourBitMatrix(tuple(values.shape))
    result.fill(values)
    return result


def test_a_block_by_hand():
    """Multiples of the largest element by NF4's numbers come back as they were, in the places they had."""
    levels = torch.tensor([*NF4, *reversed(NF4), *NF4, *reversed(NF4)])
    matrix = rounded((3.0 * levels).view(4, 16))
    assert matrix.codes[:2].tolist() == [0x01, 0x23]
    torch.testing.assert_close(matrix.widened(torch.float32), 3.0 * levels.view(4, 16))
    near = 3.0 * levels.view(4, 16) + torch.linspace(-0.1, 0.1, 64).view(4, 16)  # half the least gap is 0.12
    near[0, 0] = -3.0
    torch.testing.assert_close(rounded(near.clamp(-3.0, 3.0)).codes, matrix.codes)


def test_numbers_of_the_dynamic_exponent():
    """Decades of the exponent, cut evenly: one number in the least, 64 in the largest, of both signs; zero and one."""
    levels = dynamic_map()
    assert len(levels) == 256
    assert levels[127] == 0.0
    assert levels[-1] == 1.0
    assert levels[128].item() == pytest.approx(0.55e-6)
    assert levels[-2].item() == pytest.approx(1.0 - 0.9 / 128)
    assert levels[0].item() == pytest.approx(-levels[-2].item())


def test_bytes_are_those_that_are_simulated():
    """4.127 bits an element; a normal matrix loses about a tenth of its standard deviation."""
    values = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
    matrix = rounded(values)
    held = sum(each.numel() * each.element_size() for each in matrix.buffers())
    assert held == pytest.approx(NF4_BYTES * values.numel(), rel=1e-4)
    error = (matrix.widened(torch.float32) - values).pow(2).mean().sqrt()
    assert 0.07 < error < 0.11


@pytest.mark.parametrize("shape", [(5, 7), (64, 64), (96, 200), (300, 257)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_bitsandbytes(shape, dtype):
    """Codes and scales of both kinds are equal; what is widened differs by roundings alone."""
    functional = pytest.importorskip("bitsandbytes.functional")
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).mul(0.02).to(dtype)
    matrix = rounded(values)
    codes, state = functional.quantize_4bit(values, quant_type="nf4", compress_statistics=True)
    assert torch.equal(matrix.codes[: codes.numel()], codes.flatten())
    torch.testing.assert_close(matrix.mean_scale, state.offset)
    if len(matrix.scales) > 1:  # the only scale is its own mean
        assert torch.equal(matrix.scales, state.absmax.flatten())
    expected = functional.dequantize_4bit(codes, state)
    torch.testing.assert_close(matrix.widened(dtype), expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=0)


def test_products_widen_it_in_both_directions():
    """The product and its gradient are those of the widened matrix, of which nothing is kept for backward."""
    matrix = rounded(torch.randn(6, BLOCK, generator=torch.Generator().manual_seed(2)))
    x = torch.randn(3, BLOCK, generator=torch.Generator().manual_seed(3), requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        out = FourBitProduct.apply(x, matrix)
    assert not kept
    wide = matrix.widened(torch.float32)
    assert torch.equal(out, x @ wide.T)
    out.backward(torch.ones_like(out))
    assert torch.equal(x.grad, torch.ones_like(out) @ wide)

"""SOAP: states and FLOP by the formulas of its paper, arXiv 2409.11321."""

from __future__ import annotations

import pytest

import simpar
from simpar.cost.optimizers import Matrix, products_time_s, state_bytes
from simpar.plan.choices.numerics import DecidedNumerics
from simpar.plan.optimizers import OPTIMIZERS
from simpar.simulation import make_job

SOAP = OPTIMIZERS["soap"].by_matrix
KERNELS = make_job(
    "gpt2", simpar.Cluster("dgx-h100"), simpar.Plan(), simpar.Training(seq_len=256, global_batch=8)
).kernels


@pytest.mark.parametrize(("r", "c"), [(768, 768), (4096, 1024), (10_000, 512)])
def test_states_of_a_matrix(r, c):
    """2 r^2 + 2 c^2 + 2 r c values, moments included (the paper's 2 m^2 + 2 n^2 + 3 m n counts the gradient)."""
    each = OPTIMIZERS["soap"]
    assert float(SOAP.fp32_values(r, c)) + each.moments * r * c == 2 * r**2 + 2 * c**2 + 2 * r * c


def test_a_large_side_has_no_factor():
    """Of 14,336 x 4,096 the side of 4,096 alone is kept and turned."""
    assert float(SOAP.fp32_values(14_336, 4096)) == 2 * 4096**2
    assert {shape for work in SOAP.work(14_336, 4096) for shape in work.products} == {
        (4096, 14_336, 4096), (4096, 4096, 14_336), (4096, 4096, 4096)
    }  # fmt: skip


def test_flop_of_a_step():
    """Six turns, two factors, and every tenth step a product and a QR decomposition of each side."""
    r, c = 1024, 256
    flop = sum(2 * m * n * k * work.pieces * work.repeated for work in SOAP.work(r, c) for m, n, k in work.products)
    assert flop == pytest.approx(3 * 2 * (r * r * c + r * c * c) + 2 * (r * r * c + r * c * c) + 0.2 * (r**3 + c**3))
    turned = sum(work.decomposition_flop for work in SOAP.work(r, c))
    assert turned == pytest.approx(8 / 3 * (r**3 + c**3) / 10)


def test_states_of_a_model():
    """Of GPT-2, whose matrices inside layers are 768 by 768, 2,304 and 3,072, in bytes beside AdamW's."""
    graph = simpar.Model("gpt2")
    blocks = [graph.embedding, *(graph.blocks[name] for name in graph.layers), graph.head]
    soap, adamw = (
        sum(float(sum(state_bytes(block, graph.dims, DecidedNumerics(optimizer=name)))) for block in blocks)
        for name in ("soap", "adamw")
    )
    h, f = 768, 3072
    assert soap - adamw == 12 * 4 * 2 * (4 * (h * h + h * h) + 2 * (h * h + f * f))


def test_it_takes_longer_than_shampoo_and_less_when_shared():
    """Its bases turn every tenth step where Shampoo's roots are every hundredth, and whole matrices are shared."""

    def of(name, ranks=1):
        return products_time_s([Matrix(4096, 4096, 8)], (ranks, 1), DecidedNumerics(optimizer=name), KERNELS)

    assert of("soap") > of("shampoo") > of("muon") > of("adamw") == 0
    assert of("soap", 4) == pytest.approx(of("soap") / 4)

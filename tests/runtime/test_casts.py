"""Weights cast once a step: which of them share a copy, and that no two are taken for one."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from simpar.runtime.casts import cast, cast_once  # noqa: E402

BF16 = torch.bfloat16


def test_one_copy_serves_all_uses_inside_alone():
    """Gradients of all uses come back in the parameter's dtype; outside, and in that dtype, nothing is shared."""
    weight = nn.Parameter(torch.ones(3))
    with cast_once():
        first, second = cast(weight, BF16), cast(weight, BF16)
        assert first is second
        assert cast(weight, torch.float32) is weight
        (first.sum() + second.sum()).backward()
    assert weight.grad.dtype == torch.float32
    assert weight.grad.tolist() == [2.0] * 3
    assert cast(weight, BF16) is not cast(weight, BF16)


def test_the_next_step_casts_what_the_update_left():
    """No copy outlives the step that it was made for."""
    weight = nn.Parameter(torch.ones(3))
    found = []
    for _ in range(2):
        with cast_once():
            found.append(cast(weight, BF16).tolist())
        with torch.no_grad():
            weight.add_(1.0)
    assert found == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("local", [False, True], ids=["parameters", "local parts"])
def test_what_takes_the_place_of_another_in_memory_has_a_copy_of_its_own(local):
    """Local parts of a DTensor pass for parameters and live for one use: another may have the identity of the last."""
    found = []
    with cast_once():
        for number in range(64):
            weight = nn.Parameter(torch.full((2,), float(number)))
            if local:
                weight = weight.view(2)
                weight._is_param = True
            found.append(cast(weight, BF16))
            del weight
    assert [each.tolist() for each in found] == [[float(number)] * 2 for number in range(64)]

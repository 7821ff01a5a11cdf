"""The textbook example of gradient accumulation, on one process and on replicas: y = x1 w1 + x2 w2 + b."""

import pytest

torch = pytest.importorskip("torch")

from simpar.runtime.one_process import ReplicatedModule  # noqa: E402

SAMPLES = torch.tensor([[6.0, 2.0], [5.0, 2.0]], dtype=torch.float64)
TARGETS = torch.tensor([[15.0], [12.0]], dtype=torch.float64)
FIRST, ACCUMULATED, UPDATED = -115.836, -190.096, 0.9631


def textbook() -> torch.nn.Linear:
    """Weights (0.773, 0.321), b = 0.067."""
    model = torch.nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.773, 0.321]]))
        model.bias.fill_(0.067)
    return model


def squared(outputs, targets):
    """The sum of squared errors: a batch's gradient is the sum of its samples'."""
    return ((targets - outputs) ** 2).sum()


def test_gradients_accumulate_sample_by_sample():
    """The first sample gives -115.836 for w1, both -190.096; a step of 0.001 moves it to 0.9631."""
    model = textbook()
    squared(model(SAMPLES[:1]), TARGETS[:1]).backward()
    assert model.weight.grad[0, 0].item() == pytest.approx(FIRST)
    squared(model(SAMPLES[1:]), TARGETS[1:]).backward()
    assert model.weight.grad[0, 0].item() == pytest.approx(ACCUMULATED)
    torch.optim.SGD(model.parameters(), lr=1e-3).step()
    assert model.weight[0, 0].item() == pytest.approx(UPDATED, abs=5e-5)


def test_replicas_of_one_process_add_up_the_same_gradient():
    """A sample on each of two replicas gives what accumulation over both gives."""
    model = textbook()
    replicas = ReplicatedModule(model, 2, torch.device("cpu"))
    squared(replicas(SAMPLES), TARGETS).backward()
    assert model.weight.grad[0, 0].item() == pytest.approx(ACCUMULATED)

"""A model and targets that plans are checked against."""

from __future__ import annotations

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.plan.choices.target import Workload


@pytest.fixture(scope="session")
def target():
    """``target(world_size)``: Llama 3 8B (32 layers, 32 heads, 8 key-value heads) on nodes of 8 devices."""

    def make(world_size=64, *, seq_len=4096, global_batch=256):
        training = Training(seq_len=seq_len, global_batch=global_batch)
        return Workload(load_model("llama-3-8b"), training, world_size, 8)

    return make

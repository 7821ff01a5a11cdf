"""What is timed around collectives is what a real run does around them."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.calibrate.stopwatch import Members  # noqa: E402
from simpar.calibrate.wrappers import _layer  # noqa: E402
from simpar.runtime import tensor_parallel  # noqa: E402
from simpar.runtime.attention import Place  # noqa: E402
from simpar.runtime.decoder import Decoder, Part, Recompute  # noqa: E402
from simpar.runtime.operators import CastingLinear  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
LLAMA = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture
def mesh():
    """The first of two tensor-parallel ranks, whose messages go nowhere."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def collectives(work):
    """How often a piece of work calls each collective."""
    from torch.distributed.tensor.debug import CommDebugMode  # with most of torch's compiler

    with CommDebugMode() as counted:
        work()
    return {str(name): number for name, number in counted.get_comm_counts().items() if number}


def test_the_split_layer_talks_as_a_layer_of_a_run_does(mesh):
    """As many products with as many gathers and reductions, so that dispatch for one of them is that of a run."""
    works = _layer(mesh, Members(None, 2), torch.device("cpu"))
    part = Part(range(1), embedding=False, head=False)
    model = Decoder(read(LLAMA, "tiny"), part, Place(sequence_ranks=2), Recompute())
    products = sum(isinstance(module, CastingLinear) for module in model.modules())
    tensor_parallel.apply(model, mesh, sequence_parallel=True)
    x = torch.randn(1, 8, 32, requires_grad=True)
    in_a_run = collectives(lambda: model(x).sum().backward())
    assert products == 7
    assert sum(in_a_run.values()) == 8
    assert collectives(works["split layer"]) == in_a_run
    assert collectives(works["plain layer"]) == {}

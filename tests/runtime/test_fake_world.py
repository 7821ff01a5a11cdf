"""What every rank of eight does on devices, driven in one process: groups that talk to nobody, kernels stood in for."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from simpar.architectures.hf_config import read  # noqa: E402
from simpar.architectures.training import Training  # noqa: E402
from simpar.plan.plan import Plan  # noqa: E402
from simpar.runtime import banded  # noqa: E402
from simpar.runtime.decoder import Recompute  # noqa: E402
from simpar.runtime.job import Learning  # noqa: E402
from simpar.runtime.measure import Clock  # noqa: E402
from simpar.runtime.model import Blueprint, Dtypes  # noqa: E402
from simpar.runtime.prepare import prepare  # noqa: E402
from simpar.runtime.ranks import ranks_of  # noqa: E402
from tests.gate import some  # noqa: E402
from tests.runtime.test_banded import flash_backward, flash_forward  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
RANKS, RANK = 8, 3
CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
TRAINING = Training(seq_len=16, global_batch=16)


@pytest.fixture
def world():
    """Rank 3 of eight, whose messages go nowhere and arrive at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=RANK, world_size=RANKS)
    yield
    dist.destroy_process_group()


@pytest.fixture
def calls(monkeypatch):
    """How often the kernels of CUDA were asked for; stand-ins compute in their place."""
    found = {"forward": 0, "backward": 0}

    def counted(name, function):
        def call(*arguments, **options):
            found[name] += 1
            wide = [x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arguments]
            narrow = arguments[0].dtype
            return tuple(x if name == "forward" and x.ndim == 3 else x.to(narrow) for x in function(*wide, **options))

        return call

    monkeypatch.setattr(banded, "is_fused", lambda _: True)
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", counted("forward", flash_forward))
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_backward", counted("backward", flash_backward))
    return found


@pytest.mark.parametrize(
    ("values", "share"),
    some(
        [
            ({"cp": 2, "tp": 2, "dp": 2, "zero": 3, "sequence_parallel": True}, 8),
            ({"cp": 2, "dp": 4, "hsdp": 2, "zero": 2, "recompute": "full"}, 4),
            ({"cp": 4, "dp": 2, "zero": 3, "cp_method": "all_gather"}, 8), ({"cp": 2, "tp": 2, "dp": 2}, 2),
        ],
        2,
        tuples=True,
    ),
)  # fmt: skip
def test_a_step_of_one_rank_runs_in_kernels(world, calls, values, share):
    """Built, one step taken: every gradient of the shape of its shard, states as many as the rank has to keep."""
    from simpar.runtime.assemble import make_engine  # torch.jit warns where this is imported

    graph = read({**CONFIG, "sliding_window": 6, "model_type": "mistral"}, "tiny")
    prepared = prepare(Plan(precision="bf16", micro_batch=1, **values), graph, TRAINING, RANKS)
    plan = prepared.plan
    ranks = ranks_of(plan, RANK, torch.device("cpu"), prepared.strategy.replicas)
    recompute = Recompute(plan.memory.recompute, prepared.selective)
    blueprint = Blueprint(graph, plan, prepared.strategy, Dtypes.of(plan), recompute)
    engine = make_engine(blueprint, TRAINING, Learning(), prepared.schedule, ranks)
    tokens = torch.zeros(TRAINING.global_batch // plan.mesh.dp, TRAINING.seq_len // plan.mesh.cp, dtype=torch.int64)
    engine.forward_backward(tokens, tokens)
    assert calls["forward"] > 0
    assert calls["backward"] > 0
    assert all(each.gradient().shape == each.local.shape for each in engine.owned)
    engine.update.step(Clock(torch.device("cpu")))
    kept = sum(each.local.numel() for each in engine.owned)
    moments = sum(
        value.numel()
        for optimizer in engine.update.optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if value.ndim
    )
    assert moments == 2 * kept
    assert kept == pytest.approx(sum(weight_sizes(graph)) / share, rel=0.02)


def weight_sizes(graph):
    """Numbers in every parameter of the whole model."""
    from simpar.runtime.attention import Place
    from simpar.runtime.decoder import Decoder, Part

    with torch.device("meta"):
        whole = Decoder(graph, Part(range(len(graph.layers)), embedding=True, head=True), Place(), Recompute())
    return [parameter.numel() for parameter in whole.parameters()]

"""The script for SageMaker's library trains: with a stand-in for the library, on CPUs."""

import json
import math
import os
import re
import subprocess
import sys

import pytest

from simpar import cli

STAND_IN = """
import runpy, sys, types

import torch
import torch.distributed.fsdp as fsdp
from torch.distributed.fsdp import ShardingStrategy

from simpar.runtime.worker import leave

library = types.ModuleType("torch.sagemaker")  # its container is not public
library.init, library.transform = lambda: None, lambda model: model
sys.modules["torch.sagemaker"] = torch.sagemaker = library
begin = torch.distributed.init_process_group
torch.distributed.init_process_group = lambda backend: begin("gloo")
torch.cuda.set_device = lambda device: None
torch.cuda.current_device = lambda: torch.device("cpu")
ONE_GROUP = {
    ShardingStrategy.HYBRID_SHARD: ShardingStrategy.FULL_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2: ShardingStrategy.SHARD_GRAD_OP,
}


class OneGroup(fsdp.FullyShardedDataParallel):  # the library makes the groups of the hybrid
    def __init__(self, *given, sharding_strategy, **more):
        super().__init__(*given, sharding_strategy=ONE_GROUP[sharding_strategy], **more)


fsdp.FullyShardedDataParallel = OneGroup
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
leave(0)
"""
CONFIG = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("zero", "recompute"), [(3, "full"), (2, "none")])
def test_the_script_trains_with_a_stand_in(tmp_path, monkeypatch, zero, recompute):
    """Two ranks, sharded and recomputed as planned; the first loss is that of a model that knows nothing."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIG))
    shape = ["--hardware", "dgx-h100", "--seq-len", "16", "--global-batch", "16", "--micro-batch", "1"]
    layout = ["--zero", str(zero), "--recompute", recompute]
    given = ["export", "--model", "tiny.json", *shape, *layout, "--to", "sagemaker", "-o", "out"]
    assert cli.run(given) == 0
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*start, "stand_in.py", "out/train.py"], capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "STEPS": "3", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = [float(each) for each in re.findall(r"step \d+: loss (\S+),", done.stdout)]
    assert len(losses) == 3
    assert losses[0] == pytest.approx(math.log(CONFIG["vocab_size"]), rel=0.05)
    assert all(map(math.isfinite, losses))

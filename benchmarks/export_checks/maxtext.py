"""MaxText's own pyconfig reads the config over its base and its model's, on eight devices of a CPU.

Its wheel asks for Python 3.12: unpack it (``pip download --no-deps --python-version 3.12 --only-binary=:all: maxtext``)
and put the folder on PYTHONPATH, with jax and what it imports installed; XLA_FLAGS and JAX_PLATFORMS are set here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ruamel.yaml import YAML

from export_checks.transformers import written
from simpar.architectures.catalogue import load_model
from simpar.frameworks import Exported
from simpar.frameworks.maxtext import ROWS

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
SIZES = {
    "base_emb_dim": "hidden", "base_num_query_heads": "heads", "base_num_kv_heads": "kv_heads",
    "num_experts": "num_experts",
}  # fmt: skip


def check(exported: Exported) -> None:
    """Initialise the config, which validates it; the model's sizes and the batch are the plan's."""
    from check_exports import TRAINING
    from maxtext.configs import pyconfig

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "maxtext.yml")
        path.write_text(exported.files["maxtext.yml"])
        found = pyconfig.initialize(["train", str(path), "hardware=cpu", "skip_jax_distributed_system=True"])
    plan = exported.plan
    graph = load_model(str(plan.model))
    layers = sum(kind not in graph.auxiliary for kind in graph.layers)
    each = 2 if str(plan.model).startswith("gemma-2") else 1  # a local and a global layer are one there
    assert found.num_decoder_layers * each == layers, f"{found.num_decoder_layers} layers of {layers}"
    for theirs, ours in SIZES.items():
        size = graph.dims.get(ours) or 1
        assert getattr(found, theirs) == size, f"{theirs} {getattr(found, theirs)} of {size}"
    rows = ROWS.get(str(plan.model), graph.dims["vocab"])
    assert found.vocab_size == rows, f"a table of {found.vocab_size} rows, not {rows}"
    sequences = int(found.global_batch_size_to_train_on)
    assert sequences == TRAINING.global_batch, f"{sequences} sequences"


def table() -> str:
    """Keys of the base config."""
    import maxtext

    base = Path(maxtext.__file__).parent / "configs" / "base.yml"
    return written("MaxText 0.2.5", ["base_config", *YAML(typ="safe", pure=True).load(base.read_text())])

"""Axolotl's own schema reads the YAML; it ignores what it does not know, so unknown names are faults here."""

from __future__ import annotations

import json

from ruamel.yaml import YAML

from export_checks.transformers import written
from simpar.frameworks import Exported


def check(exported: Exported) -> None:
    """Validate the config as ``axolotl.cli.train`` does before it looks for devices."""
    from axolotl.utils.schemas.config import AxolotlInputConfig

    given = YAML(typ="safe", pure=True).load(exported.files["axolotl.yaml"])
    unknown = set(given) - set(AxolotlInputConfig.model_fields)
    assert not unknown, f"unknown: {sorted(unknown)}"
    found, plan = AxolotlInputConfig(**given), json.loads(exported.files["plan.json"])
    sharding = type(found).model_fields["fsdp_config"].annotation.__args__[0].model_fields
    assert set(given.get("fsdp_config", {})) <= set(sharding)
    assert found.micro_batch_size == plan["micro_batch"]
    assert (found.fsdp_config is not None) == (plan["data_parallel"]["zero"] >= 2)
    if found.fsdp_config is not None:
        assert found.fsdp_config.activation_checkpointing == (plan["memory"]["recompute"] == "full")
        assert (found.dp_replicate_size or 1) * found.dp_shard_size == plan["mesh"]["dp"]


def table() -> str:
    """Fields of the schema, and those of ``fsdp_config`` by dotted name."""
    from axolotl.utils.schemas.config import AxolotlInputConfig

    fields = AxolotlInputConfig.model_fields
    sharding = fields["fsdp_config"].annotation.__args__[0].model_fields
    return written("Axolotl 0.19.0", [*fields, *(f"fsdp_config.{name}" for name in sharding)])

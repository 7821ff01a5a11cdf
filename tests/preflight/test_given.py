"""Public launches as they are started, with the files that they name, and what must come out of each."""

import json
from pathlib import Path

import pytest
import yaml

from simpar import files
from simpar.frameworks import load_reader
from simpar.preflight.given import given_words
from simpar.preflight.launcher import without_launchers

LAUNCHES = {entry["name"]: entry for entry in files.load(Path(__file__).parent / "launches.yaml").data}


def given(entry: dict, folder: Path) -> object:
    """What is read of an entry: its command as a script, beside the files that it names."""
    for name, data in entry.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        told = yaml.safe_dump(data) if path.suffix in (".yaml", ".yml") else json.dumps(data)
        path.write_text(data if isinstance(data, str) else told)
    script = folder / "job.sh"
    script.write_text(f"{entry['run']}\n")
    return given_words([str(script)])


@pytest.mark.parametrize("name", LAUNCHES)
def test_what_a_public_launch_starts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, devices, sharding, batch, bits and adapters; what is assumed, and the words that decide."""
    monkeypatch.chdir(tmp_path)
    entry = LAUNCHES[name]
    result, expected = given(entry, tmp_path), entry["gives"]
    plan, launch = result.found.plan, result.launch
    devices = launch.world_size or plan.world_size or (1 if launch.is_single else None)
    words, _ = without_launchers(result.found.words)
    account = load_reader(result.text.target).words.sort(words.used, words.unread)
    values = {
        **plan.flat_values(), **(plan.training or {}), "model": plan.model, "stack": plan.stack, "devices": devices,
        "from": result.text.target, "assumed": sorted(each.key for each in result.found.assumed),
        "targets": len(plan.tuning.lora_targets), "deciding": sorted(account.deciding),
    }  # fmt: skip
    if devices:
        values["global_batch"] = result.found.global_batch(devices)
    assert {key: values.get(key) for key in expected} == expected
    assert bool(account.deciding) == ("deciding" in expected)
    assert (plan.tuning.lora_rank is None) == ("lora_rank" not in expected)
    assert not account.unknown


def test_launches_are_of_many_front_ends() -> None:
    """Each with the address that its facts are from."""
    assert len(LAUNCHES) >= 35
    assert all(entry["source"].startswith("github.com/") for entry in LAUNCHES.values())
    readers = {entry["gives"]["from"] for entry in LAUNCHES.values()}
    assert readers >= {"transformers", "trl", "llama-factory", "axolotl", "unsloth", "torchtune"}


def test_megatron_s_file_of_arguments_is_all_of_them(tmp_path, monkeypatch):
    """``--yaml-cfg`` replaces whatever else a command says."""
    monkeypatch.chdir(tmp_path)
    sizes = "language_model: {num_layers: 24, hidden_size: 1024, num_attention_heads: 16}\n"
    shape = "seq_length: 2048\nmax_position_embeddings: 2048\nmicro_batch_size: 2\nglobal_batch_size: 64\nbf16: true\n"
    (tmp_path / "m.yaml").write_text(f"{sizes}model_parallel: {{tensor_model_parallel_size: 2}}\n{shape}")
    given = given_words(["torchrun --nproc-per-node 8 pretrain_gpt.py --yaml-cfg m.yaml --micro-batch-size 4"])
    plan = given.found.plan
    assert (given.text.target, plan.model, plan.mesh.tp, plan.micro_batch) == ("megatron", "gpt3-350m", 2, 2)
    assert given.launch.per_node == 8

"""Files that the page gives and takes."""

import base64
import io
import json
import re
import zipfile

import pytest

from simpar.architectures.catalogue import config_of
from simpar.scenario import load_scenario

CODE = "{model: 'os:getcwd', cluster: {hardware: dgx-h100}, training: {seq_len: 64, global_batch: 8}}"
ON_NODES = {
    "model": "llama-3-8b",
    "cluster": {"hardware": "dgx-h100", "nodes": 1},
    "training": {"seq_len": 4096, "global_batch": 16},
    "plan": {"tp": 2, "zero": 1},
}


def test_the_yaml_is_the_state(client, state, tmp_path):
    """Simulating the file is simulating the page."""
    made = client.post("/api/yaml", json={"state": state}).json()["file"]
    path = tmp_path / made["name"]
    path.write_text(made["text"])
    assert load_scenario(path).plan.mesh.pp == 2


def test_an_export_is_that_of_the_command(client, tmp_path):
    """The archive has the files of ``simpar export``, and says how the plan does under the target's stack."""
    from simpar.frameworks import draft
    from simpar.frameworks.source import SourceFlags, load_source

    made = client.post("/api/export", json={"state": ON_NODES, "target": "megatron", "lossy": True}).json()["file"]
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(made["base64"])))
    path = tmp_path / "scenario.yaml"
    path.write_text(client.post("/api/yaml", json={"state": ON_NODES}).json()["file"]["text"])
    source = load_source(str(path), SourceFlags())
    known = draft(source.plan, source.graph, source.training, "megatron", devices_per_node=8, lossy=True)
    figures = re.search(r"Predicted under megatron: (.* reserved at the peak)", archive.read("README.md").decode())
    files = known.written(figures[1], made["notes"][-1]).files
    assert {name: archive.read(name).decode() for name in archive.namelist()} == dict(files)
    assert "a step" in made["notes"][-1]


@pytest.mark.parametrize(
    ("address", "body", "words"),
    [
        ("export", {"state": ON_NODES, "target": "mega"}, "did you mean 'megatron'"),
        ("export", {"state": ON_NODES, "target": None}, "unknown target"),
        ("export", {"state": {**ON_NODES, "plan": {"schedule": "zb-v", "pp": 4}}, "target": "deepspeed"}, "deepspeed"),
        ("open", {"name": "a.yaml", "text": "model: ["}, "a.yaml:1: not valid YAML"),
        ("open", {"name": "a.json", "text": "{"}, "a.json:1: not valid JSON"),
        ("open", {"name": "a.yaml", "text": "{model: mine.yaml, cluster: {hardware: dgx-h100}, training: "
                  "{seq_len: 4096, global_batch: 8}}"}, "is not shipped"),
        ("open", {"name": "a.yaml", "text": CODE}, "is code, which a file may not run"),
        ("open", {"name": 1}, "a file is a name and a text"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_is_one_line(client, address, body, words):
    """With the name that the user knows, never that of a temporary one."""
    response = client.post(f"/api/{address}", json=body)
    assert response.status_code == 400
    assert words in response.json()["error"]
    assert "/tmp" not in response.json()["error"]


def test_the_config_of_a_model_is_opened(client, state):
    """It takes the place of the model; all else stays as it is shown."""
    config = {**config_of("llama-3-8b"), "num_hidden_layers": 16, "_name_or_path": "half"}
    config.pop("name", None)
    body = {"state": state, "name": "config.json", "text": json.dumps(config)}
    opened = client.post("/api/open", json=body).json()["state"]
    assert opened["model"]["name"] == "half"
    assert {**opened, "model": None} == {**state, "model": None}
    bad = {**body, "text": json.dumps({**config, "hidden_size": -1})}
    assert "hidden_size" in client.post("/api/open", json=bad).json()["error"]


def test_a_scenario_is_opened(client, state):
    """Its state comes back."""
    text = client.post("/api/yaml", json={"state": state}).json()["file"]["text"]
    assert client.post("/api/open", json={"name": "mine.yaml", "text": text}).json()["state"]["plan"] == {"pp": 2}

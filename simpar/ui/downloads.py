"""Files to download and to open: scenarios as YAML, exports as archives."""

import base64
import io
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks import Exported, draft
from simpar.frameworks.source import SourceFlags, load_source
from simpar.plain import printable
from simpar.posttraining.exports import TARGETS as OF_POST_TRAINING
from simpar.posttraining.exports import export_post_training
from simpar.report.words import memory_state, step_and_memory
from simpar.scenario import Scenario, load_scenario
from simpar.simulation import simulate
from simpar.translate import Files
from simpar.ui.state import SOURCE, Allowed, as_state, ask, read_state
from simpar.units import format_seconds

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in an archive: equal files give equal bytes


def as_yaml(scenario: Scenario) -> str:
    """A state as a scenario file for any command."""
    from ruamel.yaml import YAML

    writer, stream = YAML(), io.StringIO()
    writer.dump(as_state(scenario), stream)
    return stream.getvalue()


def export_archive(scenario: Scenario, target: object, *, lossy: bool) -> dict[str, Any]:
    """The files of another framework as an archive, with losses and notes. Raises UserError."""
    if target in OF_POST_TRAINING:
        return _download(str(target), export_post_training(scenario, str(target), lossy=lossy))
    scenario.require_update()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.yaml"
        files.write_atomic(path, as_yaml(scenario))
        source = load_source(str(path), SourceFlags())
    job = (source.plan, source.graph, source.training, str(target))
    drafted = draft(*job, devices_per_node=source.devices_per_node, lossy=lossy)
    there = simulate(
        source.graph,
        scenario.build_cluster(),
        drafted.plan,
        source.training,
        perturbation=scenario.perturb(),
        with_timeline=False,
    )
    said = f"Under {drafted.plan.stack}, the stack of {target}, the plan {memory_state(there, 'does not fit')}, "
    made = drafted.written(step_and_memory(there), f"{said}{format_seconds(there.step_time_s)} a step.")
    return _download(str(target), made)


def _model_of(data: object, shown: str) -> dict[str, Any] | None:
    """The config of a model as a scenario states it, named by its file if by nothing else; None for other files."""
    if not isinstance(data, Mapping) or "model" in data or "model_type" not in data:
        return None
    name = data.get("name") or data.get("_name_or_path") or Path(shown).stem
    return {**data, "name": printable(str(name))}


def _download(target: str, made: Exported | Files) -> dict[str, Any]:
    """Files as an archive, with what is lost and noted."""
    return {
        "name": f"{target}.zip",
        "base64": base64.b64encode(_archive(made.files)).decode(),
        "lost": [str(loss) for loss in made.lost],
        "notes": list(made.notes),
    }


def _archive(texts: Any) -> bytes:
    """Files as one archive; scripts are executable."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(texts.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = (0o755 if text.startswith("#!") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return stream.getvalue()


def open_document(name: object, text: object, allowed: Allowed, shown_state: object = None) -> dict[str, Any]:
    """The state of a scenario, plan or result that a user opens; of a model's config.json, ``shown_state`` with it.

    Raises UserError.
    """
    if not isinstance(name, str) or not isinstance(text, str):
        raise UserError(f"{SOURCE}: a file is a name and a text")
    shown = printable(Path(name).name)[:100]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("opened.json" if name.endswith(".json") else "opened.yaml")
        files.write_atomic(path, text)
        try:
            model = _model_of(files.load(path).data, shown)
            before = shown_state if isinstance(shown_state, Mapping) else {}
            state = {**before, "model": model} if model else as_state(load_scenario(path))
            ask(read_state(state, allowed))
        except UserError as error:
            words = str(error).replace(str(path), shown)
            raise UserError(words.replace(f"{folder}{os.sep}", "")) from None
    return state

"""Calibrate this machine, predict layouts of 1, 2 and 4 ranks, run them for real, and show the errors.

Usage: python benchmarks/calibrated_prediction.py [--folder DIR] [--only NAME] [--json FILE]

The folder keeps profiles and runs: what is there is not measured again. Nothing of a layout enters its prediction:
profiles come from kernels, collectives and steps of single processes. Best on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from scipy.stats import kendalltau, spearmanr

STEPS, WARMUP = 4, 1


@dataclass(frozen=True)
class Layout:
    """A run: a model of (hidden, layers), its batch, and the flags of a plan."""

    name: str
    ranks: int
    model: tuple[int, int]
    flags: dict[str, Any] = field(default_factory=dict)
    batch: int = 8
    micro_batch: int = 2


SMALL, LARGE = (512, 8), (768, 8)
LAYOUTS = (
    Layout("1 rank", 1, SMALL),
    Layout("1 rank, recompute", 1, SMALL, {"recompute": "full"}),
    Layout("dp 2", 2, SMALL, {"dp": 2}),
    Layout("dp 2, large", 2, LARGE, {"dp": 2}),
    Layout("dp 2, zero 1", 2, SMALL, {"dp": 2, "zero": 1}),
    Layout("dp 2, zero 2", 2, SMALL, {"dp": 2, "zero": 2}),
    Layout("dp 2, zero 3", 2, LARGE, {"dp": 2, "zero": 3}, micro_batch=4),
    Layout("tp 2", 2, LARGE, {"tp": 2}),
    Layout("pp 2, gpipe", 2, SMALL, {"pp": 2, "schedule": "gpipe"}),
    Layout("pp 2, 1f1b", 2, LARGE, {"pp": 2, "schedule": "1f1b"}),
    Layout("pp 2, interleaved", 2, SMALL, {"pp": 2, "vpp": 2, "schedule": "interleaved"}),
    Layout("dp 4", 4, SMALL, {"dp": 4}),
    Layout("dp 4, zero 3", 4, SMALL, {"dp": 4, "zero": 3}),
    Layout("tp 2, dp 2", 4, SMALL, {"tp": 2, "dp": 2}),
    Layout("tp 2, pp 2", 4, LARGE, {"tp": 2, "pp": 2, "schedule": "1f1b"}),
    Layout("pp 2, dp 2", 4, SMALL, {"pp": 2, "dp": 2, "schedule": "1f1b"}),
    Layout("pp 4, gpipe", 4, SMALL, {"pp": 4, "schedule": "gpipe"}),
    Layout("pp 4, 1f1b", 4, LARGE, {"pp": 4, "schedule": "1f1b"}),
    Layout("pp 4, naive", 4, SMALL, {"pp": 4, "schedule": "naive"}),
)


def main() -> int:
    """Calibrate, predict, run, compare."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("calibrated"))
    arguments.add_argument("--only", help="layouts whose name contains this")
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    given.folder.mkdir(exist_ok=True)
    wanted = [each for each in LAYOUTS if not given.only or given.only in each.name]
    rows = [_row(each, given.folder) for each in wanted]
    print(f"{'layout':<20}{'predicted':>12}{'measured':>12}{'error':>9}")
    for row in rows:
        print(f"{row['name']:<20}{row['predicted_s']:>10.3f} s{row['measured_s']:>10.3f} s{row['error']:>9.1%}")
    summary = _summary(rows)
    print("  ".join(f"{name} {value:.3f}" for name, value in summary.items()))
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, **summary}, indent=2) + "\n")
    return 0


def _summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    errors = sorted(abs(row["error"]) for row in rows)
    times = [[row[name] for row in rows] for name in ("predicted_s", "measured_s")]
    return {
        "layouts": float(len(rows)),
        "median absolute error": median(errors),
        "largest": errors[-1],
        "Spearman": float(spearmanr(*times).statistic),
        "Kendall": float(kendalltau(*times).statistic),
    }


def _simpar(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "simpar", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"simpar {' '.join(arguments)}\n{done.stderr}")


def _calibrated(ranks: int, folder: Path) -> Path:
    """The profile of this machine for so many ranks, measured where it is not there."""
    profile = folder / f"here-{ranks}.yaml"
    if not profile.exists():
        _simpar("calibrate", "-o", str(profile), "--ranks", str(ranks))
    return profile


def _row(layout: Layout, folder: Path) -> dict[str, Any]:
    """Predicted from the profile as it is now, measured as it was the first time."""
    profile = _calibrated(layout.ranks, folder)
    scenario = _scenario(layout, folder)
    stack = str(profile.with_suffix(".stack.yaml"))
    plan = [str(scenario), "--hardware", str(profile), "--stack", stack]
    run = folder / "runs" / layout.name.replace(" ", "-").replace(",", "")
    if not (run / "report.json").exists():
        run.mkdir(parents=True, exist_ok=True)
        steps = ["--steps", str(STEPS), "--warmup", str(WARMUP), "--nproc", str(layout.ranks)]
        _simpar("run", *plan, *steps, "--learning-rate", "1e-4", "-o", str(run))
    result = run / "predicted.json"
    _simpar("simulate", *plan, "--json", str(result))
    measured = json.loads((run / "report.json").read_text())["measured"]["step_time_s"]
    predicted = json.loads(result.read_text())["step_time_s"]
    return {
        "name": layout.name, "ranks": layout.ranks, "predicted_s": predicted, "measured_s": measured,
        "error": predicted / measured - 1,
    }  # fmt: skip


def _scenario(layout: Layout, folder: Path) -> Path:
    """The layout as a file: a decoder with 8,192 tokens of vocabulary on sequences of 256."""
    hidden, layers = layout.model
    model = {
        "model_type": "llama", "name": f"llama-{hidden}x{layers}", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64, "num_key_value_heads": hidden // 128,
        "intermediate_size": hidden * 11 // 4, "vocab_size": 8192, "max_position_embeddings": 4096,
    }  # fmt: skip
    path = folder / f"{layout.name.replace(' ', '-').replace(',', '')}.json"
    plan = {"precision": "fp32", "micro_batch": layout.micro_batch, **layout.flags}
    if layout.ranks == 1:
        plan["dp"] = 1
    scenario = {"model": model, "training": {"seq_len": 256, "global_batch": layout.batch}, "plan": plan}
    path.write_text(json.dumps(scenario, indent=2) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())

"""The best layout by model size and number of nodes, with MFU and memory, as one picture.

Usage: python benchmarks/heatmap.py [--jobs N] [--nodes 1,2,4,...] [--models NAME,...] [GRID.json]

The published experiment of this kind ("The Ultra-Scale Playbook", Hugging Face 2025, thousands of measured runs) asks
the same question: models of 1 to 80 billion parameters on 1 to 64 nodes of 8 H100, 4,096 tokens a sequence, about a
million tokens a step. Here every cell is a certified search of the uniform space. The grid is kept in heatmap.json as
``simpar search --over`` writes it; with GRID.json a kept one is drawn again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import simpar
from simpar.files import write_atomic
from simpar.planner.problem import Constraints, make_problem
from simpar.planner.sweep import Cell, sweep
from simpar.report.grid import load_grid, save_grid_plot
from simpar.workers import Workers

MODELS = "llama-3.2-1b,llama-3.2-3b,llama-3-8b,llama-3-70b"
NODES = "1,2,4,8,16,32,64"
HARDWARE = "dgx-h100"
TRAINING = simpar.Training(seq_len=4096, global_batch=256)  # 1,048,576 tokens
ANY_PLAN = Constraints(portable="any")
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "heatmap.png"


def search_all(models: list[str], nodes: list[int], jobs: int) -> dict[str, Any]:
    """The grid: one certified search a cell."""
    cells = []
    for name in models:
        graph = simpar.Model(name)
        for count in nodes:
            problem = make_problem(
                graph, simpar.Cluster(HARDWARE, nodes=count), TRAINING, objective="time", constraints=ANY_PLAN
            )
            cells.append(Cell({"model": name, "nodes": count}, problem))
    found = sweep(cells, workers=Workers(jobs), done=lambda count: print(f"{count} of {len(cells)}", flush=True))
    title = f"{HARDWARE}, {TRAINING.global_batch} x {TRAINING.seq_len} tokens"
    return {"axes": ["model", "nodes"], "cells": found, "title": title, "grid_schema_version": 1}


def main() -> None:
    """Search, keep the grid and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("grid", nargs="?", help="a kept grid to draw again")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--nodes", default=NODES)
    parser.add_argument("--models", default=MODELS)
    wanted = parser.parse_args()
    grid = load_grid(wanted.grid) if wanted.grid else None
    if grid is None:
        counts = [int(count) for count in wanted.nodes.split(",")]
        grid = search_all(wanted.models.split(","), counts, wanted.jobs)
        write_atomic("heatmap.json", json.dumps(grid) + "\n")
    save_grid_plot(grid, PICTURE)
    for cell in grid["cells"]:
        best = cell["best"]
        words = f"MFU {best['mfu']:.1%}" if best else "nothing fits"
        print(f"{cell['model']:14s} {cell['nodes']:3d} nodes: {words}")


if __name__ == "__main__":
    main()

"""Errors of step times whose source, family of models or population nothing was fitted to: what predictions are worth.

The pooled parameters of devices and stacks are fitted again without each source, each family and each population
(vendors' tuned runs, and runs as most people do them), to what all the other runs say (linearised refits), and what was
left out is predicted with them (calibrate_uncertainty.py); nothing is left out of the model or of its kernels'
measurements. A source that was never fitted to is as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from calibrate_uncertainty import kept_folds, moved_runs
from calibrate_uncertainty_rows import Run
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
KINDS = ("as shipped", "source left out", "family left out", "population left out")


@dataclass(frozen=True)
class LeftOut:
    """Absolute errors of runs by kind of fit, as shares of what was measured, and what is needed to group them.

    ``errors`` are float64[runs] by KINDS; ``fitted`` says of which runs the shipped parameters know.
    """

    errors: dict[str, Floats]
    source: NDArray[np.str_]
    mixture: Bools
    ordinary: Bools
    fitted: Bools

    @classmethod
    def of(cls, runs: Sequence[Run], kept: Path | None = None) -> LeftOut:
        """Those of runs whose parameters were moved; ``kept`` is the file of runs, if there is one."""
        moved = moved_runs(runs)
        found = {kind: np.array([run.error for run in moved], dtype=np.float64) for kind in KINDS}
        for fold in kept_folds(moved, kept):
            found[f"{fold.name.partition(' ')[0]} left out"][fold.left_out] = fold.errors
        return cls(
            {kind: np.abs(np.expm1(-each)) for kind, each in found.items()},
            np.array([run.source for run in moved]),
            np.array([run.traits.mixture for run in moved]),
            np.array([run.population == "ordinary" for run in moved]),
            np.array([run.fitted for run in moved]),
        )

    def medians(self, source: str | None) -> dict[str, float]:
        """Median error of a source, or of all, by kind of fit, in percent; empty where no parameters were moved."""
        mine = np.ones_like(self.fitted) if source is None else self.source == source
        return {kind: 100 * float(np.median(each[mine])) for kind, each in self.errors.items() if mine.any()}

    def table(self) -> list[str]:
        """Lines of Markdown: median and 90th percentile over runs, and the mean of medians of sources."""
        groups = {
            "all": np.ones_like(self.fitted), "tuned by vendors": ~self.ordinary,
            "as most people run": self.ordinary, "dense": ~self.mixture, "mixtures of experts": self.mixture,
            "never fitted to": ~self.fitted,
        }  # fmt: skip
        lines = [
            "| runs | | " + " | ".join(f"{kind}: median | p90 | mean of sources" for kind in KINDS) + " |",
            "|---|---|" + "---|" * 3 * len(KINDS),
        ]
        for name, mine in groups.items():
            cells = [f"{value:.1f}" for each in self.errors.values() for value in self._figures(each, mine)]
            lines.append("| " + " | ".join([name, str(int(mine.sum())), *cells]) + " |")
        return lines

    def _figures(self, errors: Floats, mine: Bools) -> tuple[float, float, float]:
        """Median, 90th percentile, and mean over sources of their medians, in percent."""
        by_source = [np.median(errors[mine & (self.source == source)]) for source in sorted(set(self.source[mine]))]
        middle, most = np.quantile(errors[mine], [0.5, 0.9])
        return 100 * float(middle), 100 * float(most), 100 * float(np.mean(by_source))

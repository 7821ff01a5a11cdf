"""What an optimizer declares: states, work of a step, where it runs.

A file of this folder holds a tuple ``OPTIMIZERS``. Plans, costs, memory, searches, the runtime and exports read the
entries; none of them knows an optimizer by its name. Widths are in bytes, sizes of matrices numbers or arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from simpar.units import Numbers

SCALE_BLOCK = 256
"""Values of 8-bit states that share a scale in fp32."""


@dataclass(frozen=True)
class Work:
    """Products of one step for some equal pieces of a matrix, in the ``precision`` where the device computes in it.

    ``products`` are sizes m, n, k of (m x k)(k x n), each run ``pieces`` times in a batch; ``passed_values`` are read
    or written beside them by so many ``kernels``; ``decomposition_flop`` are eigendecompositions and the like, in
    fp32. All of it is ``repeated``.
    """

    products: tuple[tuple[float, float, float], ...]
    precision: Literal["bf16", "fp32"]
    pieces: float = 1.0
    passed_values: float = 0.0
    kernels: int = 0
    decomposition_flop: float = 0.0
    repeated: int = 1


@dataclass(frozen=True)
class ByMatrix:
    """What an optimizer does with whole matrices r x c inside layers; it leaves other parameters to AdamW.

    ``work(r, c)`` is that of one step; ``fp32_values(r, c)`` are kept beside the moments.
    """

    work: Callable[[float, float], Sequence[Work]]
    fp32_values: Callable[[Numbers, Numbers], Numbers] | None = None


@dataclass(frozen=True)
class InTorch:
    """The class of ``torch.optim`` that runs it; what that is given of the run, and the states it keeps by name.

    ``counts_steps``: whether it corrects its states by the number of steps.
    """

    name: str
    options: tuple[Literal["betas", "eps", "momentum"], ...] = ()
    states: tuple[str, ...] = ()
    counts_steps: bool = False


@dataclass(frozen=True)
class Optimizer:
    """An optimizer; ``summary`` says what it is, with its source.

    ``moments`` are values that it keeps for a parameter of matrices inside layers, ``others`` for every other;
    ``width_bytes`` theirs where it is not the plan's ``moment_dtype``. ``factored``: it keeps a row and a column of
    second moments for a matrix instead. ``gradient_passes`` are more reads of the gradient than one. ``on_host``:
    processors run it, value by value. ``month`` of publication ("" for what is older than arXiv) orders lists behind
    the ``usual`` one, which plans mean that name none.
    """

    name: str
    summary: str
    month: str
    moments: float
    others: float
    width_bytes: float | None = None
    gradient_passes: float = 0.0
    factored: bool = False
    by_matrix: ByMatrix | None = None
    on_host: bool = False
    in_torch: InTorch | None = None
    usual: bool = False

    @property
    def by_shape(self) -> bool:
        """Whether its states or work depend on the shapes of matrices."""
        return self.factored or self.by_matrix is not None

    @property
    def has_own_width(self) -> bool:
        """Whether its states, if any, have a width that no plan chooses."""
        return self.factored or self.width_bytes is not None or not (self.moments or self.others)

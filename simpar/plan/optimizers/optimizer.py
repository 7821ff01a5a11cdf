"""What an optimizer declares: states, work of a step, where it runs.

A file of this folder holds a tuple ``OPTIMIZERS``. Plans, costs, memory, searches, the runtime and exports read the
entries; none of them knows an optimizer by its name. Widths are in bytes, sizes of matrices numbers or arrays.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from simpar.dataclass import dataclass
from simpar.units import Numbers

SCALE_BLOCK = 256
"""Values of 8-bit states that share a scale in fp32."""


@dataclass(frozen=True)
class MatrixWork:
    """Products of one step for some equal pieces of a matrix, in the ``precision`` where the device computes in it.

    ``products`` are sizes m, n, k of (m x k)(k x n), each run ``pieces`` times in a batch; ``passed_values`` are read
    or written beside them by so many ``kernels``; ``decomposition_flop`` are those of eigendecompositions and the like,
    in fp32. All of this is done ``repeated`` times.
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
    """The work of an optimizer on whole matrices r x c inside layers; it leaves other parameters to AdamW.

    ``work(r, c)`` is that of one step; ``fp32_values(r, c)`` is the number of values kept beside the moments.
    ``shared_work(r, c, n)`` is that of each of n ranks that hold a matrix in parts and work on it together, and
    ``summed_values(r, c)`` is the number of values that they sum in a step; None where an optimizer cannot.
    """

    work: Callable[[float, float], Sequence[MatrixWork]]
    fp32_values: Callable[[Numbers, Numbers], Numbers] | None = None
    shared_work: Callable[[float, float, int], Sequence[MatrixWork]] | None = None
    summed_values: Callable[[float, float], float] | None = None


@dataclass(frozen=True)
class InTorch:
    """The class of ``torch.optim`` that runs an optimizer, the options that it is given, and the names of its states.

    ``counts_steps``: whether it corrects its states by the number of steps. ``denominator``: whether its update
    divides by a root of a state, an array of its own unless one kernel does it all.
    """

    name: str
    options: tuple[Literal["betas", "eps", "momentum"], ...] = ()
    states: tuple[str, ...] = ()
    counts_steps: bool = False
    denominator: bool = False


@dataclass(frozen=True)
class Optimizer:
    """An optimizer; ``summary`` says what it is, with its source.

    ``moments`` is the number of values kept per parameter of matrices inside layers, ``others`` per other parameter;
    ``width_bytes`` is the size of such a value where it is not that of the plan's ``moment_dtype``. ``factored``: a row
    and a column of second moments are kept per matrix instead. ``gradient_passes`` are reads of the gradient beyond the
    first. ``on_host``: processors of a host can run it, value by value. Lists are ordered by ``month`` of publication
    ("" for older than arXiv), behind the ``usual`` one, which is that of plans that name none.
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

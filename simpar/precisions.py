"""Precisions: the dtypes of products' operands and of activations between products, and how devices compute them.

An entry declares everything that plans, kernels, memory, learning, the runtime and exports need. To add a precision,
add an entry.
"""

from collections.abc import Collection

from simpar import files
from simpar.dataclass import dataclass
from simpar.units import DTYPE_BYTES


@dataclass(frozen=True)
class BlockScales:
    """Block scales: ``values`` neighbours along the contraction share a scale of ``scale_bytes``.

    ``weight_values`` of a weight do, if its blocks are other ones (0: the same).
    ``in_tensor_cores``: tensor cores apply the scales, and read them in a layout of their own. A cast with block scales
    reads its input ``cast_reads`` times and runs at ``cast_rate`` of the speed of a copy. ``weight_gradient`` is the
    time of weight-gradient products over that of other products.
    """

    values: int
    scale_bytes: float
    in_tensor_cores: bool
    cast_rate: float
    cast_reads: int = 1
    weight_gradient: float = 1.0
    weight_values: int = 0


_BLOCK_CAST_RATE = 0.75
"""5.1 TB/s on a B200 [NVIDIA Transformer Engine, pull request 3137]."""


@dataclass(frozen=True)
class Precision:
    """A precision; ``summary`` describes it. Operands of products have ``bits`` bits and, if any, ``scales``.

    ``handed`` is the dtype of activations and of parameters as computed with ("": that of the operands). ``rates`` name
    the device peaks at which it runs: its own, then the wider one whose measured clocks and efficiencies stand in for
    those that a profile leaves out. A device must have the peak ``needs`` as well. ``by_row``: scales are of whole rows
    of operands along the contraction. ``in_torch`` is the dtype in which the runtime computes it ("": it does not).
    ``in_its_place`` are those for targets that lack this one, the nearest first (none: all have it).
    """

    name: str
    summary: str
    bits: int
    handed: str = ""
    rates: tuple[str, ...] = ()
    needs: str = ""
    scales: BlockScales | None = None
    by_row: bool = False
    in_torch: str = ""
    in_its_place: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether it is narrower than the fp32 of master weights."""
        return self.bits < 32

    @property
    def is_cast(self) -> bool:
        """Whether operands are cast for products only, with 16-bit activations between products."""
        return bool(self.handed)

    @property
    def is_laid_out(self) -> bool:
        """Whether tensor cores apply scales of blocks."""
        return self.scales is not None and self.scales.in_tensor_cores

    @property
    def weight_gradient(self) -> float:
        """Time of weight gradients over that of other products."""
        return self.scales.weight_gradient if self.scales else 1.0

    @property
    def cast_bytes(self) -> float:
        """Bytes, at the speed of a copy, that casting an element moves; 0 where nothing is cast.

        The element is read, and written twice: in rows for one product and in columns for another, because scales run
        along the contraction. (reads x 16-bit bytes + 2 x operand bytes) / rate. By row it is read once for rows, and
        twice for columns.
        """
        reads, rate = (self.scales.cast_reads, self.scales.cast_rate) if self.scales else (1 + 2 * self.by_row, 1.0)
        return (reads * self.handed_bytes + 2 * self.operand_bytes) / rate if self.is_cast else 0.0

    @property
    def handed_dtype(self) -> str:
        """Dtype of activations and of computed-with parameters."""
        return self.handed or self.name

    @property
    def handed_bytes(self) -> float:
        """Bytes per element of activations and of computed-with parameters."""
        return DTYPE_BYTES[self.handed_dtype]

    @property
    def operand_bytes(self) -> float:
        """Bytes per element of an operand, including its share of a scale."""
        return self.bits / 8 + (self.scales.scale_bytes / self.scales.values if self.scales else 0.0)

    @property
    def weight_bytes(self) -> float:
        """Bytes per element of a weight as products read it, including its share of a scale."""
        if not self.scales:
            return self.operand_bytes
        return self.bits / 8 + self.scales.scale_bytes / (self.scales.weight_values or self.scales.values)

    def count_layouts(self, *, in_any: bool) -> int:
        """Layouts in which the products of a forward and a backward read one weight: by rows, and by columns.

        Scales of blocks run along the contraction, so that both are cast apart. With one scale a tensor the second is a
        transpose, but for tensor cores that read 8 bits ``in_any`` layout [NVIDIA Transformer Engine,
        pytorch/csrc/quantizer.cpp: is_non_tn_fp8_gemm_supported].
        """
        return 1 if in_any and not (self.scales or self.by_row) else 2


PRECISIONS = {
    each.name: each
    for each in (
        Precision("bf16", "16 bits, fp32's exponents", 16, in_torch="bfloat16"),
        Precision("fp16", "16 bits, with a scaled loss", 16, in_torch="float16", in_its_place=("bf16",)),
        Precision("fp32", "32 bits throughout", 32, in_torch="float32"),
        Precision(
            "fp8",
            "8-bit products, a scale for every tensor",
            8,
            handed="bf16",
            rates=("fp8",),
            in_torch="bfloat16",
            in_its_place=("fp8_rowwise", "bf16"),
        ),
        Precision(
            "fp8_rowwise",
            "8-bit products, a scale for every row and column [torchao, Float8LinearRecipeName.ROWWISE]",
            8,
            handed="bf16",
            rates=("fp8",),
            by_row=True,
            in_its_place=("fp8", "bf16"),
        ),
        Precision(
            "fp8_blockwise",
            "8-bit products, scales for 1 x 128 and 128 x 128 values [DeepSeek-V3, arXiv 2412.19437]",
            8,
            handed="bf16",
            rates=("fp8",),
            # Casts: on Hopper 1.4 TB/s in vLLM, 1.8 in rows and 2.6 in columns. Weight gradients: tensor cores do not
            # apply the scales, and those of both operands change along the contraction. They take 1.47 to 1.52 ms
            # where the forward product takes 0.90 to 0.94, a factor 1.04 of it because they add into fp32
            # [deepseek-ai/profile-data, output projection of 4,096 tokens].
            scales=BlockScales(
                128,
                DTYPE_BYTES["fp32"],
                in_tensor_cores=False,
                cast_rate=0.6,
                weight_gradient=1.54,
                weight_values=128 * 128,
            ),
            in_its_place=("fp8", "fp8_rowwise", "bf16"),
        ),
        Precision(
            "mxfp8",
            "8-bit products, a scale for 32 values in the tensor cores [OCP Microscaling Formats 1.0]",
            8,
            handed="bf16",
            rates=("fp8",),
            needs="fp4",  # scaled blocks came with 4 bits
            scales=BlockScales(32, 1, in_tensor_cores=True, cast_rate=_BLOCK_CAST_RATE),
            in_its_place=("fp8", "fp8_rowwise", "bf16"),
        ),
        Precision(
            "nvfp4",
            "4-bit products, a scale for 16 values and one for the tensor [NVIDIA 2025, arXiv 2509.25149]",
            4,
            handed="bf16",
            rates=("fp4", "fp8"),
            # another pass finds a tensor's largest value, and columns are rotated by Hadamard matrices in a kernel
            # apart from that for rows [NVIDIA Transformer Engine, NVFP4Quantizer]
            scales=BlockScales(16, 1, in_tensor_cores=True, cast_rate=_BLOCK_CAST_RATE, cast_reads=3),
            in_its_place=("bf16",),
        ),
        Precision(
            "mxfp4",
            "4-bit products, a scale for 32 values [OCP Microscaling Formats 1.0]",
            4,
            handed="bf16",
            rates=("fp4", "fp8"),
            scales=BlockScales(32, 1, in_tensor_cores=True, cast_rate=_BLOCK_CAST_RATE),
            in_its_place=("bf16",),
        ),
    )
}
LONG_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Precisions of 16 and 32 bits by the names of their dtypes."""
IN_TORCH = tuple(each.name for each in PRECISIONS.values() if each.in_torch)
"""Names of the precisions that the runtime computes."""


def known_precision(name: str) -> str:
    """The name itself. Raises ValueError with a suggestion for an unknown one."""
    if name not in PRECISIONS:
        raise ValueError(f"is not a precision{files.suggest(name, PRECISIONS)}{files.allowed(PRECISIONS)}")
    return name


def narrower(bits: int) -> tuple[str, ...]:
    """Names of the precisions whose operands have fewer bits than that."""
    return tuple(each.name for each in PRECISIONS.values() if each.bits < bits)


def in_place_of(name: str, known: Collection[str]) -> str:
    """The precision itself if it is among ``known``, else the one that stands in its place there."""
    return next(each for each in (name, *PRECISIONS[name].in_its_place) if each in known)

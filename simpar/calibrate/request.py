"""The request of measurements as one JSON file for the workers, and the samples they return. No torch here."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read as read_config
from simpar.architectures.training import Training
from simpar.calls import Strict
from simpar.runtime.job import Machine, RunInputs
from simpar.units import KIB, MIB

Kind = Literal["operator", "product", "stream", "optimizer", "gradient", "collective", "wrapper", "step"]


class Walk(Strict):
    """A decoder whose operators are timed one by one on ``batch`` sequences of ``seq_len`` tokens."""

    model: dict[str, Any]
    batch: int
    seq_len: int

    def graph(self) -> ModelGraph:
        """The model as the simulator and the runtime read it."""
        return read_config(self.model, name="calibration")

    @property
    def training(self) -> Training:
        """A step of one microbatch."""
        return Training(seq_len=self.seq_len, global_batch=self.batch)


class Steps(Walk):
    """Whole steps of one process: a decoder, and the number of microbatches in its batch."""

    microbatches: int = 1


class CalibrationRequest(RunInputs):
    """What to measure on ``ranks`` processes of this machine.

    ``dtype`` is that of operators and whole steps, ``dtypes`` those of products, which include it. ``products`` are (m,
    n, k) of matrix products, ``streams`` elements of added vectors, ``parameters`` sizes of optimizer updates,
    ``messages`` bytes of collectives, ``window_s`` seconds per measurement.
    """

    FILE: ClassVar[str] = "request.json"
    ranks: int
    machine: Machine
    dtype: str = "fp32"
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    products: tuple[tuple[int, int, int], ...]
    streams: tuple[int, ...]
    parameters: tuple[int, ...]
    messages: tuple[int, ...]
    walks: tuple[Walk, ...]
    steps: tuple[Steps, ...]
    window_s: float = 0.1

    @property
    def groups(self) -> tuple[int, ...]:
        """Sizes of process groups to measure, which are also the numbers of processes run side by side."""
        sizes = [size for size in (2, 4, 8) if size < self.ranks]
        return (*sizes, self.ranks) if self.ranks > 1 else ()


class Sample(Strict):
    """One measurement: the median of ``repeats`` times and their spread, (p90 - p10) / median.

    ``name`` and ``shape`` identify it: an operator of walk ``shape[0]``, a product (m, n, k), a collective of (members,
    bytes), a step of steps ``shape[0]``. ``beside`` processes did the same at the same time; ``load`` is the share of
    its cores that each of them used.
    """

    kind: Kind
    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    direction: str = ""
    seconds: float
    spread: float = 0.0
    repeats: int = 1
    beside: int = 1
    load: float = 1.0


def llama(hidden: int, layers: int, vocab: int, *, head: int = 64) -> dict[str, Any]:
    """A decoder with RMSNorm, rotary positions, grouped queries and a gate."""
    heads = hidden // head
    return {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": max(heads // 2, 1), "intermediate_size": hidden * 11 // 4, "vocab_size": vocab,
        "max_position_embeddings": 8192,
    }  # fmt: skip


def gpt(hidden: int, layers: int, vocab: int, *, dropout: float = 0.0) -> dict[str, Any]:
    """A decoder with LayerNorm, learned positions and biases, heads of 64."""
    return {
        "model_type": "gpt2", "n_embd": hidden, "n_layer": layers, "n_head": hidden // 64, "vocab_size": vocab,
        "n_positions": 2048, "resid_pdrop": dropout, "attn_pdrop": 0.0, "embd_pdrop": dropout,
    }  # fmt: skip


def mixture(hidden: int, layers: int, vocab: int, *, experts: int, topk: int) -> dict[str, Any]:
    """The first decoder with experts instead of MLPs; the experts of a token together have twice the MLP's width."""
    return {
        **llama(hidden, layers, vocab, head=128), "model_type": "mixtral", "num_local_experts": experts,
        "num_experts_per_tok": topk, "intermediate_size": 2 * hidden // topk,
    }  # fmt: skip


def standard(ranks: int, machine: Machine, folder: str) -> CalibrationRequest:
    """Models of sizes that train in seconds on the ranks' devices."""
    return (_on_cuda if machine.device == "cuda" else _on_cpu)(ranks, machine, folder)


def _on_cpu(ranks: int, machine: Machine, folder: str) -> CalibrationRequest:
    """Hidden 256 to 1024, in fp32."""
    widths = [256, 512, 1024]
    return CalibrationRequest(
        ranks=ranks,
        machine=machine,
        folder=folder,
        products=_products((256, 2048), widths, 2816),
        streams=tuple(KIB * size for size in (4, 64, 512, 2048, 8192)),
        parameters=(MIB, 8 * MIB),
        messages=tuple(16 * KIB * 4**step for step in range(7)),
        walks=(
            Walk(model=llama(256, 1, 8192), batch=4, seq_len=256),
            Walk(model=llama(512, 1, 8192), batch=1, seq_len=512),
            Walk(model=llama(512, 1, 8192), batch=8, seq_len=256),
            Walk(model=llama(1024, 1, 8192), batch=2, seq_len=1024),
            Walk(model=gpt(512, 1, 8192), batch=4, seq_len=256),
        ),
        steps=(
            Steps(model=llama(256, 8, 8192), batch=8, seq_len=256, microbatches=4),
            Steps(model=llama(512, 4, 8192), batch=8, seq_len=256, microbatches=2),
            Steps(model=llama(512, 8, 8192), batch=4, seq_len=512),
        ),
    )


def _on_cuda(ranks: int, machine: Machine, folder: str) -> CalibrationRequest:
    """Hidden 2048 to 8192 in bf16, with thousands of tokens, so that the kernels of a training step fill the device.

    The first steps are too small for that, and measure the time that the host needs to issue them.
    """
    return CalibrationRequest(
        ranks=ranks,
        machine=machine,
        folder=folder,
        dtype="bf16",
        products=_products((2048, 8192), [2048, 4096, 8192], 22_528),
        streams=tuple(KIB * size for size in (4, 1024, 16_384, 65_536, 262_144)),
        parameters=(64 * MIB, 512 * MIB),
        messages=tuple(64 * KIB * 4**step for step in range(8)),
        walks=(
            Walk(model=llama(2048, 1, 32_768), batch=8, seq_len=2048),
            Walk(model=llama(2048, 1, 65_536), batch=1, seq_len=8192),
            Walk(model=llama(4096, 1, 32_768, head=128), batch=2, seq_len=4096),
            Walk(model=llama(4096, 1, 32_768, head=128), batch=8, seq_len=1024),
            Walk(model=llama(8192, 1, 16_384, head=128), batch=1, seq_len=4096),
            Walk(model=gpt(2048, 1, 50_304, dropout=0.1), batch=8, seq_len=1024),
        ),
        steps=(
            Steps(model=llama(512, 8, 4096), batch=4, seq_len=256, microbatches=4),
            Steps(model=llama(1024, 12, 8192), batch=2, seq_len=512, microbatches=2),
            Steps(model=llama(2048, 12, 32_768), batch=8, seq_len=2048, microbatches=2),
            Steps(model=llama(4096, 4, 32_768, head=128), batch=4, seq_len=4096, microbatches=2),
            Steps(model=llama(4096, 4, 32_768, head=128), batch=4, seq_len=4096),
            Steps(model=mixture(2048, 4, 32_768, experts=8, topk=2), batch=4, seq_len=4096, microbatches=2),
            Steps(model=mixture(2048, 4, 32_768, experts=64, topk=8), batch=4, seq_len=4096, microbatches=2),
        ),
    )


def _products(rows: Sequence[int], widths: Sequence[int], ffn: int) -> tuple[tuple[int, int, int], ...]:
    """(m, n, k) of every pair of widths, and of the product from an MLP back into the layer."""
    return tuple((m, n, k) for m in rows for n in widths for k in (*widths, ffn))


def quick(ranks: int, machine: Machine, folder: str) -> CalibrationRequest:
    """A few sizes of milliseconds each, to check that it works; the numbers are not reliable."""
    return CalibrationRequest(
        ranks=ranks,
        machine=machine,
        folder=folder,
        dtypes=("fp32",),
        products=((64, 64, 64), (128, 256, 128), (256, 256, 512)),
        streams=(4 * KIB, 64 * KIB, 512 * KIB),
        parameters=(64 * KIB,),
        messages=(16 * KIB, 256 * KIB, 2 * MIB),
        walks=(
            Walk(model=llama(128, 1, 512), batch=2, seq_len=64),
            Walk(model=llama(128, 1, 512), batch=2, seq_len=128),
            Walk(model=gpt(128, 1, 512), batch=2, seq_len=64),
        ),
        steps=(Steps(model=llama(128, 2, 512), batch=4, seq_len=64, microbatches=2),),
        window_s=0.02,
    )

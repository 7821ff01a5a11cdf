"""The account of memory of a rank: named terms, for one plan or for arrays of plans by the same code."""

from simpar.cost.memory.allocator import held_outputs_bytes, num_communicators, overhead_bytes
from simpar.cost.memory.static import BETWEEN, PASSES, Held, StaticMemory, Term, held_memory
from simpar.cost.memory.widths import Widths, keeps_parameters, once_a_step, parameter_widths

__all__ = [
    "BETWEEN", "PASSES", "Held", "StaticMemory", "Term", "Widths", "held_memory", "held_outputs_bytes",
    "keeps_parameters", "num_communicators", "once_a_step", "overhead_bytes", "parameter_widths",
]  # fmt: skip

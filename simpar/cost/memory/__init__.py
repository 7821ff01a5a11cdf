"""The account of memory of a rank: named terms, for one plan or for arrays of plans by the same code."""

from simpar.cost.memory.allocator import round_allocation
from simpar.cost.memory.outside import (
    checkpointed_peak,
    held_outputs_bytes,
    num_communicators,
    overhead_bytes,
    reserved_bytes,
)
from simpar.cost.memory.static import Held, StaticMemory, Term, held_memory, static_memory
from simpar.cost.memory.widths import Widths, keeps_parameters, once_a_step, parameter_widths

__all__ = [
    "Held", "StaticMemory", "Term", "Widths", "checkpointed_peak", "held_memory", "held_outputs_bytes",
    "keeps_parameters", "num_communicators", "once_a_step", "overhead_bytes", "parameter_widths", "reserved_bytes",
    "round_allocation", "static_memory",
]  # fmt: skip

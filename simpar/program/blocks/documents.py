"""Loops of Python over the documents of packed sequences, in stacks that have them (``launch.document_loops``).

Where rotations are not one kernel, the queries and the keys of each document are cut out, rotated by kernels of their
own and joined to the others, behind a copy of the lengths to the host [NVIDIA Megatron-LM until June 2026,
_apply_rotary_pos_emb_thd]. Where heads are exchanged for tokens (Ulysses), every tensor is put into the order of
documents by an index that is made piece by piece, 2 n pieces a document among n ranks [NVIDIA Transformer Engine until
June 2026, reorder_seq_chunks_after_a2a_before_attn_thd].
"""

from functools import lru_cache

from simpar.architectures.documents import packing_of
from simpar.architectures.graph import Operator
from simpar.architectures.training import Training
from simpar.program.job import TrainingJob
from simpar.units import Numbers

ROTATION = {False: 24, True: 20}
"""Kernels that rotate a document's queries and keys, forward and (True) backward. Forward, of each of the two: cosine
and sine with their scale and cast, two products, half of it negated, two joins and a sum. Backward: two products, a
negation, a join and a sum, and a zeroed tensor, a copy and a sum behind either cut."""
PIECE = 7
"""Launches for a piece: its two ends, a product and a sum each, are copied to the host for the kernel that counts."""


def loops_over_documents(job: TrainingJob) -> bool:
    """Whether Python loops over documents: sequences hold several, and the stack has no kernels for all of them."""
    return job.stack.launch.document_loops and _count(job.training) > 1.0


@lru_cache(maxsize=64)
def _count(training: Training) -> float:
    packing = packing_of(training)
    return packing.count if packing else 1.0


def rotates_in_loop(job: TrainingJob, op: Operator) -> bool:
    """Whether an operator rotates one document after the other."""
    return op.kind == "rope" and not job.stack.fusion.rope and loops_over_documents(job)


def kernels_of(job: TrainingJob, op: Operator, kernels: Numbers, *, backward: bool) -> Numbers:
    """Kernels of an operator in a pass, of which it has ``kernels`` where nothing loops."""
    if not rotates_in_loop(job, op):
        return kernels
    return _count(job.training) * job.layout.micro_batch * ROTATION[backward]


def exchange_host_s(job: TrainingJob, ranks: Numbers) -> Numbers:
    """Seconds of the host to put one tensor, exchanged among so many ranks, into the order of documents."""
    pieces = _count(job.training) * job.layout.micro_batch * 2 * ranks
    return pieces * PIECE * job.stack.launch.host_time_per_kernel_s

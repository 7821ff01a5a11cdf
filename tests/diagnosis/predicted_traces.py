"""Simulated steps as profiler traces, as if they had been measured: what is known of them must be found again."""

import numpy as np

from simpar.diagnosis.against import kernel_classes
from simpar.simulation import simulate
from tests.diagnosis.kineto_files import COMMUNICATION, Rank

NAMES = {"gemm": "sm90_xmma_gemm", "attention": "flash_attention", "norm": "rmsnorm", "embedding": "embedding_kernel",
         "loss": "cross_entropy", "elementwise": "vectorized_elementwise_kernel"}  # fmt: skip


def traces(inputs, ranks, world_size):
    """Traces of some ranks of the simulated step, and its result: kernels as the timeline has them.

    A collective begins where its rank has nothing else left to do, as NCCL's kernels do, not where the last rank comes.
    """
    result = simulate(**inputs)
    timeline = result.timeline
    known = kernel_classes(inputs["model"])
    slow = inputs["perturbation"].slow_ranks
    return [_rank(rank, world_size, timeline, known, slow) for rank in ranks], result


def _rank(rank, world_size, timeline, known, slow):
    entries = list(enumerate(timeline.classes))
    own = [at for at, entry in entries if entry.representative_rank == rank]
    like = [at for at, entry in entries if entry.representative_rank not in slow]
    mine = own[0] if own and (rank in slow or not slow) else like[0]
    made, slices = Rank(rank, world_size), timeline.slices
    rows = np.flatnonzero(slices.class_id == mine)
    rows = rows[np.argsort(slices.start_ns[rows], kind="stable")]
    busy = [(slices.start_ns[r], slices.finish_ns[r]) for r in rows if timeline.streams[slices.stream[r]] == "compute"]
    for row in rows.tolist():
        label, stream = timeline.labels[slices.label[row]], timeline.streams[slices.stream[row]]
        start, finish = int(slices.start_ns[row]), int(slices.finish_ns[row])
        if finish == start:
            continue
        if stream == "compute" and slices.inner[row] >= 0:
            inside = timeline.inner[slices.inner[row]]
            steps = zip(inside.labels, inside.streams, inside.start_ns.tolist(), inside.finish_ns.tolist(), strict=True)
            for step, on, begin, end in steps:
                if on == "compute" and step.name in known:
                    name = f"{NAMES[known[step.name]]}_{step.kind}"
                    made.kernel(name, (start + begin) / 1000, (end - begin) / 1000)
        elif label.kind == "optimizer":
            made.kernel("multi_tensor_apply_kernel_adam", start / 1000, (finish - start) / 1000)
        elif label.kind == "dp":
            arrived = start
            if not any(begin <= start < end for begin, end in busy):
                arrived = max((end for _, end in busy if end <= start), default=start)
            made.collective("allreduce", arrived / 1000, (finish - arrived) / 1000, range(world_size))
        elif label.kind in ("tp", "pp", "cp", "ep"):
            made.kernel(f"ncclDevKernel_{label.kind}", start / 1000, (finish - start) / 1000, stream=COMMUNICATION)
    made.step(0, timeline.span_ns / 1000)
    return made

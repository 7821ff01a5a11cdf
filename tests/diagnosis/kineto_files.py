"""Traces as torch.profiler writes them, made by hand: what each test wants to find is put there by it."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path

COMPUTE, COMMUNICATION = 7, 20


@dataclass
class Rank:
    """One rank's trace: kernels are appended in us, each with the call of the host that launched it."""

    rank: int
    world_size: int = 4
    shift_us: float = 0.0
    events: list = field(default_factory=list)
    number: int = 0

    def event(self, category, name, start_us, duration_us, **more):
        """Any complete event."""
        arguments = more.pop("args", {})
        place = {"pid": more.pop("pid", 0), "tid": more.pop("tid", 1)}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, **place, "ts": round(start_us + self.shift_us, 3),
             "dur": round(duration_us, 3), "args": arguments}
        )  # fmt: skip

    def kernel(self, name, start_us, duration_us, **more):
        """A kernel, launched ``ahead_us`` before it starts by a call of 1 us."""
        self.number += 1
        ahead, stream = more.pop("ahead_us", 50.0), more.pop("stream", COMPUTE)
        arguments = {"correlation": self.number, "stream": stream, "device": 0, **more}
        call = {"correlation": self.number}
        self.event("cuda_runtime", "cudaLaunchKernel", start_us - ahead, 1.0, pid=100, tid=100, args=call)
        self.event("kernel", name, start_us, duration_us, tid=stream, args=arguments)

    def collective(self, kind, start_us, duration_us, ranks, **more):
        """NCCL's kernel with what torch says of it."""
        said = {
            "Collective name": kind, "Process Group Name": more.pop("group", "1"),
            "Process Group Description": more.pop("description", "mesh_dp"), "Process Group Ranks": str(list(ranks)),
            "Group size": len(ranks), "In msg nelems": more.pop("elements", 1000), "Out msg nelems": 1000,
            "dtype": "BFloat16", **more.pop("said", {}),
        }  # fmt: skip
        name = f"ncclDevKernel_{kind}_Sum_bf16_RING_LL(ncclDevComm*)"
        self.kernel(name, start_us, duration_us, stream=COMMUNICATION, **said, **more)

    def step(self, start_us, duration_us, number=2):
        """The profiler's mark."""
        self.event("user_annotation", f"ProfilerStep#{number}", start_us, duration_us, pid=100, tid=100)

    def data(self):
        """What the file holds."""
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world_size, "pg_config": []},
            "baseTimeNanoseconds": 1_700_000_000_000_000_000, "displayTimeUnit": "ms",
            "traceEvents": [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}, *self.events],
            "traceName": f"rank{self.rank}.json",
        }  # fmt: skip

    def save(self, folder, *, packed=False):
        """The file, by the name that a job gives it."""
        path = Path(folder) / f"trace-rank{self.rank}.json{'.gz' * packed}"
        text = json.dumps(self.data()).encode()
        path.write_bytes(gzip.compress(text) if packed else text)
        return path


def data_parallel_step(rank, *, slow=1.0, world_size=4, overlapped=True, shift_us=0.0, late_us=()):
    """A step of forward, backward and a sum of gradients under the second half of the backward, in us.

    Forward 1,000, backward 2,000, the sum 800 once all ranks are there, update 100; a rank ``slow`` times slower
    makes the others wait in the sum. ``slow`` of this rank is ``slow[rank]`` of the list. Hosts launch the first kernel
    after 100 and ``late_us[rank]``.
    """
    factors = slow if isinstance(slow, list) else [slow] * world_size
    first = [100 + each for each in late_us or [0] * world_size]
    made = Rank(rank, world_size, shift_us)
    mine, begin_us = factors[rank], first[rank]
    made.kernel("sm90_xmma_gemm_bf16_fwd", begin_us, 600 * mine, ahead_us=1)
    made.kernel("flash_fwd_kernel", begin_us + 600 * mine, 400 * mine)
    half = begin_us + 2000 * mine
    made.kernel("sm90_xmma_gemm_bf16_dgrad", begin_us + 1000 * mine, 1000 * mine)
    made.kernel("flash_bwd_kernel", half, 1000 * mine)
    length = 2000 if overlapped else 3000
    begin = begin_us + length * mine
    end = 800 + max(at + length * each for at, each in zip(first, factors, strict=True))
    made.collective("allreduce", begin, end - begin, range(world_size))
    update = max(end, begin_us + 3000 * mine)
    made.kernel("multi_tensor_apply_kernel_adam", update, 100)
    made.step(0, update + 100)
    return made

"""How long ``simpar explain`` takes, and how much memory, on a synthetic trace of a given size.

    python benchmarks/explain_speed.py --megabytes 300

Events are those of a torch profiler trace of a GPU: per kernel its launch and an operator of the host with shapes, as
many as the size takes. CPU time and peak memory are of a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(flash::Flash_fwd_params)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    "void layer_norm::ln_bwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16>>",
)


def write_trace(path: Path, megabytes: int) -> int:
    """Write about so many megabytes; how many events they are."""
    count, size, clock = 0, 0, 1000.0
    with path.open("w") as out:
        out.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": [\n')
        while size < megabytes * 10**6:
            texts = [json.dumps(event, indent=1) for event in _kernel(count, clock)]
            text = "".join(f"{each},\n" for each in texts)
            size, count, clock = size + len(text), count + len(texts), clock + 31.0
            out.write(text)
        mark = {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#1",
            "pid": 9,
            "tid": 9,
            "ts": 900.0,
            "dur": clock,
        }
        out.write(f'{json.dumps(mark)}], "traceName": "rank0.json"}}\n')
    return count


def _kernel(number: int, clock: float) -> list[dict[str, object]]:
    """An operator, its launch, the kernel, and every hundredth time an all-reduce."""
    shapes = [[4096, 8192], [8192, 8192], []]
    op = {"External id": number, "Record function id": 0, "Input Dims": shapes, "Input type": ["c10::BFloat16"] * 2}
    kernel = {"device": 0, "stream": 7, "correlation": number, "External id": number, "registers per thread": 168,
              "shared memory": 232448, "blocks per SM": 1.2, "grid": [132, 1, 1], "block": [384, 1, 1]}  # fmt: skip
    name = KERNELS[number % len(KERNELS)]
    events: list[dict[str, object]] = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": clock - 40, "dur": 20.0, "args": op},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": clock - 30, "dur": 5.0,
         "args": {"correlation": number, "External id": number}},
        {"ph": "s", "id": number, "pid": 9, "tid": 9, "ts": clock - 30, "cat": "ac2g", "name": "ac2g"},
        {"ph": "f", "id": number, "pid": 0, "tid": 7, "ts": clock, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": clock, "dur": 30.125, "args": kernel},
    ]  # fmt: skip
    if number % 500 == 0:
        said = {"Collective name": "allreduce", "Process Group Name": "1", "Process Group Ranks": "[0, 1]"}
        said |= {"Process Group Description": "mesh_dp", "dtype": "Float"}
        reduction = {**events[-1], "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "tid": 20, "dur": 200.0}
        events.append({**reduction, "args": {**said, "In msg nelems": 10**6, "stream": 20}})
        events.append({**events[0], "name": "MmBackward0"})
    return events


def main() -> None:
    """Write, explain, say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--packed", action="store_true", help="gzip it first")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        count = write_trace(path, asked.megabytes)
        size = path.stat().st_size
        if asked.packed:
            subprocess.run(["gzip", "-1", str(path)], check=True)
            path = path.with_suffix(".json.gz")
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "simpar", "explain", str(path)], check=True)
        wall = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{size / 10**6:.0f} MB, {count:,} events: {used.ru_utime + used.ru_stime:.1f} s of CPU, {wall:.1f} s, "
          f"{used.ru_maxrss / 2**20:.2f} GiB at most")  # fmt: skip


if __name__ == "__main__":
    main()

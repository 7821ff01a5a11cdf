"""The entry point that torchrun starts on every rank: ``python -m simpar.calibrate.worker REQUEST.json``.

Rank 0 times kernels while the others sleep; then groups of growing size communicate, and work side by side.
"""

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from simpar.calibrate.request import CalibrationRequest
from simpar.runtime.worker import die_with_parent, join_process_group, leave, serve


def main() -> int:
    """Measure on this rank; returns the exit code."""
    die_with_parent()
    request = CalibrationRequest.load(sys.argv[1])
    return serve(Path(request.folder), lambda: measure(request))


def measure(request: CalibrationRequest) -> dict[str, Any]:
    """All samples of this rank, and facts about the machine."""
    import torch
    import torch.distributed as dist

    from simpar.calibrate.kernels import kernels, repeated
    from simpar.calibrate.stopwatch import Members, Stopwatch
    from simpar.calibrate.together import collectives, steps
    from simpar.calibrate.wrappers import wrappers

    warnings.filterwarnings("ignore", category=FutureWarning)  # newer names of collectives, which older torch lacks
    torch.set_num_threads(request.machine.threads)
    with join_process_group(request.machine, Path(request.folder)) as device:
        rank, watch = int(os.environ["RANK"]), Stopwatch(device, request.window_s)
        everyone = Members(dist.group.WORLD, request.ranks)
        again = partial(repeated, request, watch) if rank == 0 else list
        repeats = again()
        samples = list(kernels(request, watch)) if rank == 0 else []
        repeats += again()
        samples += [steps(request, n, watch) for n in range(len(request.steps))] if rank == 0 else []
        everyone.meet()
        for size in request.groups:
            if request.ranks % size == 0:  # all ranks at once, as in training
                group, _ = dist.new_subgroups(size)
                members = Members(group, size, rank // size * size)
                samples += collectives(request, members, watch)
                samples += wrappers(request, members, watch) if size == request.groups[0] else []
            first = Members(dist.new_group(list(range(size))), size)
            if rank < size:
                samples.append(steps(request, len(request.steps) - 1, watch, beside=first))
            everyone.meet()
        repeats += again()
        made = [sample.model_dump() for sample in samples]
        return {"rank": rank, "samples": made, "repeats": repeats, **_facts(device)}


def _facts(device: Any) -> dict[str, Any]:
    """Facts about the device from torch."""
    import torch

    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name, "memory_bytes": properties.total_memory, "num_sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
    }  # fmt: skip


if __name__ == "__main__":
    leave(main())

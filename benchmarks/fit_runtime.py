"""What eager torch costs in ``simpar run`` on a GPU, fitted to what one measured: numbers of its stack profile.

Usage: python benchmarks/fit_runtime.py [FOLDER] [--device NAME]

FOLDER (default: benchmarks/measured/h200) has what benchmarks/on_gpu.py left: kernels of ``calibration.json``, whole
steps of it and of all ``calibration-*.json``. Passes over memory, sums of gradients and the optimizer come from
kernels timed alone; host time of a kernel, factors on kernels and on those of experts, and time once a step from
whole steps, all by the shipped profile of the device. Prints them as hardware_profiles/stacks/simpar.yaml has them,
and writes ``here.yaml`` and ``here.stack.yaml`` anew: this machine calibrated. What they predict of steps that are not
fitted to is benchmarks/on_gpu.py's to say, with --folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from simpar.calibrate import fit
from simpar.calibrate.fit import Machine, Samples
from simpar.calibrate.profile import Facts, build, step_s, write
from simpar.calibrate.request import Request, Sample
from simpar.cost.stack import Stack, load_stack
from simpar.hardware.device import load_device
from simpar.profiles import yaml_text
from simpar.units import MS, US

HERE = Path(__file__).parent / "measured" / "h200"


def main() -> None:
    """Fit, print, check."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, nargs="?", default=HERE)
    arguments.add_argument("--device", default="h200-sxm")
    given = arguments.parse_args()
    device = load_device(given.device)
    first = read_samples(given.folder / "calibration.json")
    others = [read_samples(path) for path in sorted(given.folder.glob("calibration-*.json"))]
    print(yaml_text(as_profile(fitted(first, others, device))))
    known = json.loads((given.folder / "calibration.json").read_text())["device"]
    words = json.loads((given.folder / "provenance.json").read_text())["devices"]
    write(build(first, Facts("here", words, known["memory_bytes"], known)), given.folder / "here.yaml")


def read_samples(path: Path) -> Samples:
    """What a calibration measured."""
    found = json.loads(path.read_text())
    request = Request.model_validate({**found["request"], "folder": ""})
    return Samples(request, tuple(Sample.model_validate(each) for each in found["samples"]))


def fitted(kernels: Samples, others: list[Samples], device: Any) -> Stack:
    """The runtime's stack with the numbers of kernels timed alone, and of whole steps."""
    stack = load_stack("simpar")
    numerics = stack.numerics.model_copy(update={"sum_bytes": 0.0})
    machine = Machine(
        device, stack.model_copy(update={"numerics": numerics, "passes": {}}), kernels.request.dtype
    )
    for part in (fit.passes, fit.updates, fit.gradients):
        machine, _ = part(kernels, machine)
    every = [each for one in (kernels, *others) for each in one.of("step")]
    whole = Samples(kernels.request, tuple(every))
    machine, _ = fit.steps(whole, machine, lambda tried, number: step_s(kernels, tried, number))
    return machine.stack


def as_profile(stack: Stack) -> dict[str, Any]:
    """The fitted numbers as the profile has them."""
    launch = stack.launch
    return {
        "launch": {
            "host_time_per_kernel_s": f"{launch.host_time_per_kernel_s / US:.3g} us",
            "kernel_overhead": float(f"{launch.kernel_overhead:.3g}"),
            "optimizer_passes": float(f"{launch.optimizer_passes:.3g}"),
            "step_overhead_s": f"{launch.step_overhead_s / MS:.3g} ms",
        },
        "experts": {"overhead": float(f"{stack.experts.overhead:.3g}")},
        "numerics": {"sum_bytes": float(f"{stack.numerics.sum_bytes:.3g}")},
        "passes": {
            kind: [float(f"{each:.3g}") for each in both] for kind, both in sorted(stack.passes.items())
        },
    }


if __name__ == "__main__":
    main()

"""What eager torch costs in ``simpar run`` on a GPU, fitted to what one measured: numbers of its stack profile.

Usage: python benchmarks/fit_runtime.py [FOLDER] [--device NAME] [--casts FOLDER]

FOLDER (default: benchmarks/measured/h200) has what benchmarks/on_gpu.py left: kernels of ``calibration.json``, whole
steps of it and of all ``calibration-*.json``. Passes over memory, sums of gradients and the optimizer come from
kernels timed alone; host time of a kernel, factors on kernels and on those of experts, and time once a step from
whole steps. Casts to 8 bits come from traces of the same steps in 8 and in 16 bits, in the folder of --casts (default:
benchmarks/measured/h200-again). All by the shipped profile of the device. Prints them as
hardware_profiles/stacks/simpar.yaml has them, and writes ``here.yaml`` and ``here.stack.yaml`` anew: this machine
calibrated. What they predict of steps that are not fitted to is benchmarks/on_gpu.py's to say, with --folder.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from simpar.calibrate import fit
from simpar.calibrate.fit import FittedMachine, Samples
from simpar.calibrate.profile import KnownFacts, build, step_s, write
from simpar.calibrate.request import CalibrationRequest, Sample, Walk
from simpar.hardware.device import load_device
from simpar.profiles import yaml_text
from simpar.stacks.stack import Stack, TensorCast, load_stack
from simpar.units import MS, US

HERE = Path(__file__).parent / "measured" / "h200"
AGAIN = HERE.with_name("h200-again")
EIGHT_BITS = ", 8 bits"


def main() -> None:
    """Fit, print, check."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, nargs="?", default=HERE)
    arguments.add_argument("--device", default="h200-sxm")
    arguments.add_argument("--casts", type=Path, default=AGAIN, help="folder with steps in 8 bits")
    given = arguments.parse_args()
    device = load_device(given.device)
    first = read_samples(given.folder / "calibration.json")
    others = [read_samples(path) for path in sorted(given.folder.glob("calibration-*.json"))]
    print(yaml_text(as_profile(fitted(first, others, device, read_casts(given.casts)))))
    known = json.loads((given.folder / "calibration.json").read_text())["cluster"]["device"]
    words = json.loads((given.folder / "provenance.json").read_text())["devices"]
    write(build(first, KnownFacts("here", words, known["memory_bytes"], known)), given.folder / "here.yaml")


def read_samples(path: Path) -> Samples:
    """What a calibration measured."""
    found = json.loads(path.read_text())
    request = CalibrationRequest.model_validate({**found["request"], "folder": ""})
    return Samples(request, tuple(Sample.model_validate(each) for each in found["samples"]))


@dataclass(frozen=True)
class Cast:
    """What 8 bits add to a step: its scenario, further launches and device seconds of kernels but products."""

    scenario: dict[str, Any]
    launches: int
    seconds: float


def read_casts(folder: Path) -> list[Cast]:
    """Of every size that the folder has in 8 bits and in bf16."""
    found = json.loads((folder / "sizes.json").read_text())
    pairs = [(found[name.removesuffix(EIGHT_BITS)], found[name]) for name in found if name.endswith(EIGHT_BITS)]
    more = [
        (narrow, {key: narrow["traced"][key] - wide["traced"][key] for key in narrow["traced"]})
        for wide, narrow in pairs
    ]
    return [Cast(narrow["scenario"], each["launches"], each["others_s"]) for narrow, each in more]


def fitted(kernels: Samples, others: list[Samples], device: Any, casts: list[Cast]) -> Stack:
    """The runtime's stack with the numbers of kernels timed alone, of whole steps, and of casts."""
    stack = load_stack("simpar")
    numerics = stack.numerics.model_copy(update={"sum_bytes": 0.0})
    machine = FittedMachine(
        device, stack.model_copy(update={"numerics": numerics, "passes": {}}), kernels.request.dtype
    )
    for part in (fit.passes, fit.updates, fit.gradients):
        machine, _ = part(kernels, machine)
    every = [each for one in (kernels, *others) for each in one.of("step")]
    whole = Samples(kernels.request, tuple(every))
    machine, _ = fit.steps(whole, machine, lambda tried, number: step_s(kernels, tried, number))
    return with_casts(machine, kernels.request, casts)


def with_casts(machine: FittedMachine, request: CalibrationRequest, casts: list[Cast]) -> Stack:
    """Kernels of a cast, and bytes an element, that make up what 8 bits add to the traces of the steps."""

    def of_step(each: Cast, cast: TensorCast) -> tuple[float, float]:
        """Kernels and seconds of all products of a step's layers with such casts."""
        plan, training = each.scenario["plan"], each.scenario["training"]
        walk = Walk(model=each.scenario["model"], batch=plan["micro_batch"], seq_len=training["seq_len"])
        walked = Samples(request.model_copy(update={"walks": (walk,)}), ())
        numerics = machine.stack.numerics.model_copy(update={"tensor_cast": cast})
        tried = FittedMachine(machine.device, machine.stack.model_copy(update={"numerics": numerics}), "fp8")
        (times,) = tried.operator_times(walked)
        products = [
            times[op.name] for op in walked.walks[0][0].operators if op.kind == "matmul" and op.name != "lm_head"
        ]
        layers = len(walk.graph().layers) * training["global_batch"] // plan["micro_batch"]
        count = sum(float(time.forward_kernels + time.backward_kernels) for time in products)
        seconds = sum(float(time.forward_s + time.backward_input_s + time.backward_weight_s) for time in products)
        return layers * count, layers * seconds * machine.stack.launch.kernel_overhead

    def change(each: Cast, one: TensorCast, other: TensorCast, of: int) -> float:
        return of_step(each, other)[of] - of_step(each, one)[of]

    least = 1e-9
    none = TensorCast(kernels=least, element_bytes=least)
    kernels = median(
        each.launches / change(each, none, TensorCast(kernels=1.0, element_bytes=least), 0) for each in casts
    )
    launched, byte = (TensorCast(kernels=kernels, element_bytes=size) for size in (least, 1.0))
    size = median((each.seconds - change(each, none, launched, 1)) / change(each, launched, byte, 1) for each in casts)
    cast = TensorCast(kernels=float(f"{kernels:.3g}"), element_bytes=float(f"{size:.3g}"))
    numerics = machine.stack.numerics.model_copy(update={"tensor_cast": cast})
    return machine.stack.model_copy(update={"numerics": numerics})


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
        "numerics": {
            "sum_bytes": float(f"{stack.numerics.sum_bytes:.3g}"),
            "tensor_cast": cast.model_dump() if (cast := stack.numerics.tensor_cast) else None,
        },
        "passes": {kind: [float(f"{each:.3g}") for each in both] for kind, both in sorted(stack.passes.items())},
    }


if __name__ == "__main__":
    main()

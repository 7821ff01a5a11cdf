"""Step times of ASTRA-sim beside simpar's, on a cluster that both can describe.

Usage: python benchmarks/astra_sim.py --binary astra-sim/build/.../AstraSim_Analytical_Congestion_Unaware

Every layout is exported (``simpar export --to chakra``) and given to the program; a step that differs by more than 10 %
fails. The cluster has rings of one protocol, with nothing before them, because that is all that the analytical network
knows. Without a program there is no table: none is committed, because this has not been run yet. What was compared
instead (tests/chakra/test_network.py) are times of rings over the exported network, replayed without ASTRA-sim: within
1 % of simpar's step for the layouts below.

To build it: astra-sim with its analytical back end (build/astra_analytical), which takes protobuf and cmake alone.
Where its submodules are not at hand: comment out the yaml-cpp folder in the CMakeLists of the back end and give one
with ``-DFETCHCONTENT_SOURCE_DIR_YAML-CPP=FOLDER -DFETCHCONTENT_FULLY_DISCONNECTED=ON``.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import simpar
from simpar.architectures.catalogue import load_model
from simpar.chakra.write import GROUPS, MEMORY, NETWORK, PREFIX, SYSTEM, ExportedTraces, export_traces
from simpar.hardware.profile import ClusterProfile
from simpar.plan.plan import Plan
from simpar.simulation import make_job
from simpar.stacks.stack import load_stack
from simpar.units import GIGA

RINGS = {
    "base_us": 0, "port_hop_us": 4, "nic_hop_us": 9, "far_hop_us": 4, "tree_hop_us": 9, "send_us": 0,
    "port_efficiency": 1, "pair_loss": 0, "nic_efficiency": 1, "send_efficiency": 1, "far_port_share": 1,
    "ll_efficiency": 0.001, "ll128_efficiency": 0.001, "p2p_channel_gb_per_s": 1000,
}  # fmt: skip
"""Collectives that are rings of one protocol, without anything before them."""
LAYOUTS: tuple[tuple[int, dict[str, int]], ...] = (
    (1, {"dp": 4, "zero": 3}),
    (1, {"tp": 4}),
    (2, {"tp": 4, "dp": 2, "zero": 1}),
    (2, {"tp": 4, "pp": 2}),
)
"""Nodes, and what is planned on them."""
TRAINING = simpar.Training(seq_len=1024, global_batch=4)
MOST_APART = 0.1


def cluster(nodes: int) -> simpar.Cluster:
    """Nodes of four devices behind a switch, a NIC each."""
    free = {"latency": "0 us"}
    profile = {
        "name": "rings",
        "device": "h100-sxm-80gb",
        "devices_per_node": 4,
        "scale_up": {"kind": "nvswitch", "bandwidth": "200 GB/s", **free},
        "scale_out": {"kind": "ib", "nics_per_node": 4, "nic_bandwidth": "200 Gb/s", **free},
        "host": {"memory_bytes": "1 TiB", "memory_bandwidth": "200 GB/s", "pcie_bandwidth": "50 GB/s"},
        "collectives": RINGS,
    }
    return simpar.Cluster(ClusterProfile.model_validate(profile), nodes)


def exported(nodes: int, layout: dict[str, int]) -> ExportedTraces:
    """The traces of a layout on a stack whose host takes no time."""
    where, stack = cluster(nodes), load_stack("simpar")
    launch = stack.launch.model_copy(update={"host_time_per_kernel_s": 0.0, "step_overhead_s": 0.0})
    host_free = stack.model_copy(update={"launch": launch})
    job = make_job(load_model("small-llama"), where, Plan.model_validate(layout), TRAINING, host_free)
    return export_traces(job, where)


def replayed_s(binary: Path, made: ExportedTraces) -> float:
    """Seconds until the last rank of a trace has finished, as the program says them in cycles of a nanosecond."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in made.files.items():
            (Path(folder) / name).write_bytes(data)
        files = {"comm-group": GROUPS, "system": SYSTEM, "network": NETWORK, "remote-memory": MEMORY}
        flags = [f"--{name}-configuration={file}" for name, file in files.items()]
        command = [str(binary.resolve()), f"--workload-configuration={PREFIX}", *flags]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    cycles = re.findall(r"sys\[\d+\] finished, (\d+) cycles", done.stdout)
    if len(cycles) != sum(name.endswith(".et") for name in made.files):
        raise SystemExit(f"{binary}: {len(cycles)} ranks finished:\n{done.stdout[-2000:]}")
    return max(map(int, cycles)) / GIGA


def main() -> int:
    """Compare all layouts; 1 where one is too far apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, required=True, help="ASTRA-sim with the analytical back end")
    binary = parser.parse_args().binary
    print(f"{'layout':<32}{'simpar':>12}{'ASTRA-sim':>12}{'apart':>9}")
    worst = 0.0
    for nodes, layout in LAYOUTS:
        made = exported(nodes, layout)
        there_s = replayed_s(binary, made)
        apart = there_s / made.step_time_s - 1
        worst = max(worst, abs(apart))
        words = f"{nodes} x 4: " + ", ".join(f"{name} {value}" for name, value in layout.items())
        print(f"{words:<32}{made.step_time_s * 1000:>9.3f} ms{there_s * 1000:>9.3f} ms{apart:>9.1%}")
    return int(worst > MOST_APART)


if __name__ == "__main__":
    sys.exit(main())

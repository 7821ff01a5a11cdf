"""DiLoCo: local SGD whose average is an outer gradient that an outer optimizer with momentum applies.

The outer gradient, the change since the round began, is reduced in fp32; every replica then updates its own copy:
it reads the reduced change, the start of the round and the momentum and writes the last two and the parameters.
Source: Douillard et al. 2023, arXiv 2311.08105, algorithm 1.
"""

from simpar.replicas.averaging import meet
from simpar.replicas.setting import ReplicaSetting
from simpar.replicas.staleness import MeanStep
from simpar.units import DTYPE_BYTES

READ, WRITTEN = 3, 2  # fp32 values per parameter, beside the copy in the compute dtype


def rounds(setting: ReplicaSetting) -> MeanStep:
    """An all-reduce of the change in fp32, and an outer update of the parameters that each rank holds."""
    wide = DTYPE_BYTES["fp32"]
    job = setting.lowered.job
    ranks = len(setting.replicas.of_rank) / len(setting.replicas)
    moved = setting.num_parameters / ranks * (READ + WRITTEN) * wide + setting.parameter_bytes / ranks
    outer_s = float(job.kernels.memory_time_s(moved, kernels=1))
    return meet(setting, size_bytes=setting.num_parameters * wide, outer_s=outer_s)

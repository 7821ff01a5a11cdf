"""Lower bounds of a step, many rows at once: kernels, paths of pipelines, whole steps, sweeps without contention."""

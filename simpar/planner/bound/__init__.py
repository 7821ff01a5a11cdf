"""Lower bounds of steps, for many rows at once: kernels, pipeline paths, whole steps, contention-free sweeps."""

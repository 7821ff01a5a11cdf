"""A folded Program for everybody: expansion to all units, jitter of their kernels, ranks in lockstep."""

"""One block on one rank: operators become kernels and collectives in order, and those become segments."""

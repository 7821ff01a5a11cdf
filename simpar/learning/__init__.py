"""Parameters of a stack and a cluster from a few measured runs, with priors from how the shipped profiles differ."""

OPEN = ("answer", "fit", "parameters", "suggest")
"""The modules that other rooms may import; all others are inner."""

"""From a torch module to a graph of operators: it is traced without weights, read, and cut into blocks."""

OPEN = ("code", "library", "load")
"""The modules that other rooms may import; all others are inner."""

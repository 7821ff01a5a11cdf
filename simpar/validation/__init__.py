"""Predictions compared with published measurements."""

OPEN = ("cells", "chosen", "collectives", "predict", "rows", "table", "tuned")
"""The modules that other rooms may import; all others are inner."""

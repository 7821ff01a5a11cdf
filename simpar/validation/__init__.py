"""Predictions compared with published measurements."""

OPEN = ("cells", "profile_overrides", "collectives", "predict", "rows", "table", "open_settings")
"""The modules that other rooms may import; all others are inner."""

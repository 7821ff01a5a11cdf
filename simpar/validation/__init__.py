"""Predictions compared with published measurements."""

OPEN = ("cells", "open_settings", "predict", "profile_overrides", "rows", "table")
"""The modules that other rooms may import; all others are inner."""

"""Layouts: plans with everything decided."""

OPEN = ("check", "decide", "deciders", "layout", "mirrored", "moves", "sharding")
"""The modules that other rooms may import; all others are inner."""

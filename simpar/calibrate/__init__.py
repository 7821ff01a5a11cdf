"""Calibration of this machine: kernels, collectives and whole steps measured with torch, and profiles fitted.

torch is an optional extra: modules that import it are loaded by the workers, never by ``import simpar.calibrate``.
"""

OPEN = ("measure", "profile")
"""The modules that other rooms may import; all others are inner."""

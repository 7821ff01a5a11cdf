"""How fast is this machine? Kernels, collectives and whole steps measured with torch, and profiles fitted to them.

torch is an optional extra: modules that import it are loaded by the workers, never by ``import simpar.calibrate``.
"""

"""The runtime: a Plan trained for real with torch, and measured.

torch is an optional extra: modules that import it are loaded by the workers, never by ``import simpar.runtime``.
"""

"""Collective algorithms: latency and bytes per link.

A collective is a few straight lines ``latency + size * seconds_per_byte``, one per algorithm and protocol;
the automatic choice is the lowest line at the size asked for, as NCCL's tuner does. Each algorithm is one
file of :mod:`simpar.cost.collectives.algorithms`.
"""

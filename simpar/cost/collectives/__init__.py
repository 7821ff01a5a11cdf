"""Collective algorithms: latency and bytes per link."""

"""Predictions compared with published measurements."""

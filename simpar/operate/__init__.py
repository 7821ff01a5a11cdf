"""Weeks of training: interruptions, checkpoints, restarts, and the share of time that is useful."""

OPEN = ("outcome", "terminal", "whole_run")
"""The modules that other rooms may import; all others are inner."""

"""Weeks instead of steps: interruptions, checkpoints, restarts, and the share of time that trains."""

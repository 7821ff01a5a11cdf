"""Weeks of training: interruptions, checkpoints, restarts, and the share of time that is useful."""

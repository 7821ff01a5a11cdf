"""The uniform space: its axes, its rows, which of them memory allows, and the jobs they stand for."""

"""The uniform space: its axes, its rows, which rows memory allows, and the jobs of rows."""

"""Layouts: plans with everything decided."""

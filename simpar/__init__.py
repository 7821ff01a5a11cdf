"""Simulate, plan and run distributed training of large models."""

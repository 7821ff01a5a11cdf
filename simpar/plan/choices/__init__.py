"""The choices of a plan, by section: one file each."""

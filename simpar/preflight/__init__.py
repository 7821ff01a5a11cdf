"""What a launch command or a config of another framework would do, before the launch, and which flags do better."""

OPEN = ("ask", "check", "given", "environment", "slices", "terminal")
"""The modules that other rooms may import; all others are inner."""

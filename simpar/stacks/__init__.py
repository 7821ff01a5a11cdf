"""Software stacks: what training frameworks fuse, overlap, bucket and keep in memory, as profiles."""

OPEN = ("stack",)
"""The modules that other rooms may import; all others are inner."""

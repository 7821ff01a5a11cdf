"""Software stacks: what training frameworks fuse, overlap, bucket and keep in memory, as profiles."""

"""Spaces whose stages differ: cuts into uneven stages, and stages with meshes and roles of their own (``alpa``)."""

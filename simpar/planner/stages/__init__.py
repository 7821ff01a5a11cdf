"""Spaces with unlike stages: uneven cuts into stages, and stages with meshes and roles of their own (``alpa``)."""

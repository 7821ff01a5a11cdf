"""How is it split? Mesh, sharding, schedules and the Plan."""

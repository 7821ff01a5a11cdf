"""Pipeline schedules as tables of actions."""

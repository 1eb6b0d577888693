"""Online EM: families, E-steps, schedules and drivers."""

"""Online EM: families, E-steps, schedules and the driver."""

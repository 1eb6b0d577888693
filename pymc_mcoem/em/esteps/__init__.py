"""E-steps: from one observation and θ to mean statistics."""

"""The Carlin-Chib kernel, its pseudo-priors and moves, and the step method."""

"""Moves of the latents within their class, and annealed jumps between classes."""

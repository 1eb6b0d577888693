"""Deformations that move the points of a template."""

"""Dictionaries of kernels for templates."""

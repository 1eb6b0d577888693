"""Dictionaries of kernels in which templates are written."""

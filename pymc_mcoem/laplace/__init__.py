"""Searches for modes, and the normal approximations around them."""

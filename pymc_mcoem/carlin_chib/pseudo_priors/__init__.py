"""Pseudo-priors, from which the latents of inactive classes are drawn."""

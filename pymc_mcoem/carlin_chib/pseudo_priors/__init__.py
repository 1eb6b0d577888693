"""Pseudo-priors: what the latents of inactive classes are drawn from."""

"""The log-density of a model by class: blocks, plates, and the geometry of its latents."""

"""The log-density of a model by class: blocks, plates, and what is known of its latents."""

"""Diagnostics of chains of categories, and comparison of runs."""

import lazy_loader

# The stub beside this file lists the names. Each is loaded at its first use, because the step
# method needs one of them and not scikit-learn.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

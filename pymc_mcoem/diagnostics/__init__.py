"""Diagnostics of chains of categories, and comparison of runs."""

import lazy_loader

# Names are in the stub beside this file. The step method needs one of them without scikit-learn.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

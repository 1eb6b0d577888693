"""Templates behind noisy, warped, partly missing curves and images, learned one at a time."""

from importlib.metadata import version

import lazy_loader

__version__ = version("pymc_mcoem")

# The stub beside this file lists the names. Each is loaded at its first use: diagnostics and plots
# import ArviZ, and a mixture's start imports scikit-learn, but sampling needs neither.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

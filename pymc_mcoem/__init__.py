"""Templates behind noisy, warped, partly missing curves and images, learned one at a time."""

from importlib.metadata import version

import lazy_loader

__version__ = version("pymc_mcoem")

# Names are in the stub beside this file. Each is loaded when it is first asked for: what judges and
# draws brings ArviZ along, what starts a mixture scikit-learn, and who samples needs neither.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

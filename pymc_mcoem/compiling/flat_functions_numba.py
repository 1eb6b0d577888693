"""The type of the functions that compiled loops call.

Importing this module imports numba.
"""

from __future__ import annotations

from numba import types

__all__ = ["FUNCTION", "INTEGERS", "REALS"]

REALS, INTEGERS = types.float64[::1], types.int64[::1]

#: (class, position, reals, integers, output) → value; see
#: `pymc_mcoem.compiling.flat_functions`.
FUNCTION = types.FunctionType(types.float64(types.int64, REALS, REALS, INTEGERS, REALS))

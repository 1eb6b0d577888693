"""PyTensor without a compiler: for tests that evaluate many small graphs a few times each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytensor
import pytest


@contextmanager
def interpreted() -> Iterator[None]:
    """Run every graph that is compiled inside in the Python interpreter.

    A graph takes a second instead of half a minute the first time, and milliseconds instead of
    microseconds each time after. So pseudo-priors are judged by a tenth of the sweeps.
    """
    with pytensor.config.change_flags(cxx="", mode="FAST_COMPILE"), judged_by_few_sweeps():
        yield


@contextmanager
def judged_by_few_sweeps() -> Iterator[None]:
    """Judge the pseudo-priors of each chain by 50 sweeps, which change no draw, instead of 500."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pymc_mcoem.carlin_chib.chain_fits.N_CHECKED", 50)
        yield

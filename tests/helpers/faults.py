"""Calls of the operating system that fail, one of them or all from one on."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import pymc_mcoem
from pymc_mcoem.em import storage
from pymc_mcoem.runs import datatree_files

PACKAGE = str(Path(pymc_mcoem.__file__).parent)

#: All that saving a run asks of the operating system that can fail and changes something.
CALLS = ("open", "write", "fsync", "close", "replace", "link", "unlink")


class Faults:
    """Counts calls, and makes one of them fail, or that and all behind it."""

    def __init__(self, at=None, error=None, *, lasting=False):
        self.at, self.error, self.lasting, self.made = at, error, lasting, []

    def meets(self, name):
        self.made.append(name)
        n = len(self.made)
        return self.at is not None and (n == self.at or (self.lasting and n > self.at))


def disk_error(number):
    return OSError(number, os.strerror(number))


@contextmanager
def failing(monkeypatch, at=None, error=errno.EIO, *, calls=CALLS, lasting=False):
    """Have the `at`-th of these calls fail; yield what counts them."""
    faults = Faults(at, error, lasting=lasting)

    def counted(name, real):
        def call(*arguments, **named):
            if faults.meets(name):
                raise disk_error(error) if isinstance(error, int) else error
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patched:
        for name in calls:
            patched.setattr(os, name, counted(name, getattr(os, name)))
        yield faults


@contextmanager
def fault_at(number, error=None):
    """Have the `number`-th function of the package that is called fail at its start.

    A function in place of an error is called there.
    """
    monitoring = sys.monitoring
    tool, made = monitoring.DEBUGGER_ID, []

    def started(code, _):
        if not code.co_filename.startswith(PACKAGE):
            return monitoring.DISABLE
        made.append(code.co_qualname)
        if len(made) == number:
            if callable(error):
                return error()
            raise error
        return None

    monitoring.use_tool_id(tool, "faults")
    try:
        monitoring.register_callback(tool, monitoring.events.PY_START, started)
        monitoring.set_events(tool, monitoring.events.PY_START)
        yield made
    finally:
        monitoring.set_events(tool, 0)
        monitoring.restart_events()
        monitoring.register_callback(tool, monitoring.events.PY_START, None)
        monitoring.free_tool_id(tool)


def chosen(n, rng, size):
    """Return some of the numbers to `n`, or all."""
    return range(1, n + 1) if size is None else np.sort(rng.choice(n, size, False) + 1).tolist()


#: Functions that are called only where the files of runs are those of HDF5.
OF_HDF5 = ("bytes_of", "_without_fill_values")


def without_hdf5(monkeypatch):
    """Have files that hold their trees as pickles: HDF5 takes nine tenths of a small run's time."""
    monkeypatch.setattr(storage, "bytes_of", pickle.dumps)
    monkeypatch.setattr(datatree_files, "_tree_in", lambda found, *_: pickle.loads(found))

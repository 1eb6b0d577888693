"""Calls of the operating system that fail, one of them or all from one on."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager

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

"""Ctrl-C inside compiled code, and E-steps in which it is pressed."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numba
from numba import types

from tests.helpers.toy_families import CompiledNoisy, Noisy

_raise = types.ExternalFunction("raise", types.int32(types.int32))
_check = types.ExternalFunction("PyErr_CheckSignals", types.int32())
_SIGINT = int(signal.SIGINT)


@numba.njit
def press():
    """Press Ctrl-C where Python's handler runs in compiled code: that comes as a SystemError."""
    _raise(_SIGINT)
    _check()


@numba.njit
def spin(n):
    """Compute for a while, listening to signals as what is compiled does between its parts."""
    total = 0.0
    for i in range(n):
        total += i**0.5
        _check()
    return total


@dataclass(frozen=True)
class Pressing(Noisy):
    """An E-step in which Ctrl-C is pressed at some calls, by their number, so many times."""

    presses: dict[int, int] = field(default_factory=dict)

    def compile(self, family):
        press_not_yet()
        return CompiledPressing(family, False, self.presses, [])


@dataclass(frozen=True)
class CompiledPressing(CompiledNoisy):
    presses: dict[int, int]
    calls: list[int]

    def __call__(self, *arguments, **options):
        self.calls.append(1)
        for _ in range(self.presses.get(len(self.calls), 0)):
            press()
        return super().__call__(*arguments, **options)


@dataclass(frozen=True)
class Spinning(Noisy):
    """An E-step that takes milliseconds in compiled code, and hears signals there."""

    n: int = 100_000

    def compile(self, family):
        return CompiledSpinning(family, False, self.n)


@dataclass(frozen=True)
class CompiledSpinning(CompiledNoisy):
    n: int

    def __call__(self, *arguments, **options):
        spin(self.n)
        return super().__call__(*arguments, **options)


def press_not_yet():
    """Compile before it counts."""
    press.compile(())
    spin.compile((types.int64,))


_sleep = types.ExternalFunction("sleep", types.uint32(types.uint32))


@numba.njit
def hang():
    """Hang in compiled code, with Python's lock held, for ten minutes."""
    for _ in range(600):
        _sleep(1)


@dataclass(frozen=True)
class Hanging(Noisy):
    """An E-step that hangs at 7, as often as there are files to remove."""

    folder: str = ""

    def compile(self, family):
        hang.compile(())
        return CompiledHanging(family, False, self.folder)


@dataclass(frozen=True)
class CompiledHanging(CompiledNoisy):
    folder: str

    def __call__(self, data, *arguments, **options):
        if float(data["value"]) == 7.0:
            lives = sorted(Path(self.folder).iterdir())
            if lives:
                lives[0].unlink()
                hang()
        return super().__call__(data, *arguments, **options)


@dataclass(frozen=True)
class HangingToCompile(Noisy):
    """An E-step that workers hang at while they compile it."""

    def compile(self, family):
        hang.compile(())
        if multiprocessing.parent_process() is not None:
            hang()
        return super().compile(family)

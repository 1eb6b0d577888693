"""Checks of numeric arguments."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

__all__ = [
    "LARGEST",
    "as_numbers",
    "is_number",
    "is_whole",
    "require_whole",
]

#: Largest absolute value in observations; sums of squares of larger ones may not be finite.
LARGEST = 1e100
#: Most characters of a value that an error shows, so that its remedy stays in sight.
SHOWN = 120


def as_numbers(name: str, value: Any) -> np.ndarray:
    """Return `value` as an array of float64.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : array_like

    Raises
    ------
    ValueError
        If `value` has anything but real numbers, or its rows differ in length.

    Examples
    --------
    >>> as_numbers("ages", [1, 2])
    array([1., 2.])
    >>> as_numbers("ages", "old")
    Traceback (most recent call last):
        ...
    ValueError: ages is 'old'; give real numbers.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError):
        shown = " ".join(repr(value).split())
        shown = shown if len(shown) <= SHOWN else shown[:SHOWN] + " ..."
        raise ValueError(f"{name} is {shown}; give real numbers.") from None


def is_number(value: Any) -> bool:
    """Return whether `value` is one finite real number.

    Examples
    --------
    >>> is_number(0.5), is_number("wide"), is_number([1.0]), is_number(float("nan"))
    (True, False, False, False)
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    return isinstance(value, Real) and bool(np.isfinite(float(value)))


def is_whole(value: Any) -> bool:
    """Return whether `value` is an integer, but not a bool.

    Examples
    --------
    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def require_whole(name: str, value: Any, least: int) -> None:
    """Check that an argument is a whole number from `least` on.

    Raises
    ------
    ValueError
        If it is not.

    Examples
    --------
    >>> require_whole("draws", 0, 1)
    Traceback (most recent call last):
        ...
    ValueError: draws: got 0; give a whole number from 1.
    """
    if not is_whole(value) or value < least:
        raise ValueError(f"{name}: got {value!r}; give a whole number from {least}.")

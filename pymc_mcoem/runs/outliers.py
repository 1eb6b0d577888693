"""Records that are finite and absurd: a bound from what was seen recently.

A sentinel such as -9999, or a byte that was flipped, is finite, and one value of 1e30 among sixty
of size one would make the noise variance 1e58. What is refused lies thousands of times further
out than records commonly reach, so that heavy tails, and rare kinds of records, are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.validation import is_number

if TYPE_CHECKING:
    from pymc_mcoem.labelling import Arrays

__all__ = [
    "IN_A_ROW",
    "Absurd",
    "absurd_among",
    "check_refuse_beyond",
    "largest",
    "remembered",
    "require_plausible",
    "span",
]

#: Records that the bound is taken from, and the fewest.
WINDOW, LEAST = 100, 10
#: With fewer, from three on, a bound that only what is absurd beyond doubt goes past.
FEW, LOOSE = 3, 1e12
#: Share of its size by which a value may differ and be the same.
ROUNDING = 1e-9
#: Refusals in a row after which a warning says that the stream may have changed.
IN_A_ROW = 10


class Absurd(ValueError):
    """A record too far from those before it."""


def check_refuse_beyond(value: Any) -> None:
    """Complain about what is no bound.

    Raises
    ------
    ValueError
        If it is neither None nor a number above 1.
    """
    if value is not None and not (is_number(value) and value > 1):
        raise ValueError(
            f"refuse_beyond: got {value!r}; give a number above 1, as 10_000, or None to take all."
        )


def span(observation: Any) -> Arrays:
    """Return the smallest, the middle and the largest value of each part of a record.

    Parameters
    ----------
    observation : ndarray or mapping of str to ndarray
        NaN where it is missing.

    Examples
    --------
    >>> span(np.array([1.0, np.nan, 4.0, 2.0]))
    {'observation': array([1., 2., 4.])}
    """
    parts = {"observation": observation}
    if isinstance(observation, Mapping):
        parts = {f"observation:{name}": value for name, value in observation.items()}
    found: Arrays = {}
    for name, value in parts.items():
        seen = np.ravel(np.asarray(value, dtype=np.float64))
        seen = seen[np.isfinite(seen)]
        if seen.size:
            found[name] = np.array([seen.min(), np.median(seen), seen.max()])
    return found


def remembered(recent: Arrays | None, spanned: Arrays) -> Arrays:
    """Return what is known of recent records with one more: rows as `span` gives, by part."""
    known = dict(recent or {})
    for name, row in spanned.items():
        rows = known.get(name, np.zeros((0, 3)))
        known[name] = np.concatenate([rows[1 - WINDOW :], row[None]])
    return known


def largest(parameters: Arrays | None) -> float:
    """Return the size of the largest number among parameters, 0 where there are none."""
    values = (np.abs(value).max(initial=0.0) for value in (parameters or {}).values())
    return float(max(values, default=0.0))


def require_plausible(
    spanned: Arrays, recent: Arrays | None, beyond: float | None, unit: float | None = None
) -> None:
    """Refuse a record that lies too far from recent ones.

    Parameters
    ----------
    spanned : dict of str to ndarray
        As from `span`.
    recent : dict of str to ndarray, or None
        As from `remembered`.
    beyond : float or None
        How many times as far from the median of what was seen as the middle one of recent records
        reaches. None: nothing is refused. Of fewer than ten records, and where they are all alike,
        it is 1e12, or `beyond` if that is more.
    unit : float, optional
        What size values have where recent records do not say: there are not three, or all are
        zero. If 0, nothing is refused then. Not given: records are held and looked at again, and
        nothing is refused before there are ten.

    Raises
    ------
    Absurd
        If it lies further.

    Notes
    -----
    Medians move only when half of what is recent does, so that an absurd record which came among
    the first ten does not let others in.

    Examples
    --------
    >>> recent = None
    >>> for value in np.linspace(-1.0, 1.0, 20):
    ...     recent = remembered(recent, span(np.array(value)))
    >>> require_plausible(span(np.array(300.0)), recent, 10_000.0)
    >>> require_plausible(span(np.array(-99999.0)), recent, 10_000.0)
    Traceback (most recent call last):
        ...
    pymc_mcoem.runs.outliers.Absurd: observation reaches -99999, 1.9e+05 times as far from ...
    """
    if beyond is None:
        return
    for name, row in spanned.items():
        rows = (recent or {}).get(name, np.zeros((0, 3)))
        middle, typical, allowed = 0.0, unit or 0.0, max(beyond, LOOSE)
        if len(rows) < LEAST and unit is None:
            continue
        if len(rows) >= FEW:
            middle = np.median(rows[:, 1])
            reach, size = _reach(rows, middle), np.median(np.abs(rows).max(axis=1))
            # rounding errors of records that are all alike are no measure of what others may be
            reach = np.sort(reach[reach > ROUNDING * size])
            if reach.size and len(rows) >= LEAST:
                typical, allowed = np.median(reach), beyond
            else:
                # of two the lower: the other may be the absurd one
                typical = reach[(reach.size - 1) // 2] if reach.size else size or typical
        if not typical:
            continue
        ratio = _reach(row[None], middle)[0] / typical
        if ratio > allowed:
            furthest = row[0] if middle - row[0] > row[2] - middle else row[2]
            raise Absurd(
                f"{name} reaches {furthest:.6g}, {ratio:.2g} times as far from the median of "
                f"recent records as these do ({allowed:g} are allowed); see to the source, or give "
                "another refuse_beyond, None to take all."
            )


def _reach(rows: np.ndarray, middle: Any) -> np.ndarray:
    reach: np.ndarray = np.maximum(rows[:, 2] - middle, middle - rows[:, 0])
    return reach


def absurd_among(
    spans: Sequence[Arrays], beyond: float | None, unit: float = 0.0
) -> dict[int, Absurd]:
    """Return which of some records lie too far from the others, and why.

    Examples
    --------
    >>> spans = [span(np.array(value)) for value in [1e30, *np.linspace(-1.0, 1.0, 20)]]
    >>> list(absurd_among(spans, 10_000.0))
    [0]
    """
    names = sorted({name for each in spans for name in each})
    rows = {name: np.array([each[name] for each in spans if name in each]) for name in names}
    found: dict[int, Absurd] = {}
    for index, each in enumerate(spans):
        try:
            require_plausible(each, rows, beyond, unit)
        except Absurd as error:
            found[index] = error
    return found

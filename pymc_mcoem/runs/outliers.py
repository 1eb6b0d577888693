"""Detection of finite but absurd records, by a bound from recent ones.

A sentinel such as -99999 and the result of a flipped bit are finite, and one value of 1e30 among
sixty of size one would make the noise variance 1e58. Records are refused if they lie thousands of
times further out than others typically reach, so that heavy tails and rare kinds of records are
accepted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.validation import is_number

if TYPE_CHECKING:
    from pymc_mcoem.labeling import Arrays

__all__ = [
    "IN_A_ROW",
    "Absurd",
    "RefusedInARow",
    "absurd_among",
    "check_refuse_beyond",
    "largest",
    "remembered",
    "require_plausible",
    "span",
]

_log = logging.getLogger("pymc_mcoem")

#: Largest and smallest number of records from which the bound is computed.
WINDOW, LEAST = 100, 10
#: With fewer records, but at least 3, a loose bound applies that only absurd values exceed.
FEW, LOOSE = 3, 1e12
#: Relative difference up to which two values count as equal.
ROUNDING = 1e-9
#: Number of refusals in a row after which a warning says that the stream may have changed.
IN_A_ROW = 10


class Absurd(ValueError):
    """A record that lies too far from those before it."""


class RefusedInARow:
    """Number of records in a row that were refused as absurd; many give a warning."""

    def __init__(self) -> None:
        self._number = 0

    def count(self, error: Exception | None, position: int) -> None:
        """Count the record at a position of the stream, given the error that refused it, if any."""
        self._number = self._number + 1 if isinstance(error, Absurd) else 0
        if self._number == IN_A_ROW:
            _log.warning(
                "%d records in a row, the last of them %d, counted from 0, are refused because "
                "they lie far from those before: the stream may have changed, perhaps its unit. %s",
                IN_A_ROW,
                position,
                error,
            )

    def count_all(self, positions: Iterable[int], errors: Mapping[int, Exception]) -> None:
        """Count several records, given the errors of those that were refused, by position."""
        for position in positions:
            self.count(errors.get(position), position)


def check_refuse_beyond(value: Any) -> None:
    """Check the argument `refuse_beyond` of drivers."""
    if value is not None and not (is_number(value) and value > 1):
        raise ValueError(
            f"refuse_beyond: got {value!r}; give a number above 1, such as 10_000, or None to "
            "accept all."
        )


def span(observation: Any) -> Arrays:
    """Return the minimum, the median and the maximum of each part of a record.

    Parameters
    ----------
    observation : ndarray or mapping of str to ndarray
        Missing values are NaN.

    Examples
    --------
    >>> span(np.array([1.0, np.nan, 4.0, 2.0]))
    {'observation': array([1., 2., 4.])}
    """
    named = {"observation": observation}
    if isinstance(observation, Mapping):
        named = {f"observation:{name}": value for name, value in observation.items()}
    found: Arrays = {}
    for name, value in named.items():
        seen = np.ravel(np.asarray(value, dtype=np.float64))
        seen = np.sort(seen[np.isfinite(seen)])
        if seen.size:
            found[name] = np.array([seen[0], _median(seen), seen[-1]])
    return found


def remembered(recent: Arrays | None, spanned: Arrays) -> Arrays:
    """Return the `span` of recent records including one more: rows by part."""
    known = dict(recent or {})
    for name, row in spanned.items():
        rows = known.get(name, np.zeros((0, 3)))
        known[name] = np.concatenate([rows[1 - WINDOW :], row[None]])
    return known


def largest(parameters: Arrays | None) -> float:
    """Return the largest absolute value among parameters; 0 if there are none."""
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
        Largest allowed distance from the median of recent records, in units of their median
        distance. None: nothing is refused. With fewer than ten records, or if they are all alike,
        it is 1e12, or `beyond` if that is more.
    unit : float, optional
        Typical size of values if recent records do not show it, because there are fewer than
        three or all are zero. If 0, nothing is refused then. By default, records are held and
        checked again later, and nothing is refused before there are ten.

    Notes
    -----
    Medians move only if half of the recent records do, so that an absurd record among the first
    ten does not let in others.

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
            middle = _median(np.sort(rows[:, 1]))
            reach = _reach(rows, middle)
            size = _median(np.sort(np.abs(rows).max(axis=1)))
            # rounding errors among records that are all alike are not a measure of size
            reach = np.sort(reach[reach > ROUNDING * size])
            # where most are alike, the few others may be the absurd ones
            if 2 * reach.size <= len(rows) and (size or typical):
                reach = reach[reach <= allowed * (size or typical)]
            if reach.size and len(rows) >= LEAST:
                typical, allowed = _median(reach), beyond
            else:
                # the lower median, because the larger of two may be the absurd one
                typical = reach[(reach.size - 1) // 2] if reach.size else size or typical
        if not typical:
            continue
        ratio = _reach(row[None], middle)[0] / typical
        if ratio > allowed:
            furthest = row[0] if middle - row[0] > row[2] - middle else row[2]
            than = "from the median of recent records as these do"
            if len(rows) < FEW:
                than = "from 0 as the largest of the parameters"
            raise Absurd(
                f"{name} reaches {furthest:.6g}, {ratio:.2g} times as far {than} ({allowed:g} are "
                "allowed); check the source, or give another refuse_beyond, None to accept all."
            )


def _median(ordered: np.ndarray) -> float:
    """Return the median of sorted values; `np.median` takes ten times as long for a few."""
    low, high = ordered[(ordered.size - 1) // 2], ordered[ordered.size // 2]
    return float(low if low == high else low / 2 + high / 2)


def _reach(rows: np.ndarray, middle: Any) -> np.ndarray:
    reach: np.ndarray = np.maximum(rows[:, 2] - middle, middle - rows[:, 0])
    return reach


def absurd_among(
    spans: Mapping[int, Arrays], beyond: float | None, unit: float = 0.0
) -> dict[int, Absurd]:
    """Return the records that lie too far from the others, by position, with the error for each.

    Examples
    --------
    >>> values = [1e30, *np.linspace(-1.0, 1.0, 20)]
    >>> list(absurd_among({at: span(np.array(value)) for at, value in enumerate(values)}, 10_000.0))
    [0]
    """
    names = sorted({name for each in spans.values() for name in each})
    rows = {
        name: np.array([each[name] for each in spans.values() if name in each]) for name in names
    }
    found: dict[int, Absurd] = {}
    for position, each in spans.items():
        try:
            require_plausible(each, rows, beyond, unit)
        except Absurd as error:
            found[position] = error
    return found

"""Whether a run has settled: a hint from its evidence and the path of its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.history import recorded_names

__all__ = ["Convergence", "convergence"]

#: A gain in evidence is seen from so many standard errors on.
_SEEN = 2.0
#: Rows that a window needs for its mean and its error to say anything.
_MIN_ROWS = 8


@dataclass(frozen=True)
class Convergence:
    """What `convergence` found. Printing it shows the hint.

    Attributes
    ----------
    log_evidence : float
        Mean log p(y) of the observations of the last window, each before it was learnt; NaN if the
        E-step reports none.
    evidence_gain, evidence_gain_se : float
        By how much that is more than the mean of the window before, and its standard error.
    change : Dataset
        For each parameter, the root mean square of the difference between its means over the two
        windows, relative to the root mean square of the later one.
    settled : bool
        Whether no gain in evidence is seen and all changes are within the tolerance.
    hint : str
        The same in words.
    window : int
        Observations in each window.
    """

    log_evidence: float
    evidence_gain: float
    evidence_gain_se: float
    change: xr.Dataset
    settled: bool
    hint: str
    window: int

    def __str__(self) -> str:
        return self.hint


def convergence(
    history: xr.DataTree, *, window: int | None = None, tolerance: float = 0.05
) -> Convergence:
    """Say whether a run has settled, as a hint for when to stop.

    The rule: over the last `window` observations, compared with as many before them, (1) the mean
    log-evidence has not grown by more than two standard errors, and (2) no parameter has changed
    by more than `tolerance`. Nothing stops a run but the end of its stream.

    Parameters
    ----------
    history : DataTree
        `OnlineEM.history`, or a saved run as `xarray.open_datatree` opens it.
    window : int, optional
        Default: a quarter of the observations learnt.
    tolerance : float
        Relative change that is small enough.

    Returns
    -------
    Convergence

    Raises
    ------
    TypeError
        If `history` is no DataTree.
    ValueError
        If it is not the history of a run, `tolerance` is not positive, or two windows do not fit
        into the run.

    Notes
    -----
    A run that has settled has found a place to stay, which may be a poor local optimum, and small
    gains make every run settle: compare other starts (`compete`) and larger gains. Of stationary
    streams the first condition fails one time in forty by chance. Standard errors take the
    observations as independent and are those of noise in the data and the E-step alone. There are
    no standard errors of θ: the score's covariance would need the scores of single observations,
    which are not kept, and would leave out that θ moves; repeat the run on bootstrapped streams if
    they are needed. Cost: a pass over the rows that the history keeps.

    Examples
    --------
    >>> n = np.arange(101)
    >>> path = xr.Dataset({"mean": ("step", 1 + 5.0 / (1 + n**2))}, {"step": n})
    >>> path["observation"] = "step", n
    >>> seen = xr.Dataset({"log_evidence": ("observation", np.cos(n[1:]))}, {"observation": n[1:]})
    >>> found = convergence(xr.DataTree.from_dict({"online_em": path, "observations": seen}))
    >>> found.settled, found.hint[:49]
    (True, 'Settled: over the last 25 observations no gain in')
    """
    if not isinstance(history, xr.DataTree):
        raise TypeError(
            f"history: got a {type(history).__name__}; give the DataTree that is em.history."
        )
    missing = sorted({"online_em", "observations"} - set(history.children))
    if missing:
        raise ValueError(f"history: has no groups {missing}; give em.history of a driver.")
    if not tolerance > 0:
        raise ValueError(f"tolerance: got {tolerance!r}; give a positive number.")
    path, seen = history["online_em"].to_dataset(), history["observations"].to_dataset()
    number = path["observation"].values
    n = int(number[-1]) if len(number) else 0
    size = max(n // 4, 1) if window is None else window
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ValueError(f"window: got {window!r}; give a whole number of at least 1.")
    later, before = _windows(number, n, size)
    if n < 2 * size or min(later.sum(), before.sum()) < _MIN_ROWS:
        raise ValueError(
            f"window: of {size} observations, and the {size} before them, the history of {n} keeps "
            f"{int(later.sum())} and {int(before.sum())} steps, and {_MIN_ROWS} are needed; learn "
            "more, or take another window."
        )
    change = xr.Dataset(
        {
            str(name): _relative(values, later, before)
            for name, values in path.data_vars.items()
            if name not in recorded_names()
        }
    )
    mean, gain, error = _evidence(seen, n, size)
    largest = max(change.data_vars, key=lambda name: float(change[name]))
    most = float(change[largest])
    grows = bool(gain > _SEEN * error)
    settled = not grows and most <= tolerance
    return Convergence(
        mean,
        gain,
        error,
        change,
        settled,
        _hint(size, gain, error, grows, largest, most, tolerance),
        int(size),
    )


def _windows(number: np.ndarray, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    later = number > n - size
    return later, (number > n - 2 * size) & ~later & (number > 0)


def _relative(values: xr.DataArray, later: np.ndarray, before: np.ndarray) -> float:
    new, old = (values.values[rows].mean(axis=0) for rows in (later, before))
    size = float(np.sqrt(np.mean(np.square(new))))
    moved = float(np.sqrt(np.mean(np.square(new - old))))
    return moved / size if size else (0.0 if not moved else np.inf)


def _evidence(seen: xr.Dataset, n: int, size: int) -> tuple[float, float, float]:
    later, before = (
        seen["log_evidence"].values[rows] for rows in _windows(seen["observation"].values, n, size)
    )
    if min(len(later), len(before)) < 2:
        return float("nan"), float("nan"), float("nan")
    error = np.sqrt(later.var(ddof=1) / len(later) + before.var(ddof=1) / len(before))
    return float(later.mean()), float(later.mean() - before.mean()), float(error)


def _hint(
    size: int, gain: float, error: float, grows: bool, name: Any, most: float, tolerance: float
) -> str:
    if np.isnan(gain):
        evidence = "nothing is known of the evidence"
    else:
        seen = "a gain" if grows else "no gain"
        evidence = f"{seen} in log-evidence ({gain:.1g} ± {error:.1g} an observation)"
    moved = most > tolerance
    changed = (
        f"{name} changed most, by {most:.2g}"
        if moved
        else (f"no parameter changed by more than {tolerance:g} (most: {name}, by {most:.2g})")
    )
    verdict = "Not settled" if grows or moved else "Settled"
    return f"{verdict}: over the last {size} observations {evidence}, and {changed}."

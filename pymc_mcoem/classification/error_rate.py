"""Error rate of a classifier along a stream from which it learns."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import stats

from pymc_mcoem.validation import as_numbers, require_whole

__all__ = ["live_error_rate"]


def live_error_rate(
    predicted: ArrayLike,
    actual: ArrayLike,
    *,
    window: int = 100,
    probability: float = 0.95,
    seconds: ArrayLike | None = None,
) -> xr.Dataset:
    """Return the error rate along a stream whose observations are classified, then learned.

    Each observation is first used for testing and then for learning, so no data are held out.

    Parameters
    ----------
    predicted, actual : array_like of shape (n,)
        Labels in the order of the stream. A prediction must not have used its own observation.
    window : int
        Number of observations in ``recent``.
    probability : float
        Probability of the interval, between 0 and 1.
    seconds : array_like of shape (n,), optional
        Time spent on learning until each prediction, to plot the rate against it.

    Returns
    -------
    Dataset with dimension ``observation``, counted from 1
        ``cumulative``, the share of errors so far; ``recent``, the share among the last `window`
        observations, or all if there are fewer, with the bounds ``lower`` and ``upper``;
        ``seconds``, if given.

    Raises
    ------
    ValueError
        If the numbers of labels differ or there is none, `window` is less than 1, `probability`
        is not between 0 and 1, or `seconds` have another length or decrease.

    See Also
    --------
    pymc_mcoem.predict_then_learn : Classifies and learns a stream, and returns its rate.

    Notes
    -----
    Bounds are quantiles of Beta(e + 1/2, w − e + 1/2) given e errors among w observations (the
    interval of Jeffreys; 0 and 1 if there were no errors or only errors). They cover chance only:
    the rate itself changes as the run learns, and neighboring windows overlap. Early errors have a
    lasting effect on ``cumulative``.

    References
    ----------
    Brown, Cai and DasGupta (2001), Interval estimation for a binomial proportion, Statistical
    Science 16, 101-133. Gama, Sebastião and Rodrigues (2013), On evaluating stream learning
    algorithms, Machine Learning 90, 317-346.

    Examples
    --------
    >>> rate = live_error_rate([0, 1, 1, 0], [1, 1, 1, 0], window=2)
    >>> rate["recent"].values, rate["cumulative"].values.round(2)
    (array([1. , 0.5, 0. , 0. ]), array([1.  , 0.5 , 0.33, 0.25]))
    """
    first, second = np.asarray(predicted), np.asarray(actual)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(
            f"actual: has shape {second.shape}, and predicted {first.shape}; give one label each "
            "for at least one observation."
        )
    require_whole("window", window, 1)
    if not 0 < probability < 1:
        raise ValueError(f"probability: got {probability!r}; give a number between 0 and 1.")
    spent = None if seconds is None else _check_seconds(seconds, len(first))
    errors = np.concatenate([[0], np.cumsum(first != second)])
    number = np.arange(1, len(errors))
    begin = np.maximum(number - window, 0)
    found, size = errors[number] - errors[begin], number - begin
    tail = (1 - probability) / 2
    posterior = stats.beta(found + 0.5, size - found + 0.5)
    rows = {
        "cumulative": errors[1:] / number,
        "recent": found / size,
        "lower": np.where(found == 0, 0.0, posterior.ppf(tail)),
        "upper": np.where(found == size, 1.0, posterior.ppf(1 - tail)),
    }
    if spent is not None:
        rows["seconds"] = spent
    return xr.Dataset(
        {name: ("observation", values) for name, values in rows.items()},
        coords={"observation": number},
        attrs={"window": int(window), "probability": float(probability)},
    )


def _check_seconds(seconds: ArrayLike, n: int) -> np.ndarray:
    """Check times and return them as an array."""
    array = as_numbers("seconds", seconds)
    if array.shape != (n,):
        raise ValueError(
            f"seconds: have shape {array.shape} for {n} observations; give one number for each."
        )
    if not (np.isfinite(array).all() and (np.diff(array) >= 0).all()):
        raise ValueError(
            "seconds: some are not finite or less than those before; give the time passed since "
            "the beginning."
        )
    return array

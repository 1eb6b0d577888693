"""Error rate of a classifier that is tried on a stream while it learns."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike
from scipy import stats

__all__ = ["live_error_rate"]


def live_error_rate(
    predicted: ArrayLike, actual: ArrayLike, *, window: int = 100, probability: float = 0.95
) -> xr.Dataset:
    """Return the error rate along a stream whose observations are classified, then learnt.

    Every observation is a test before it is a lesson, so that no data are held back.

    Parameters
    ----------
    predicted, actual : array_like of shape (n,)
        Labels, in the order of the stream. What was predicted must not have used the observation
        itself.
    window : int
        Observations in ``recent``.
    probability : float
        Of the interval, between 0 and 1.

    Returns
    -------
    Dataset with dimension ``observation``, counted from 1
        ``cumulative``, the share of errors until then; ``recent``, that among the last `window`,
        or all as long as there are fewer, with the bounds ``lower`` and ``upper``.

    Raises
    ------
    ValueError
        If the numbers of labels differ or there is none, `window` is less than 1, or
        `probability` is not between 0 and 1.

    Notes
    -----
    Bounds are quantiles of Beta(e + 1/2, w − e + 1/2) given e errors among w observations (the
    interval of Jeffreys; 0 and 1 where there were none or only errors). They are about chance
    alone: the rate itself changes as the run learns, and the windows of neighbours overlap. Early
    errors weigh on ``cumulative`` for ever.

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
    if isinstance(window, bool) or not isinstance(window, (int, np.integer)) or window < 1:
        raise ValueError(f"window: got {window!r}; give a whole number of at least 1.")
    if not 0 < probability < 1:
        raise ValueError(f"probability: got {probability!r}; give a number between 0 and 1.")
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
    return xr.Dataset(
        {name: ("observation", values) for name, values in rows.items()},
        coords={"observation": number},
        attrs={"window": int(window), "probability": float(probability)},
    )

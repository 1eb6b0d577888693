"""Find the sample statistics of `CarlinChib` that belong to one variable of the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_mcoem.density.class_density import index_key

__all__ = [
    "BELIEVED",
    "DRAWN",
    "EQUALIZED_INDEX",
    "EQUALIZING_LOG_WEIGHT",
    "INDEX",
    "LOG_IMPORTANCE",
    "LOG_WEIGHT",
    "PRIOR",
    "StepStatistics",
    "read_prior",
    "read_statistics",
    "vector_name",
]

#: Sample statistic in which `CarlinChib` stores the log-probabilities of the classes.
LOG_WEIGHT = "class_log_weight"

#: Statistic with the prior probabilities of the classes; nan if they are not constants.
PRIOR = "class_prior"

#: Statistic with what was added to the logarithms of the classes' prior probabilities.
EQUALIZING_LOG_WEIGHT = "class_equalizing_log_weight"

#: Statistic that identifies the index of the statistics: `index_key` of its name.
INDEX = "class_of"

#: The same for indices with equalized visits only, in the order of their equalizing weights.
EQUALIZED_INDEX = "class_equalizing_of"

#: Logarithm of the importance weight of a draw of an index with equalized visits.
LOG_IMPORTANCE = "class_log_importance"

#: Probability of the other classes by the evidence that the pseudo-priors estimate.
BELIEVED = "class_believed_elsewhere"

#: Statistic with the class index itself, if it is a single one.
DRAWN = "class_drawn"

#: Name that `EQUALIZING_LOG_WEIGHT` had in earlier versions.
_FORMER = "class_tilt"

_SAMPLE_DIMS = ("chain", "draw")


@dataclass(frozen=True)
class StepStatistics:
    """Statistics of the step that drew a variable, and the weights of its draws by all steps.

    Attributes
    ----------
    log_weight : ndarray of shape (n_rows, n_chains, n_draws, n_classes), or None
        Log-probabilities from which the variable was drawn.
    equalizing_log_weight : ndarray of shape (n_chains, n_draws, n_classes), or None
        What was added to the logarithms of its classes' prior probabilities.
    log_importance : ndarray of shape (n_chains, n_draws), or None
        Logarithms of the draws' importance weights, if visits of any index were equalized.
    believed : ndarray of shape (n_chains, n_draws), or None
        Probability of the other classes by the evidence that the pseudo-priors estimate; nan where
        they give no estimate.
    """

    log_weight: np.ndarray | None = None
    equalizing_log_weight: np.ndarray | None = None
    log_importance: np.ndarray | None = None
    believed: np.ndarray | None = None


def read_statistics(stats: Any, values: np.ndarray, name: str | None = None) -> StepStatistics:
    """Find the statistics that belong to a variable.

    Parameters
    ----------
    stats : Dataset-like or None
        Sample statistics with dimensions chain and draw.
    values : ndarray of shape (n_rows, n_chains, n_draws)
        Draws of the variable.
    name : str, optional
        Name of the variable, which identifies its statistics. Statistics of older runs, which name
        no index, are identified by the draws stored with them.

    Raises
    ------
    ValueError
        If several steps drew class indices and visits of some were equalized, but it is unknown
        which; or if the statistics are of a version that named them otherwise.
    """
    if stats is not None and _FORMER in stats:
        raise ValueError(
            f"data: its sample statistics name {_FORMER} as earlier versions did; rename it to "
            f"{EQUALIZING_LOG_WEIGHT}, and {_FORMER}_of to {EQUALIZED_INDEX}."
        )
    if stats is None or values.dtype.kind not in "iu":
        return StepStatistics()
    shape = values.shape[1:]
    weights = _vectors(stats, LOG_WEIGHT, name, shape)
    if INDEX in stats:
        return _by_name(stats, weights, values, name)
    if not weights:
        return StepStatistics()
    if DRAWN not in stats:
        # The step does not say what it drew: accept its weights if they allow these draws.
        mine = _rows(weights[0], values) if len(weights) == 1 else None
        if mine is not None:
            drawn = np.take_along_axis(mine, values[..., None], axis=-1)
            mine = mine if np.isfinite(drawn).all() else None
        known = mine is not None and len(values) == 1
        found = _by_step(stats, EQUALIZING_LOG_WEIGHT, shape) if known else []
        own = found[0] if found and found[0].shape[-1] == weights[0].shape[-1] else None
        importance = None if own is None else -_of_class(own, values[0])
        return StepStatistics(mine, own, importance)
    return _by_draws(stats, weights, values)


def _by_name(
    stats: Any, weights: list[np.ndarray], values: np.ndarray, name: str | None
) -> StepStatistics:
    """Return the statistics that name the variable, and its draws' weights by all indices."""
    shape = values.shape[1:]
    importance = _numbers(stats, LOG_IMPORTANCE, shape)
    total = np.sum(importance, axis=0) if importance else None
    key = None if name is None else index_key(name)
    names = [int(each.flat[0]) for each in _numbers(stats, INDEX, shape)]
    if key not in names or len(names) != len(weights):
        return StepStatistics(log_importance=total)
    step = names.index(key)
    equalized = [int(each.flat[0]) for each in _numbers(stats, EQUALIZED_INDEX, shape)]
    found = _by_step(stats, EQUALIZING_LOG_WEIGHT, shape)
    is_known = key in equalized and len(found) == len(equalized)
    own = found[equalized.index(key)] if is_known else None
    believed = _numbers(stats, BELIEVED, shape)
    return StepStatistics(
        _rows(weights[step], values),
        own,
        total,
        believed[step] if len(believed) == len(names) else None,
    )


def _by_draws(stats: Any, weights: list[np.ndarray], values: np.ndarray) -> StepStatistics:
    """Return the statistics of the only step that drew exactly these values."""
    shape = values.shape[1:]
    drawn_by_step = _drawn_by_step(stats, len(weights), shape)
    found = _by_step(stats, EQUALIZING_LOG_WEIGHT, shape)
    if found and len(found) != len(drawn_by_step):
        raise ValueError(
            f"data: {len(drawn_by_step)} steps drew class indices, of which {len(found)} with "
            "equalize_visits, and nothing says which; give it to all of them or to none."
        )
    importance = None
    for drawn, own in zip(drawn_by_step, found, strict=False):
        change = -_of_class(own, drawn[..., 0])
        importance = change if importance is None else importance + change
    alike = [
        step
        for step, drawn in enumerate(drawn_by_step)
        if np.array_equal(np.moveaxis(drawn, -1, 0), values)
    ]
    if len(alike) != 1:
        # two indices that never moved have the same draws but different weights
        return StepStatistics(log_importance=importance)
    (step,) = alike
    mine = _rows(weights[step], values)
    return StepStatistics(mine, found[step] if found else None, importance)


def _numbers(stats: Any, name: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return a statistic with one number per step, each (n_chains, n_draws)."""
    if name not in stats:
        return []
    kept = stats[name].transpose(*_SAMPLE_DIMS, ...).values
    if kept.shape[:2] != shape:
        return []
    columns = kept.reshape(*shape, -1)
    return [columns[..., step] for step in range(columns.shape[-1])]


def _by_step(stats: Any, name: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return a statistic of every step that stored it, each (n_chains, n_draws, length)."""
    if name not in stats:
        return []
    kept = stats[name].transpose(*_SAMPLE_DIMS, ...).values
    if kept.shape[:2] != shape:
        return []
    is_nested = kept.dtype == object and isinstance(kept.flat[0], np.ndarray)
    if is_nested or kept.ndim == 4:
        # vectors of several steps; they are stacked if their lengths are equal
        columns = kept.reshape(*shape, -1) if is_nested else kept
        return [
            np.array(columns[:, :, step].tolist(), dtype=np.float64).reshape(*shape, -1)
            for step in range(columns.shape[2])
        ]
    return [kept.reshape(*shape, -1).astype(np.float64)]


def _drawn_by_step(stats: Any, n_steps: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return the class indices of every step, each (n_chains, n_draws, n_rows) of int."""
    found = _by_step(stats, DRAWN, shape)
    if n_steps > 1 and len(found) == 1:
        # one number from each step
        found = [found[0][..., step, None] for step in range(found[0].shape[-1])]
    return [drawn.astype(np.int64) for drawn in found]


def _rows(kept: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Return log-weights by row, (n_rows, n_chains, n_draws, n_classes), None if they misfit."""
    n_rows, n_chains, n_draws = values.shape
    n_classes, rest = divmod(kept.shape[-1], n_rows)
    if rest or n_classes < 1 or values.min() < 0 or values.max() >= n_classes:
        return None
    return np.moveaxis(kept.reshape(n_chains, n_draws, n_rows, n_classes), 2, 0)


def _of_class(log_weight: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.take_along_axis(log_weight, drawn[..., None], axis=-1)[..., 0]
    return found


def vector_name(statistic: str, index: str, is_alone: bool) -> str:
    """Return the name under which the step of an index records a vector.

    PyMC joins statistics of one name of all steps, and makes objects of vectors, which netCDF does
    not take.

    Parameters
    ----------
    statistic : str
    index : str
        Name of the class index.
    is_alone : bool
        Whether the model has no other class index.
    """
    return statistic if is_alone else f"{statistic}_{index}"


def _vectors(
    stats: Any, statistic: str, index: str | None, shape: tuple[int, ...]
) -> list[np.ndarray]:
    """Return vectors of every step, or those of the step of an index in place of all."""
    own = [] if index is None else _by_step(stats, vector_name(statistic, index, False), shape)
    if own:
        return own * len(_numbers(stats, INDEX, shape))
    return _by_step(stats, statistic, shape)


def read_prior(stats: Any, index: Any) -> np.ndarray | None:
    """Return the prior probabilities of an index that its step recorded, ``(n_classes,)``.

    Parameters
    ----------
    stats : Dataset-like or None
        Sample statistics with dimensions chain and draw.
    index : DataArray
        Draws of the index, with dimensions chain and draw.

    Returns
    -------
    ndarray or None
        None if there are none; nan if they are not constants.
    """
    if stats is None or INDEX not in stats or index.name is None:
        return None
    shape, name = (index.sizes["chain"], index.sizes["draw"]), str(index.name)
    priors = _vectors(stats, PRIOR, name, shape)
    names = [int(each.flat[0]) for each in _numbers(stats, INDEX, shape)]
    if index_key(name) not in names or len(names) != len(priors):
        return None
    prior: np.ndarray = priors[names.index(index_key(name))][0, 0]
    return prior

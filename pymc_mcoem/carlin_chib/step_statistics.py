"""Sample statistics of `CarlinChib`: what a sweep records, and how it is read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pymc_mcoem.density.class_index import index_key

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.chain import ChainSweep

__all__ = [
    "ACCEPTANCE",
    "BELIEVED",
    "EQUALIZED_INDEX",
    "EQUALIZING_LOG_WEIGHT",
    "INDEX",
    "LOG_IMPORTANCE",
    "LOG_WEIGHT",
    "MISSED_SHARE",
    "PRIOR",
    "UNVISITED",
    "StepStatistics",
    "SweepStatistics",
    "is_recorded",
    "read_prior",
    "read_statistics",
]

#: Sample statistic in which `CarlinChib` stores the log-probabilities of the classes.
LOG_WEIGHT = "class_log_weight"

#: Statistic with the prior probabilities of the classes; nan if they are not constants.
PRIOR = "class_prior"

#: Statistic with the log-odds, over all variables, of classes that were hardly visited in tuning;
#: nan for the others.
UNVISITED = "class_unvisited_log_odds"

#: Statistic with the log-odds of modes, of the variables that other steps draw, that were not
#: visited in tuning; nan without an answer.
UNVISITED_MODES = "class_unvisited_mode_log_odds"

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

#: Statistic with the share of each class's evidence in modes that its pseudo-prior misses.
MISSED_SHARE = "class_missed_share"

#: Statistic with the share of moves within the class that were accepted in a sweep.
ACCEPTANCE = "class_acceptance"

#: Name that `EQUALIZING_LOG_WEIGHT` had in earlier versions.
_FORMER = "class_tilt"

_SAMPLE_DIMS = ("chain", "draw")


class SweepStatistics:
    """Statistics that the step of one index records at every sweep.

    PyMC joins the statistics of all steps by their names, makes objects of vectors of one name,
    which netCDF does not take, and requires one type for a statistic that steps share.

    Parameters
    ----------
    index : str
        Name of the class index.
    is_alone : bool
        Whether the model has no other class index.
    jumps, equalizes_visits : bool
        Whether the step makes annealed jumps, and whether it equalizes visits.

    Attributes
    ----------
    dtypes_shapes : dict of str to tuple
        Type and shape of each statistic, as PyMC wants them.
    """

    #: Statistics of a single index in every setting.
    ALWAYS: ClassVar[dict[str, Any]] = {
        INDEX: (np.int64, []),
        "class_switched": (bool, []),
        "class_n_switched": (np.int64, []),
        "class_switches": (np.int64, []),
        ACCEPTANCE: (np.float64, []),
        LOG_WEIGHT: (object, []),
        BELIEVED: (np.float64, []),
        PRIOR: (object, []),
        UNVISITED: (object, []),
        UNVISITED_MODES: (np.float64, []),
        MISSED_SHARE: (object, []),
    }

    def __init__(self, index: str, *, is_alone: bool, jumps: bool, equalizes_visits: bool) -> None:
        self._key = index_key(index)
        self._jumps = jumps
        self._equalizes_visits = equalizes_visits
        self.dtypes_shapes = dict(self.ALWAYS)
        if jumps:
            self.dtypes_shapes["class_jump_acceptance"] = (np.float64, [])
        if equalizes_visits:
            self.dtypes_shapes[EQUALIZING_LOG_WEIGHT] = (object, [])
            self.dtypes_shapes[EQUALIZED_INDEX] = (np.int64, [])
            self.dtypes_shapes[LOG_IMPORTANCE] = (np.float64, [])
        self._vectors = {
            statistic: statistic if is_alone else _vector_name(statistic, index)
            for statistic in (LOG_WEIGHT, PRIOR, UNVISITED, MISSED_SHARE)
        }
        for statistic, its_name in self._vectors.items():
            self.dtypes_shapes[its_name] = self.dtypes_shapes.pop(statistic)

    def of_sweep(
        self,
        made: ChainSweep,
        n_switched: int,
        n_switches: int,
        class_prior: np.ndarray,
        unvisited_log_odds: np.ndarray,
        unvisited_mode_log_odds: np.ndarray,
    ) -> dict[str, Any]:
        """Return the statistics of a sweep.

        Parameters
        ----------
        n_switched, n_switches : int
            Indices that switched in this sweep, and in all sweeps of the chain.
        class_prior, unvisited_log_odds : ndarray of shape (n_classes,)
        unvisited_mode_log_odds : ndarray of shape (1,)
        """
        swept, equalizing = made.swept, made.equalizing_log_weight
        stats = {
            INDEX: self._key,
            "class_switched": n_switched > 0,
            "class_n_switched": n_switched,
            "class_switches": n_switches,
            ACCEPTANCE: swept.acceptance,
            # PyMC stacks vectors, but joins the rows of matrices
            self._vectors[LOG_WEIGHT]: swept.log_weight.ravel(),
            BELIEVED: made.believed_elsewhere,
            self._vectors[PRIOR]: class_prior,
            self._vectors[UNVISITED]: unvisited_log_odds,
            UNVISITED_MODES: float(unvisited_mode_log_odds[0]),
            self._vectors[MISSED_SHARE]: made.missed_share,
        }
        if self._equalizes_visits:
            stats[EQUALIZING_LOG_WEIGHT] = equalizing
            stats[EQUALIZED_INDEX] = self._key
            stats[LOG_IMPORTANCE] = -float(equalizing[int(swept.class_index)])
        if self._jumps:
            stats["class_jump_acceptance"] = swept.jump_acceptance
        return stats


def _vector_name(statistic: str, index: str) -> str:
    """Return the name of a vector if the model has several class indices."""
    return f"{statistic}_{index}"


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
    unvisited_log_odds : ndarray of shape (n_chains, n_classes), or None
        Log-odds over all variables of classes that the chain hardly visited in tuning; nan for
        the others.
    unvisited_mode_log_odds : ndarray of shape (n_chains,), or None
        Log-odds of modes, of the variables that other steps draw, that the chain did not visit in
        tuning; nan without an answer.
    missed_share : ndarray of shape (n_chains, n_draws, n_classes), or None
        Share of each class's evidence in modes that its pseudo-prior misses; on a plate the largest
        of all rows.
    acceptance : ndarray of shape (n_chains, n_draws), or None
        Share of moves within the class that were accepted; on a plate the mean of all rows.
    """

    log_weight: np.ndarray | None = None
    equalizing_log_weight: np.ndarray | None = None
    log_importance: np.ndarray | None = None
    believed: np.ndarray | None = None
    unvisited_log_odds: np.ndarray | None = None
    unvisited_mode_log_odds: np.ndarray | None = None
    missed_share: np.ndarray | None = None
    acceptance: np.ndarray | None = None


def read_statistics(stats: Any, values: np.ndarray, name: str | None) -> StepStatistics:
    """Return the statistics of the step that drew a variable, and its draws' weights by all steps.

    Parameters
    ----------
    stats : Dataset-like or None
        Sample statistics with dimensions chain and draw.
    values : ndarray of shape (n_rows, n_chains, n_draws)
        Draws of the variable.
    name : str or None
        Name of the variable; None: no statistics are found.

    Raises
    ------
    ValueError
        If a version wrote the statistics under other names.
    """
    if stats is not None and _FORMER in stats:
        raise ValueError(
            f"data: its sample statistics name {_FORMER} as earlier versions did; rename it to "
            f"{EQUALIZING_LOG_WEIGHT}, and {_FORMER}_of to {EQUALIZED_INDEX}."
        )
    if stats is None or values.dtype.kind not in "iu":
        return StepStatistics()
    shape = values.shape[1:]
    weights = _vectors_of_index(stats, LOG_WEIGHT, name, shape)
    importance = _scalars_by_step(stats, LOG_IMPORTANCE, shape)
    total = np.sum(importance, axis=0) if importance else None
    key = None if name is None else index_key(name)
    names = [int(each.flat[0]) for each in _scalars_by_step(stats, INDEX, shape)]
    if key not in names or len(names) != len(weights):
        return StepStatistics(log_importance=total)
    step = names.index(key)
    equalized = [int(each.flat[0]) for each in _scalars_by_step(stats, EQUALIZED_INDEX, shape)]
    found = _vectors_by_step(stats, EQUALIZING_LOG_WEIGHT, shape)
    is_known = key in equalized and len(found) == len(equalized)
    own = found[equalized.index(key)] if is_known else None
    believed = _scalars_by_step(stats, BELIEVED, shape)
    unvisited = _vectors_of_index(stats, UNVISITED, name, shape)
    modes = _scalars_by_step(stats, UNVISITED_MODES, shape)
    missed_share = _vectors_of_index(stats, MISSED_SHARE, name, shape)
    acceptance = _scalars_by_step(stats, ACCEPTANCE, shape)
    return StepStatistics(
        _rows(weights[step], values),
        own,
        total,
        believed[step] if len(believed) == len(names) else None,
        unvisited[step][:, -1] if len(unvisited) == len(names) else None,
        modes[step][:, -1] if len(modes) == len(names) else None,
        missed_share[step] if len(missed_share) == len(names) else None,
        acceptance[step] if len(acceptance) == len(names) else None,
    )


def _scalars_by_step(stats: Any, name: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return a statistic with one number per step, each (n_chains, n_draws)."""
    values = _values(stats, name, shape)
    if values is None:
        return []
    columns = values.reshape(*shape, -1)
    return [columns[..., step] for step in range(columns.shape[-1])]


def _vectors_by_step(stats: Any, name: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return a statistic of every step that stored it, each (n_chains, n_draws, length)."""
    values = _values(stats, name, shape)
    if values is None:
        return []
    is_nested = values.dtype == object and isinstance(values.flat[0], np.ndarray)
    if is_nested or values.ndim == 4:
        # vectors of several steps; they are stacked if their lengths are equal
        columns = values.reshape(*shape, -1) if is_nested else values
        return [
            np.array(columns[:, :, step].tolist(), dtype=np.float64).reshape(*shape, -1)
            for step in range(columns.shape[2])
        ]
    return [values.reshape(*shape, -1).astype(np.float64)]


def _values(stats: Any, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the values of a statistic, (n_chains, n_draws, ...), or None if it does not fit."""
    if name not in stats:
        return None
    values: np.ndarray = stats[name].transpose(*_SAMPLE_DIMS, ...).values
    return values if values.shape[:2] == shape else None


def _rows(log_weight: np.ndarray, values: np.ndarray) -> np.ndarray | None:
    """Return log-weights by row, (n_rows, n_chains, n_draws, n_classes), None if they misfit."""
    n_rows, n_chains, n_draws = values.shape
    n_classes, rest = divmod(log_weight.shape[-1], n_rows)
    if rest or n_classes < 1 or values.min() < 0 or values.max() >= n_classes:
        return None
    return np.moveaxis(log_weight.reshape(n_chains, n_draws, n_rows, n_classes), 2, 0)


def _vectors_of_index(
    stats: Any, statistic: str, index: str | None, shape: tuple[int, ...]
) -> list[np.ndarray]:
    """Return vectors of every step, or only those of the step of an index."""
    own = [] if index is None else _vectors_by_step(stats, _vector_name(statistic, index), shape)
    if own:
        return own * len(_scalars_by_step(stats, INDEX, shape))
    return _vectors_by_step(stats, statistic, shape)


def is_recorded(stats: Any, name: str) -> bool:
    """Return whether sample statistics, or None, have those of a `CarlinChib` of this index."""
    return stats is not None and INDEX in stats and bool((stats[INDEX] == index_key(name)).any())


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
    priors = _vectors_of_index(stats, PRIOR, name, shape)
    names = [int(each.flat[0]) for each in _scalars_by_step(stats, INDEX, shape)]
    if index_key(name) not in names or len(names) != len(priors):
        return None
    prior: np.ndarray = priors[names.index(index_key(name))][0, 0]
    return prior

"""Log-weights on classes that make a chain visit all of them equally often.

The chain then samples p(I, X | y) exp(equalizing_log_weight[I]) up to a constant; weighting its
draws by exp(-equalizing_log_weight[I]) recovers the model's posterior.
"""

from __future__ import annotations

import numpy as np

__all__ = ["initial_equalizing_log_weight", "next_equalizing_log_weight"]

#: Number of sweeps after which the gain starts to fall.
_FULL_GAIN_SWEEPS = 20.0


def initial_equalizing_log_weight(log_evidence: np.ndarray) -> np.ndarray:
    """Return minus the log-evidence of the classes, centered at zero; 0 for classes without any.

    Parameters
    ----------
    log_evidence : ndarray of shape (n_classes,)
        Estimates of log p(y, I = j); nan where there are none.

    Returns
    -------
    ndarray of shape (n_classes,)

    Examples
    --------
    >>> initial_equalizing_log_weight(np.array([-10.0, -14.0, -np.inf]))
    array([-2.,  2.,  0.])
    """
    known = np.isfinite(log_evidence)
    if not known.any():
        return np.zeros(len(log_evidence))
    return np.where(known, log_evidence[known].mean() - log_evidence, 0.0)


def next_equalizing_log_weight(
    equalizing_log_weight: np.ndarray, log_weight: np.ndarray, n_steps: int
) -> np.ndarray:
    """Return the log-weights after one more sweep: lower for likely classes, higher for others.

    Parameters
    ----------
    equalizing_log_weight : ndarray of shape (n_classes,)
    log_weight : ndarray of shape (n_classes,)
        Logarithms of the classes' probabilities in this sweep, these weights included.
    n_steps : int
        Number of sweeps so far, this one included; at least 1.

    Returns
    -------
    ndarray of shape (n_classes,)

    Notes
    -----
    This is a stochastic approximation of the log-weights under which all classes have probability
    1 / n_classes. It uses probabilities, which vary less than visits. The gain falls like
    n_steps^(-0.7) after the first 20 sweeps.

    Examples
    --------
    >>> next_equalizing_log_weight(np.zeros(2), np.log([0.75, 0.25]), n_steps=1)
    array([-0.25,  0.25])
    """
    gain = (_FULL_GAIN_SWEEPS / max(n_steps, _FULL_GAIN_SWEEPS)) ** 0.7
    moved: np.ndarray = equalizing_log_weight - gain * (
        np.exp(log_weight) - 1.0 / len(equalizing_log_weight)
    )
    return moved

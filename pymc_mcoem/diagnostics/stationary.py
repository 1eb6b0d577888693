"""Stationary distribution and effective sample size from a transition matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import polygamma, psi

__all__ = ["StationaryDistribution", "dirichlet_fit", "stationary_distribution"]

#: Least amount of a transition: rows of a stuck chain's matrix would be zero elsewhere.
_TINY = 1e-100


@dataclass(frozen=True)
class StationaryDistribution:
    """What a transition matrix says about the share of each class.

    Attributes
    ----------
    samples : ndarray of shape (n_samples, n_classes)
        Posterior draws of the stationary distribution; zero in classes without a transition.
    mean, sd : ndarray of shape (n_classes,)
    ess : float
        How many independent draws of the class would tell as much. NaN with a single class.
    """

    samples: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    ess: float


def stationary_distribution(
    counts: np.ndarray,
    *,
    prior: float | None = None,
    n_samples: int = 1000,
    random_seed: int | np.random.Generator = 0,
) -> StationaryDistribution:
    r"""Draw the stationary distribution of a class index from its posterior.

    The chain is taken for a first-order Markov chain. Each row of its transition matrix has a
    Dirichlet(ε, ..., ε) prior, hence a Dirichlet posterior; a draw of the matrix gives a draw of
    its stationary distribution. The effective sample size is the sum :math:`\sum_k α_k` of the
    Dirichlet distribution fitted to the draws by maximum likelihood.

    Parameters
    ----------
    counts : ndarray of shape (n_classes, n_classes)
        Transitions from class (row) to class (column), see `count_transitions`; chains summed.
    prior : float, optional
        ε; default: one over the number of classes that were visited. Classes that were not are
        left out.
    n_samples : int
    random_seed : int or Generator
        One seed, one result, and up to rounding the same one when classes are renamed.

    Returns
    -------
    StationaryDistribution

    Raises
    ------
    ValueError
        If counts are not a square matrix of non-negative numbers with a positive sum, or `prior`
        or `n_samples` is too small.

    References
    ----------
    Heck, Overstall, Gronau and Wagenmakers (2019), Quantifying uncertainty in transdimensional
    Markov chain Monte Carlo using discrete Markov models, Statistics and Computing 29, 631-643,
    doi 10.1007/s11222-018-9828-0.

    Examples
    --------
    >>> counts = np.array([[2435, 9], [8, 1547]])
    >>> found = stationary_distribution(counts, n_samples=4000)
    >>> found.mean.round(1), round(found.ess)
    (array([0.6, 0.4]), 19)
    """
    counts = np.asarray(counts, dtype=np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not np.all(counts >= 0):
        raise ValueError(
            f"counts: got an array of shape {counts.shape}; give a square matrix of numbers that "
            "are not negative."
        )
    if n_samples < 2:
        raise ValueError(f"n_samples: got {n_samples}; give at least 2.")
    amount = counts.sum(axis=0) + counts.sum(axis=1)
    visited = np.flatnonzero(amount)
    if not len(visited):
        raise ValueError("counts: got no transition; give a chain of at least two draws.")
    # Random numbers go to classes in an order that does not depend on their names.
    order = visited[np.lexsort((np.diag(counts)[visited], amount[visited]))]
    k = len(order)
    epsilon = 1.0 / k if prior is None else prior
    if not epsilon > 0:
        raise ValueError(f"prior: got {epsilon}; give a positive number.")
    rng = np.random.default_rng(random_seed)
    shape = counts[np.ix_(order, order)] + epsilon
    rows = np.maximum(rng.standard_gamma(shape, size=(n_samples, k, k)), _TINY)
    samples = np.zeros((n_samples, len(counts)))
    samples[:, order] = _stationary(rows / rows.sum(axis=-1, keepdims=True))
    ess = np.nan if k == 1 else float(dirichlet_fit(samples[:, order]).sum())
    return StationaryDistribution(samples, samples.mean(axis=0), samples.std(axis=0, ddof=1), ess)


def dirichlet_fit(samples: np.ndarray) -> np.ndarray:
    """Fit a Dirichlet distribution by maximum likelihood.

    Parameters
    ----------
    samples : ndarray of shape (n_samples, n_classes)
        Rows that sum to one.

    Returns
    -------
    ndarray of shape (n_classes,)

    References
    ----------
    Minka (2000), Estimating a Dirichlet distribution.

    Examples
    --------
    >>> samples = np.random.default_rng(3).dirichlet([2.0, 5.0], size=20_000)
    >>> dirichlet_fit(samples).round()
    array([2., 5.])
    """
    mean_log = np.log(np.maximum(samples, _TINY)).mean(axis=0)
    mean, variance = samples.mean(axis=0), samples.var(axis=0)
    total = np.sum(mean * (1 - mean)) / max(np.sum(variance), _TINY) - 1
    alpha = np.maximum(mean * max(total, 1e-2), 1e-6)
    for _ in range(200):
        gradient = psi(alpha.sum()) - psi(alpha) + mean_log
        diagonal, common = -polygamma(1, alpha), polygamma(1, alpha.sum())
        shared = np.sum(gradient / diagonal) / (1 / common + np.sum(1 / diagonal))
        step = (gradient - shared) / diagonal
        while np.any(alpha - step <= 0):
            step = step / 2
        alpha = alpha - step
        if np.all(np.abs(step) < 1e-10 * alpha):
            break
    return np.asarray(alpha)


def _stationary(matrices: np.ndarray) -> np.ndarray:
    """Return stationary distributions, ``(n, k)``, of transition matrices ``(n, k, k)``.

    By the elimination of Grassmann, Taksar and Heyman, which subtracts nothing and so is exact
    where classes hardly ever switch.
    """
    matrices = matrices.copy()
    k = matrices.shape[-1]
    for last in range(k - 1, 0, -1):
        out = matrices[:, last, :last].sum(axis=-1)
        matrices[:, :last, last] /= out[:, None]
        matrices[:, :last, :last] += matrices[:, :last, last, None] * matrices[:, last, None, :last]
    found = np.ones((len(matrices), k))
    for j in range(1, k):
        found[:, j] = np.einsum("ni,ni->n", found[:, :j], matrices[:, :j, j])
    return found / found.sum(axis=1, keepdims=True)

"""Transitions of a class index, its stationary distribution, and tests of equal distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from scipy.sparse.csgraph import connected_components
from scipy.special import polygamma, psi
from scipy.stats import chi2

from pymc_mcoem.diagnostics.chains import IndexChains

__all__ = [
    "HomogeneityTest",
    "StationaryDistribution",
    "class_transitions",
    "count_transitions",
    "dirichlet_fit",
    "homogeneity_test",
    "stationary_distribution",
    "within_chain_tests",
]

#: Smallest value of a transition's gamma draw; without it rows of a stuck chain could be zero.
_TINY = 1e-100

#: Smallest number of effective draws expected of a class in each chain; rarer ones are pooled.
MIN_EXPECTED = 5.0


def count_transitions(codes: np.ndarray, n_classes: int) -> np.ndarray:
    """Count the transitions between classes in each chain.

    Parameters
    ----------
    codes : ndarray of int, shape (..., n_draws)
        Classes from 0 to n_classes - 1.
    n_classes : int

    Returns
    -------
    ndarray of int, shape (..., n_classes, n_classes)
        Counts from class (row) to class (column).

    Examples
    --------
    >>> count_transitions(np.array([0, 0, 1, 0]), 2)
    array([[1, 1],
           [1, 0]])
    """
    pairs = codes[..., :-1] * n_classes + codes[..., 1:]
    flat = pairs.reshape(-1, pairs.shape[-1])
    counts = [np.bincount(chain, minlength=n_classes**2) for chain in flat]
    return np.reshape(counts, (*codes.shape[:-1], n_classes, n_classes))


def class_transitions(chains: IndexChains) -> xr.Dataset:
    """Return the number of switches and the transition matrix.

    Parameters
    ----------
    chains : IndexChains

    Returns
    -------
    Dataset
        By plate and ``chain``: ``n_switches``. By plate, ``chain``, ``class_from`` and
        ``class_to``: ``chain_count``. By plate, ``class_from`` and ``class_to``: ``count``;
        ``probability``, NaN from a class that was never visited; and, if the step recorded
        the classes' weights, ``jump_probability``: the mean probability that the step gave to a
        class while the chain was in another. It is known even for jumps that never happened. With
        ``index_move="gibbs"`` it is the acceptance rate of each pair of classes.

    Examples
    --------
    >>> from pymc_mcoem.diagnostics.chains import read_chains
    >>> codes = xr.DataArray([[0, 0, 1, 0], [1, 1, 1, 1]], dims=("chain", "draw"))
    >>> transitions = class_transitions(read_chains(codes))
    >>> transitions["n_switches"].values
    array([2, 0])
    >>> transitions["probability"].values
    array([[0.5 , 0.5 ],
           [0.25, 0.75]])
    """
    by_chain = count_transitions(chains.codes, chains.n_classes)
    count = by_chain.sum(axis=1)
    pair = ("class_from", "class_to")
    found: dict[str, tuple[Any, ...]] = {
        "n_switches": ((np.diff(chains.codes, axis=-1) != 0).sum(axis=-1), "chain"),
        "chain_count": (by_chain, "chain", *pair),
        "count": (count, *pair),
        "probability": (_share(count, count.sum(axis=-1)), *pair),
    }
    if chains.log_weight is not None and chains.consecutive:
        probability = np.exp(chains.log_weight[:, :, 1:])
        before = np.eye(chains.n_classes)[chains.codes[:, :, :-1]]
        summed = np.einsum("rctk,rctj->rkj", before, probability)
        jumped = _share(summed, before.sum(axis=(1, 2)))
        found["jump_probability"] = jumped, *pair
    return chains.labeled(found)


@dataclass(frozen=True)
class StationaryDistribution:
    """Share of each class according to a transition matrix.

    Attributes
    ----------
    samples : ndarray of shape (n_samples, n_classes)
        Posterior draws of the stationary distribution; zero in classes without a transition.
    mean, sd : ndarray of shape (n_classes,)
    ess : float
        Number of independent draws that would determine the shares equally well. NaN for one
        class.
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

    The index is modeled as a first-order Markov chain. Each row of its transition matrix has a
    Dirichlet(ε, ..., ε) prior, hence a Dirichlet posterior; a draw of the matrix gives a draw of
    its stationary distribution. The effective sample size is the sum :math:`\sum_k α_k` of the
    Dirichlet distribution fitted to the draws by maximum likelihood.

    Parameters
    ----------
    counts : ndarray of shape (n_classes, n_classes)
        Transitions from class (row) to class (column), see `count_transitions`; chains summed.
    prior : float, optional
        ε; default: one over the number of visited classes. It applies to these classes only.
    n_samples : int
    random_seed : int or Generator
        The default is not None, so that the same counts always have the same result. Renaming the
        classes only changes rounding.

    Returns
    -------
    StationaryDistribution

    Raises
    ------
    ValueError
        If counts are not a square matrix of non-negative numbers with a positive sum, or if
        `prior` or `n_samples` is too small.

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
    # Random numbers are assigned to classes in an order that does not depend on their names.
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
    """Fit a Dirichlet distribution to rows that sum to one, by maximum likelihood (Minka 2000).

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


@dataclass(frozen=True)
class HomogeneityTest:
    """Result of a chi-square test that chains have one distribution.

    Attributes
    ----------
    statistic, p_value : float
        NaN if nothing can be tested: fewer than two chains or two classes that are
        frequent enough, or chains that hardly switch.
    degrees_of_freedom : int
    inflation : float
        Factor by which autocorrelation inflates the variance of a class's share, the largest of
        all classes.
    """

    statistic: float
    degrees_of_freedom: int
    p_value: float
    inflation: float


def homogeneity_test(codes: np.ndarray, n_classes: int) -> HomogeneityTest:
    """Test whether chains of a class index have the same distribution.

    The statistic compares the share of each class in each chain with its share in all chains, by
    the covariance of shares of a Markov chain, whose transition matrix is estimated from all chains
    together. For independent draws the test is Pearson's; if all classes have the same
    autocorrelation, it is that of Deonovic and Smith.

    Parameters
    ----------
    codes : ndarray of int, shape (n_chains, n_draws)
        Classes from 0 to n_classes - 1.
    n_classes : int

    Returns
    -------
    HomogeneityTest

    Raises
    ------
    ValueError
        If `codes` has another number of dimensions or fewer than two draws.

    Notes
    -----
    The chi-square distribution holds for many draws. Classes with fewer than 5 expected effective
    draws in each chain are pooled, rarest first.

    References
    ----------
    Weiss (2013), Serial dependence of NDARMA processes, Computational Statistics and Data
    Analysis 68, 213-238.
    Deonovic and Smith (2017), Convergence diagnostics for MCMC draws of a categorical variable,
    arXiv:1706.04919.

    Examples
    --------
    >>> codes = np.random.default_rng(2).integers(3, size=(4, 500))
    >>> homogeneity_test(codes, 3).p_value > 0.01
    True
    >>> codes[0, :200] = 2
    >>> homogeneity_test(codes, 3).p_value < 0.01
    True
    """
    codes = np.asarray(codes)
    if codes.ndim != 2 or codes.shape[-1] < 2:
        raise ValueError(
            f"codes: got an array of shape {codes.shape}; give (n_chains, n_draws), at least two "
            "draws."
        )
    n_chains, n_draws = codes.shape
    shares = np.stack([np.bincount(chain, minlength=n_classes) for chain in codes]) / n_draws
    visited = np.flatnonzero(shares.sum(axis=0))
    shares = shares[:, visited]
    pooled = shares.mean(axis=0)
    counts = count_transitions(codes, n_classes).sum(axis=0)[np.ix_(visited, visited)]
    nothing = HomogeneityTest(np.nan, 0, np.nan, np.nan)
    if n_chains < 2 or len(visited) < 2:
        return nothing
    covariance = _covariance_of_shares(counts)
    if covariance is None:
        return nothing
    inflation = np.diag(covariance) / (pooled * (1 - pooled))
    if not np.all(inflation > 0):
        return nothing
    cells = _pool_rare(pooled, n_draws * pooled / inflation)
    if cells.shape[1] < 2:
        return HomogeneityTest(np.nan, 0, np.nan, float(inflation.max()))
    # One cell is determined by the others, because shares sum to one.
    deviation = ((shares - pooled) @ cells)[:, 1:]
    spread = (cells.T @ covariance @ cells)[1:, 1:]
    statistic = float(n_draws * np.sum(deviation * np.linalg.solve(spread, deviation.T).T))
    degrees = (cells.shape[1] - 1) * (n_chains - 1)
    return HomogeneityTest(
        statistic, degrees, float(chi2.sf(statistic, degrees)), float(inflation.max())
    )


def within_chain_tests(codes: np.ndarray, n_classes: int) -> list[HomogeneityTest]:
    """Test whether the first and the last 30 % of each chain have the same distribution.

    Parameters
    ----------
    codes : ndarray of int, shape (n_chains, n_draws)
    n_classes : int

    Returns
    -------
    list of HomogeneityTest
        One for each chain.

    Examples
    --------
    >>> early = np.repeat([[0, 1]], 100, axis=0).ravel()
    >>> late = np.repeat([[0, 1, 1, 1]], 50, axis=0).ravel()
    >>> (test,) = within_chain_tests(np.concatenate([early, late])[None], 2)
    >>> test.p_value < 0.05
    True
    """
    n = max(round(0.3 * codes.shape[-1]), 2)
    return [homogeneity_test(np.stack([chain[:n], chain[-n:]]), n_classes) for chain in codes]


def _share(amount: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Divide rows by their totals; NaN where a total is zero."""
    return np.where(total[..., None] > 0, amount / np.maximum(total, 1)[..., None], np.nan)


def _stationary(matrices: np.ndarray) -> np.ndarray:
    """Return stationary distributions, ``(n, k)``, of transition matrices ``(n, k, k)``.

    This is the elimination of Grassmann, Taksar and Heyman. It has no subtractions and is
    therefore accurate even if classes hardly ever switch.
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


def _covariance_of_shares(counts: np.ndarray) -> np.ndarray | None:
    """Return the asymptotic covariance of √n times the shares; None if the chain is reducible."""
    if connected_components(counts, directed=True, connection="strong")[0] > 1:
        return None
    matrix = counts / counts.sum(axis=1, keepdims=True)
    ones = np.ones_like(matrix)
    stationary = np.linalg.solve((np.eye(len(matrix)) - matrix + ones).T, np.ones(len(matrix)))
    fundamental = np.linalg.inv(np.eye(len(matrix)) - matrix + stationary)
    weighted = stationary[:, None] * fundamental
    spread = weighted + weighted.T - np.diag(stationary) - np.outer(stationary, stationary)
    return np.asarray(spread)


def _pool_rare(pooled: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return a matrix of zeros and ones, classes by cells, that pools rare classes."""
    cells: list[list[int]] = []
    held: list[int] = []
    for k in np.argsort(pooled, kind="stable"):
        held.append(int(k))
        if expected[held].sum() >= MIN_EXPECTED:
            cells.append(held)
            held = []
    if held:
        cells[-1:] = [cells[-1] + held] if cells else [held]
    indicator = np.zeros((len(pooled), len(cells)))
    for column, members in enumerate(cells):
        indicator[members, column] = 1.0
    return indicator

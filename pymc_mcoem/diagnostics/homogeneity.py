"""Tests of equal class distributions between chains and within a chain, for dependent draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from pymc_mcoem.diagnostics.transitions import count_transitions

__all__ = ["HomogeneityTest", "homogeneity_test", "within_chain_tests"]

#: Least number of effective draws expected of a class in each chain; rarer ones are taken together.
MIN_EXPECTED = 5.0

Dependence = Literal["ndarma", "markov"]


@dataclass(frozen=True)
class HomogeneityTest:
    """A chi-square test of chains with one distribution.

    Attributes
    ----------
    statistic, p_value : float
        NaN where there is nothing to test: fewer than two chains or two classes that are
        frequent enough, or chains that hardly switch.
    degrees_of_freedom : int
    inflation : float
        By how much dependence inflates the variance of a class's share, c in the literature; the
        largest of the classes where they differ.
    """

    statistic: float
    degrees_of_freedom: int
    p_value: float
    inflation: float


def homogeneity_test(
    codes: np.ndarray, n_classes: int, *, dependence: Dependence = "ndarma"
) -> HomogeneityTest:
    r"""Test whether chains of a class index have the same distribution.

    Pearson's statistic of the table of visits, chain by class, divided for the dependence of
    draws. With "ndarma" (Weiss 2013; Deonovic and Smith 2017) the divisor is
    :math:`c = (1 + \hat φ)/(1 - \hat φ)`, where
    :math:`\hat φ = 1 + 1/n - (1 - \sum_k \hat p_{kk})/(1 - \sum_k \hat p_k^2)`, from the share of
    draws that stay; all classes have one autocorrelation. With "markov" the covariance of the
    shares is that of a chain with the transition matrix of all chains together, which is the same
    for an NDARMA chain and stays right where one class is stickier than others.

    Parameters
    ----------
    codes : ndarray of int, shape (n_chains, n_draws)
        In 0 to n_classes - 1.
    n_classes : int
    dependence : {"ndarma", "markov"}

    Returns
    -------
    HomogeneityTest

    Raises
    ------
    ValueError
        If `codes` has another number of dimensions or fewer than two draws, or `dependence`
        another name.

    Notes
    -----
    The chi-square distribution holds for many draws. Classes of which fewer than 5 effective
    draws are expected in each chain are taken together, rarest first.

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
    if dependence not in ("ndarma", "markov"):
        raise ValueError(f"dependence: got {dependence!r}; choose 'ndarma' or 'markov'.")
    n_chains, n_draws = codes.shape
    shares = np.stack([np.bincount(chain, minlength=n_classes) for chain in codes]) / n_draws
    visited = np.flatnonzero(shares.sum(axis=0))
    shares = shares[:, visited]
    pooled = shares.mean(axis=0)
    moved = count_transitions(codes, n_classes).sum(axis=0)[np.ix_(visited, visited)]
    nothing = HomogeneityTest(np.nan, 0, np.nan, np.nan)
    if n_chains < 2 or len(visited) < 2:
        return nothing
    covariance = _ndarma(pooled, moved, n_draws) if dependence == "ndarma" else _markov(moved)
    if covariance is None:
        return nothing
    inflation = np.diag(covariance) / (pooled * (1 - pooled))
    if not np.all(inflation > 0):
        return nothing
    cells = _frequent(pooled, n_draws * pooled / inflation)
    if cells.shape[1] < 2:
        return HomogeneityTest(np.nan, 0, np.nan, float(inflation.max()))
    # One cell follows from the others, for shares sum to one.
    deviation = ((shares - pooled) @ cells)[:, 1:]
    spread = (cells.T @ covariance @ cells)[1:, 1:]
    statistic = float(n_draws * np.sum(deviation * np.linalg.solve(spread, deviation.T).T))
    degrees = (cells.shape[1] - 1) * (n_chains - 1)
    return HomogeneityTest(
        statistic, degrees, float(chi2.sf(statistic, degrees)), float(inflation.max())
    )


def within_chain_tests(
    codes: np.ndarray,
    n_classes: int,
    *,
    fraction: float = 0.3,
    dependence: Dependence = "ndarma",
) -> list[HomogeneityTest]:
    """Test of each chain whether its beginning and its end have the same distribution.

    Parameters
    ----------
    codes : ndarray of int, shape (n_chains, n_draws)
    n_classes : int
    fraction : float
        Length of beginning and end as a share of the chain, at most a half.
    dependence : {"ndarma", "markov"}
        See `homogeneity_test`.

    Returns
    -------
    list of HomogeneityTest, one a chain

    Raises
    ------
    ValueError
        If `fraction` is not in (0, 0.5].

    Examples
    --------
    >>> early = np.repeat([[0, 1]], 100, axis=0).ravel()
    >>> late = np.repeat([[0, 1, 1, 1]], 50, axis=0).ravel()
    >>> (test,) = within_chain_tests(np.concatenate([early, late])[None], 2)
    >>> test.p_value < 0.05
    True
    """
    if not 0 < fraction <= 0.5:
        raise ValueError(f"fraction: got {fraction}; give a share of the chain up to 0.5.")
    n = max(round(fraction * codes.shape[-1]), 2)
    return [
        homogeneity_test(np.stack([chain[:n], chain[-n:]]), n_classes, dependence=dependence)
        for chain in codes
    ]


def _ndarma(pooled: np.ndarray, moved: np.ndarray, n_draws: int) -> np.ndarray | None:
    """Return the covariance of the root-n shares of an NDARMA chain."""
    stayed = np.trace(moved) / moved.sum()
    phi = 1 + 1 / n_draws - (1 - stayed) / (1 - np.sum(pooled**2))
    if phi >= 1:
        return None
    phi = max(phi, 0.0)
    return np.asarray((1 + phi) / (1 - phi) * (np.diag(pooled) - np.outer(pooled, pooled)))


def _markov(moved: np.ndarray) -> np.ndarray | None:
    """Return the covariance of the root-n shares of a Markov chain; None if it is reducible."""
    if connected_components(moved, directed=True, connection="strong")[0] > 1:
        return None
    matrix = moved / moved.sum(axis=1, keepdims=True)
    ones = np.ones_like(matrix)
    stationary = np.linalg.solve((np.eye(len(matrix)) - matrix + ones).T, np.ones(len(matrix)))
    fundamental = np.linalg.inv(np.eye(len(matrix)) - matrix + stationary)
    weighted = stationary[:, None] * fundamental
    spread = weighted + weighted.T - np.diag(stationary) - np.outer(stationary, stationary)
    return np.asarray(spread)


def _frequent(pooled: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the map, classes by cells, that takes rare classes together."""
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

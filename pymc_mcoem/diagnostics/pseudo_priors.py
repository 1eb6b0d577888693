"""How good pseudo-priors are: Pareto k of target over pseudo-prior."""

from __future__ import annotations

import numpy as np

from pymc_mcoem.carlin_chib.pareto import pareto_k as tail_index
from pymc_mcoem.diagnostics.chains import IndexChains

__all__ = ["GOOD_PARETO_K", "jump_pareto_k", "pareto_k"]

#: Above this, importance ratios are unreliable (Vehtari, Simpson, Gelman, Yao and Gabry 2024).
GOOD_PARETO_K = 0.7


def pareto_k(log_ratio: np.ndarray) -> np.ndarray:
    """Return Pareto k of importance ratios, class by class.

    Parameters
    ----------
    log_ratio : array_like of shape (n_chains, n_draws, n_classes)
        log p(y, k, x) - log q_k(x) at draws x of the pseudo-prior q_k, up to a constant for each
        class. NaN draws, as of the class that was active, are left out; minus infinity is a draw
        without density.

    Returns
    -------
    ndarray of shape (n_classes,)
        Below 0.5 good, above 0.7 the pseudo-prior misses some of its class's posterior. Minus
        infinity where ratios are all the same, as of a perfect pseudo-prior; NaN where fewer than
        25 draws are left.

    Raises
    ------
    ValueError
        If the array has not three dimensions, or a ratio is plus infinity.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling, Journal
    of Machine Learning Research 25.

    Examples
    --------
    >>> z = np.random.default_rng(4).normal(size=(4, 500, 1))
    >>> good, bad = pareto_k(0.1 * z), pareto_k(0.9 * z**2)
    >>> bool(good[0] < 0.5), bool(bad[0] > 0.7)
    (True, True)
    """
    ratios = np.asarray(log_ratio, dtype=np.float64)
    if ratios.ndim != 3 or np.isposinf(ratios).any():
        raise ValueError(
            f"log_ratio: got an array of shape {ratios.shape}; give finite logarithms, or minus "
            "infinity or NaN, of shape (n_chains, n_draws, n_classes)."
        )
    return np.array([tail_index(ratios[..., k].ravel()) for k in range(ratios.shape[-1])])


def jump_pareto_k(chains: IndexChains) -> np.ndarray:
    """Return Pareto k of the odds of jumping into each class, from the step's own weights.

    While the chain is in class a, the odds that the step gives to class j are
    p(j, u_j)/q_j(u_j) times q_a(x)/p(a, x), with u_j from the pseudo-prior of j and x from the
    posterior of a: an importance ratio for the odds of the two classes. For each j, a is
    the class in which the chains were most often.

    Parameters
    ----------
    chains : IndexChains
        With log-weights.

    Returns
    -------
    ndarray of shape (n_rows, n_classes)
        As `pareto_k`. A large value blames the pseudo-prior of j or of a. All NaN where draws
        were thinned: the class before each is not known.

    Raises
    ------
    ValueError
        If the chains have no log-weights.
    """
    if chains.log_weight is None:
        raise ValueError(
            f"chains: {chains.name} came without the classes' log-weights; give a DataTree of a "
            "run with CarlinChib."
        )
    found = np.full((len(chains.codes), chains.n_classes), np.nan)
    if not chains.consecutive:
        return found
    for row, codes in enumerate(chains.codes):
        before = codes[:, :-1]
        log_weight = chains.log_weight[row, :, 1:]
        visits = np.bincount(before.ravel(), minlength=chains.n_classes)
        for j in range(chains.n_classes):
            others = visits.copy()
            others[j] = 0
            if not others.any():
                continue
            here = before == others.argmax()
            found[row, j] = tail_index(log_weight[here, j] - log_weight[here, others.argmax()])
    return found

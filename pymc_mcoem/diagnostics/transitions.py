"""Switches and transitions between classes."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pymc_mcoem.diagnostics.chains import IndexChains

__all__ = ["class_transitions", "count_transitions"]


def count_transitions(codes: np.ndarray, n_classes: int) -> np.ndarray:
    """Count the steps from class to class of each chain.

    Parameters
    ----------
    codes : ndarray of int, shape (..., n_draws)
        In 0 to n_classes - 1.
    n_classes : int

    Returns
    -------
    ndarray of int, shape (..., n_classes, n_classes)
        From class (row) to class (column).

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
    """Return switches and the transition matrix.

    Parameters
    ----------
    chains : IndexChains

    Returns
    -------
    Dataset
        By plate and ``chain``: ``n_switches``. By plate, ``chain``, ``class_from`` and
        ``class_to``: ``chain_count``. By plate, ``class_from`` and ``class_to``: ``count``;
        ``probability``, NaN from a class that was never left nor kept; and, where the step kept
        the classes' weights, ``jump_probability``: the mean probability that the step gave to a
        class while it was in another, which tells even what never happened. With
        ``index_move="gibbs"`` this is the share of proposals accepted, pair by pair.

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
    found = {
        "n_switches": chains.label((np.diff(chains.codes, axis=-1) != 0).sum(axis=-1), "chain"),
        "chain_count": chains.label(by_chain, "chain", *pair),
        "count": chains.label(count, *pair),
        "probability": chains.label(_share(count, count.sum(axis=-1)), *pair),
    }
    if chains.log_weight is not None and chains.consecutive:
        probability = np.exp(chains.log_weight[:, :, 1:])
        before = np.eye(chains.n_classes)[chains.codes[:, :, :-1]]
        summed = np.einsum("rctk,rctj->rkj", before, probability)
        jumped = _share(summed, before.sum(axis=(1, 2)))
        found["jump_probability"] = chains.label(jumped, *pair)
    return xr.Dataset(found)


def _share(amount: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Divide rows by their totals; NaN where there is none."""
    return np.where(total[..., None] > 0, amount / np.maximum(total, 1)[..., None], np.nan)

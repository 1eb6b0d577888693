"""Factors from which a template mixture starts."""

from __future__ import annotations

import numpy as np

from pymc_mcoem.templates.bases.factors import BasisWithFactors

__all__ = ["first_factors"]

#: Share of the kernels' gram matrix that keeps coefficients small.
RIDGE = 0.1


def first_factors(
    basis: BasisWithFactors,
    templates: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    labels: np.ndarray,
    design: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return principal components of what templates leave of labeled observations, as factors.

    They are scaled so that scores have a variance of one, and are the same for all classes.

    Parameters
    ----------
    basis : BasisWithFactors
    templates : ndarray of shape (n_classes, n_basis), or (n_classes, n_channels, n_basis)
    values, mask : ndarray of shape (n_observations, n_points * n_channels)
        Channels in turn at each point.
    labels : ndarray of int of shape (n_observations,)
    design : ndarray of shape (n_points, n_basis)
        Φ at the prior mean of the warp.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (n_basis,), or (n_channels, n_basis)
        Zero for the coefficients of the template.
    """
    n, size, n_points = len(values), basis.kernels.n_basis, len(design)
    table = templates.reshape(len(templates), -1, basis.n_basis)[:, :, :size]
    design, n_channels = design[:, :size], table.shape[1]
    shape = (n, n_points, n_channels)
    away = values.reshape(shape) - np.einsum("sl,ncl->nsc", design, table[labels])
    away = (away * mask.reshape(shape)).swapaxes(1, 2)
    smooth = np.linalg.solve(design.T @ design + RIDGE * basis.kernels.gram(), design.T)
    coefficients = np.einsum("ls,ncs->ncl", smooth, away)
    fits = (coefficients @ design.T).reshape(n, -1)
    scores = np.linalg.svd(fits, full_matrices=False)[0][:, : basis.n_factors]
    found = np.zeros((n_channels, 1 + basis.n_factors, size))
    # a factor of zeros would stay zero, so those without a component are random
    found[:, 1:] = 1e-3 * rng.standard_normal(found[:, 1:].shape)
    found[:, 1 : 1 + scores.shape[1]] += np.einsum("nk,ncl->ckl", scores, coefficients) / np.sqrt(n)
    return found.reshape(templates.shape[1:])

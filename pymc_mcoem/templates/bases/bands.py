"""Symmetric matrices by their bands, solved without the zeros beyond them.

Entry ``[q, k]`` of bands is entry ``[q, q + k]`` of the matrix: a matrix of n rows has bands
``(n, width + 1)``. Entries with q + k ≥ n hold any number, and are not used. LAPACK itself is
called, because SciPy's wrappers cost as much as it does, once a class and image.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.blas import dsbmv
from scipy.linalg.lapack import dpbtrf, dpbtrs

__all__ = ["cholesky", "multiply", "require_semidefinite", "solve", "symmetric_bands", "upper"]


def symmetric_bands(matrices: np.ndarray, width: int) -> np.ndarray:
    """Return the bands ``(..., n, width + 1)`` of symmetric matrices ``(..., n, n)``.

    Examples
    --------
    >>> symmetric_bands(np.array([[4.0, 1.0, 0.0], [1.0, 5.0, 2.0], [0.0, 2.0, 6.0]]), 1)[:2]
    array([[4., 1.],
           [5., 2.]])
    """
    *shape, n = matrices.shape[:-1]
    # rows of one more entry begin at the diagonal
    flat = np.concatenate([matrices.reshape(*shape, n * n), np.zeros((*shape, n))], axis=-1)
    return np.ascontiguousarray(flat.reshape(*shape, n, n + 1)[..., : width + 1])


def cholesky(bands: np.ndarray) -> np.ndarray:
    """Return the bands ``(n, width + 1)`` of U in the matrix UᵀU, in the memory of the matrix's.

    Raises
    ------
    LinAlgError
        If the matrix is not positive definite.
    """
    factor, failed = dpbtrf(bands.T, lower=True, overwrite_ab=True)
    if failed:
        raise LinAlgError
    found: np.ndarray = factor.T
    return found


def solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return x ``(n,)`` in UᵀU x = right, with the bands ``(n, width + 1)`` of U."""
    found: np.ndarray = dpbtrs(factor.T, right, lower=True)[0]
    return found


def multiply(bands: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return a matrix, by its bands ``(n, width + 1)``, times a vector ``(n,)``."""
    found: np.ndarray = dsbmv(bands.shape[1] - 1, 1.0, bands.T, vector, lower=True)
    return found


def upper(factor: np.ndarray) -> np.ndarray:
    """Return U ``(n, n)`` from its bands ``(n, width + 1)``."""
    n, n_bands = factor.shape
    whole = np.zeros((n, n + 1))
    whole[:, :n_bands] = factor
    return np.triu(whole.ravel()[: n * n].reshape(n, n))


def require_semidefinite(name: str, matrix: np.ndarray, bands: np.ndarray) -> None:
    """Check that a matrix of second moments is positive semidefinite.

    Parameters
    ----------
    name : str
        Name of the matrix, for the message.
    matrix : ndarray
        The matrix (n, n), or sums that represent it.
    bands : ndarray of shape (n, width + 1)
        Its bands.

    Raises
    ------
    ValueError
        If it is not symmetric positive semidefinite, up to rounding in single precision, in which
        an E-step may compute its statistics.

    Examples
    --------
    >>> moments = np.diag([1.0, -0.5])
    >>> require_semidefinite("moments", moments, symmetric_bands(moments, 1))
    Traceback (most recent call last):
        ...
    ValueError: moments is not positive semidefinite, as second moments are; check the E-step.
    """
    small = float(np.finfo(np.float32).eps * np.abs(matrix).max(initial=0.0))
    # sums by distance are those of a symmetric matrix
    fine = len(matrix) != len(bands) or bool((np.abs(matrix - matrix.T) <= small).all())
    # lift eigenvalues that are zero up to rounding above zero
    lifted = bands.copy()
    lifted[:, 0] += (small + np.finfo(float).tiny) * len(bands)
    try:
        cholesky(lifted)
    except LinAlgError:
        fine = False
    if not fine:
        raise ValueError(
            f"{name} is not positive semidefinite, as second moments are; check the E-step."
        )

"""Warps D(·, β) of the plane or the line, which move a template's points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pymc_mcoem.compiling.linear_algebra import matrix_product

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

__all__ = ["Deformation", "SumOfDeformations"]


class Deformation:
    """A warp u ↦ D(u, β) with parameters β ~ Normal(m, Γ).

    Γ is the base covariance M, with its block of learned coordinates scaled or replaced for each
    class. Each rigid coordinate has a learned variance, the same for all classes. Learned, rigid
    and other coordinates are uncorrelated with one another.
    Warps are added with ``+``: D(u) = u + Σ (D_i(u) − u).

    All methods take `points`, an ndarray (n_points, n_dims), and `beta`, a tensor (n_parameters,).

    Attributes
    ----------
    n_dims : int or None
        Dimension of the warped space.
    mean : ndarray of shape (n_parameters,)
        Prior mean m.
    covariance : ndarray of shape (n_parameters, n_parameters)
        Base covariance M.
    learned : ndarray of bool, shape (n_parameters,)
        Which coordinates have a learned covariance.
    rigid_weight : float or None
        Number of observations that the prior of rigid variances counts as. The diagonal of M is
        its mode. None where no coordinate is rigid.
    labels : tuple of str, length n_parameters
        Names of the coordinates of β.
    """

    n_dims: int
    mean: np.ndarray
    covariance: np.ndarray
    learned: np.ndarray
    labels: tuple[str, ...]
    rigid_weight: float | None = None
    #: Number of the last coordinates, which do not move points.
    n_scores: int = 0

    @property
    def rigid(self) -> np.ndarray:
        """Which coordinates have a learned variance each, ndarray of bool (n_parameters,)."""
        return np.zeros(self.n_parameters, dtype=bool)

    @property
    def n_parameters(self) -> int:
        """Number of coordinates of β."""
        return int(self.mean.size)

    def warp(self, points: np.ndarray, beta: Any) -> TensorVariable:
        """Return D(u_s, β), shape (n_points, n_dims)."""
        return pt.stack(self.coordinates(points, beta), axis=1)

    def coordinates(self, points: np.ndarray, beta: Any) -> list[TensorVariable]:
        """Return D(u_s, β) as `warp` does, but as one vector (n_points,) for each axis.

        Bases take this form directly, so nothing has to be stacked and split again.
        """
        if not isinstance(points, Variable):
            points = np.asarray(points, np.float64)
        return self.warped(points, pt.as_tensor_variable(beta))

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the derivatives of f(D(u_s, β)) with respect to β, from those of f.

        `gradient` is ∇f at the warped points, (n_points, n_dims). The result is (n_parameters,
        n_points), with columns Σ_k ∇f_k(D(u_s, β)) ∂D_k(u_s, β)/∂β.
        """
        raise NotImplementedError

    def derivatives(self, points: np.ndarray, beta: Any) -> list[TensorVariable] | None:
        """Return ∂D_k(u_s, β)/∂β, a matrix (n_parameters, n_points) per axis; None if unknown."""
        return None

    def contract(
        self, points: np.ndarray, beta: Any, rows: Sequence[TensorVariable]
    ) -> TensorVariable:
        """Return Σ_k rows_k (∂D_k/∂β)ᵀ for a matrix (n, n_points) per axis, (n, n_parameters)."""
        derivatives = self.derivatives(points, beta)
        assert derivatives is not None
        both = zip(rows, derivatives, strict=True)
        by_axis = [matrix_product(row, derivative.T) for row, derivative in both]
        return by_axis[0] if len(by_axis) == 1 else pt.add(*by_axis)

    def second_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable | None:
        """Return the second derivatives by β of Σ_s g_s(D(u_s, β)), from those of the g_s.

        Parameters
        ----------
        slopes : sequence of n_dims vectors (n_points,)
            ∂g_s/∂u_k at the warped points.
        bends : n_dims sequences of n_dims vectors (n_points,)
            ∂²g_s/∂u_k∂u_l there.

        Returns
        -------
        TensorVariable of shape (n_parameters, n_parameters), or None
            None, the default, if they are not known. Mode searches then use the Gauss-Newton matrix
            only, and take more steps.
        """
        return None

    def cross_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        bends: Sequence[Sequence[TensorVariable]],
        other: Deformation,
        theirs: Any,
    ) -> TensorVariable | None:
        """Return the second derivatives of Σ_s g_s by β and by an added warp's parameters.

        Those are `theirs`. `bends` is as for `second_derivatives`, and symmetric. The result has
        shape (n_parameters, other.n_parameters); it is None if a warp has no `derivatives`.
        """
        moved = self.derivatives(points, beta)
        if moved is None or other.derivatives(points, theirs) is None:
            return None
        bent = [
            pt.add(*(each[None, :] * row for each, row in zip(bend, moved, strict=True)))
            for bend in bends
        ]
        return other.contract(points, theirs, bent)

    def starts(self) -> np.ndarray:
        """Return starting points of mode searches, shape (n_starts, n_parameters)."""
        return self.mean[None, :].copy()

    def check_points(self, points: np.ndarray) -> None:
        """Raise ValueError if D is not defined at points (n_points, n_dims); here it always is."""

    def warped(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, one vector for each dimension."""
        raise NotImplementedError

    def __add__(self, other: Deformation) -> SumOfDeformations:
        """Return the warp that moves points by both displacements."""
        if not isinstance(other, Deformation):
            return NotImplemented
        return SumOfDeformations((self, other))

    def __repr__(self) -> str:
        """Return the kind and the number of parameters."""
        return f"{type(self).__name__}({self.n_parameters} parameters)"


class SumOfDeformations(Deformation):
    """Warps whose displacements add up: D(u) = u + Σ_i (D_i(u) − u).

    β contains the parameters of all terms in order; sums among the terms are replaced by theirs.
    ``a + b`` returns such a sum.

    Raises
    ------
    ValueError
        If the terms warp different spaces, or rigid motions have different weights.

    Examples
    --------
    >>> from pymc_mcoem.templates import DisplacementField, RigidMotion
    >>> both = RigidMotion() + DisplacementField([[0.0, 0.0]], width=0.4)
    >>> both.n_parameters, both.starts().shape, int(both.learned.sum())
    (8, (1, 8), 2)
    """

    def __init__(self, terms: Sequence[Deformation]) -> None:
        flat: list[Deformation] = []
        for term in terms:
            flat.extend(term.terms if isinstance(term, SumOfDeformations) else [term])
        dims = {term.n_dims for term in flat}
        if len(dims) != 1:
            raise ValueError(
                f"terms: they warp spaces of dimensions {sorted(dims)}; add warps of one and the "
                "same space."
            )
        self.terms: tuple[Deformation, ...] = tuple(flat)
        self.n_dims = dims.pop()
        self.mean = np.concatenate([term.mean for term in flat])
        self.covariance = np.zeros((self.mean.size, self.mean.size))
        for term, where in zip(flat, self._slices(), strict=True):
            self.covariance[where, where] = term.covariance
        self.learned = np.concatenate([term.learned for term in flat])
        weights = {term.rigid_weight for term in flat} - {None}
        if len(weights) > 1:
            raise ValueError(
                f"terms: rigid motions have the weights {sorted(map(str, weights))}; give all of "
                "them the same."
            )
        self.rigid_weight = weights.pop() if weights else None
        labels = [label for term in flat for label in term.labels]
        if len(set(labels)) < len(labels):
            labels = [
                f"{index}:{label}" for index, term in enumerate(flat) for label in term.labels
            ]
        self.labels = tuple(labels)

    @property
    def rigid(self) -> np.ndarray:
        """Which coordinates have a learned variance each, ndarray of bool (n_parameters,)."""
        return np.concatenate([term.rigid for term in self.terms])

    def _slices(self) -> list[slice]:
        ends = np.cumsum([term.n_parameters for term in self.terms])
        return [
            slice(int(end) - term.n_parameters, int(end))
            for term, end in zip(self.terms, ends, strict=True)
        ]

    def warped(self, points: np.ndarray, beta: TensorVariable) -> list[TensorVariable]:
        """Return the warped points, one vector for each dimension."""
        each = [
            term.warped(points, beta[where])
            for term, where in zip(self.terms, self._slices(), strict=True)
        ]
        surplus = (len(each) - 1) * points
        return [
            pt.add(*columns) - surplus[:, axis] if len(each) > 1 else columns[0]
            for axis, columns in enumerate(zip(*each, strict=True))
        ]

    def jacobian(self, points: np.ndarray, beta: Any, gradient: Any) -> TensorVariable:
        """Return the terms' derivatives one below the other, shape (n_parameters, n_points)."""
        beta = pt.as_tensor_variable(beta)
        return pt.concatenate(
            [
                term.jacobian(points, beta[where], gradient)
                for term, where in zip(self.terms, self._slices(), strict=True)
            ],
            axis=0,
        )

    def second_derivatives(
        self,
        points: np.ndarray,
        beta: Any,
        slopes: Sequence[TensorVariable],
        bends: Sequence[Sequence[TensorVariable]],
    ) -> TensorVariable | None:
        """Return the second derivatives by β, block by block, or None if a term knows none."""
        beta = pt.as_tensor_variable(beta)
        coordinates = [beta[where] for where in self._slices()]
        pairs = list(zip(self.terms, coordinates, strict=True))
        blocks: list[list[TensorVariable]] = []
        for index, (term, own) in enumerate(pairs):
            found = [
                term.second_derivatives(points, own, slopes, bends),
                *(
                    term.cross_derivatives(points, own, bends, other, theirs)
                    for other, theirs in pairs[index + 1 :]
                ),
            ]
            known = [each for each in found if each is not None]
            if len(known) < len(found):
                return None
            blocks.append([*(blocks[before][index].T for before in range(index)), *known])
        return pt.concatenate([pt.concatenate(row, axis=1) for row in blocks], axis=0)

    def derivatives(self, points: np.ndarray, beta: Any) -> list[TensorVariable] | None:
        """Return the terms' ∂D_k/∂β one below the other, or None if a term knows none."""
        beta = pt.as_tensor_variable(beta)
        found = [
            term.derivatives(points, beta[where])
            for term, where in zip(self.terms, self._slices(), strict=True)
        ]
        known = [each for each in found if each is not None]
        if len(known) < len(found):
            return None
        return [pt.concatenate(list(rows), axis=0) for rows in zip(*known, strict=True)]

    def starts(self) -> np.ndarray:
        """Return all combinations of the terms' starts, shape (n_starts, n_parameters)."""
        return np.array(
            [np.concatenate(rows) for rows in itertools.product(*(p.starts() for p in self.terms))]
        )

"""The M-step of a template mixture, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from scipy.linalg import LinAlgError, solve_triangular

from pymc_mcoem.interrupts import import_whole
from pymc_mcoem.templates.bases.bands import cholesky, multiply, solve, symmetric_bands, upper
from pymc_mcoem.templates.priors import TemplatePriors

__all__ = ["maximize_templates"]


def maximize_templates(
    statistics: Mapping[str, np.ndarray],
    *,
    effective_size: float,
    priors: TemplatePriors,
    gram: np.ndarray,
    base_covariance: np.ndarray,
    rigid_prior: tuple[np.ndarray, float] | None = None,
    covariance: Literal["scaled", "diagonal", "full"] = "scaled",
    noise: Literal["shared", "class"] = "shared",
    coefficients: Literal["real", "nonnegative"] = "real",
    ready: np.ndarray | None = None,
    present: Mapping[str, np.ndarray] | None = None,
    precision: np.ndarray | None = None,
    gram_bands: Callable[[np.ndarray, int], np.ndarray] = symmetric_bands,
    n_uncounted: int = 0,
) -> dict[str, np.ndarray]:
    """Return the parameters that maximize n* × (expected log-likelihood) + log-priors.

    Parameters
    ----------
    statistics : mapping of str to ndarray
        Running means of δ_{I,j} S: ``"class_weight"`` s1 (C,), ``"template_projection"`` s2
        (C, L), ``"template_gram"`` s3 (C, L, L), or as `gram_bands` takes it,
        ``"deformation_outer"`` s4 (C, d, d), ``"squared_norm"`` s5 (C,), ``"observed_points"``
        s0 (C,), and with a `rigid_prior` ``"rigid_squares"`` s6 (C, n_rigid); others are not used.
        Of several channels s2, s3, s5 and s0 have an axis of channels after that of classes.
    effective_size : float
        Number n* of observations that the means are worth; infinite to leave the priors out.
    priors : TemplatePriors
    gram : ndarray of shape (L, L)
        Gram matrix of the basis.
    base_covariance : ndarray of shape (d, d)
        Learned block of the base covariance M.
    rigid_prior : tuple of (ndarray of shape (n_rigid,), float), optional
        Mode τ_0² and weight v of the prior of the variances of rigid coordinates, an
        inverse gamma of shape v/2 − 1 and rate v τ_0²/2.
    covariance : {"scaled", "diagonal", "full"}
        Γ_j = γ_j² M, Γ_j = diag(γ_jk²), or any Γ_j.
    noise : {"shared", "class"}
        One σ², or one σ_j² for each class; of several channels each has its own.
    coefficients : {"real", "nonnegative"}
        Whether α ≥ 0.
    ready : ndarray of bool of shape (C,), optional
        Classes whose own parameters are maximized; the others keep those of `present`, and what
        classes share is maximized given these. Default: all.
    present : mapping of str to ndarray, optional
        θ before the M-step; needed if a class is not ready.
    precision : ndarray of shape (L, width + 1), optional
        Bands of what the priors make of `gram`, where that is known; see `symmetric_bands`. The
        other matrices have no entries beyond them.
    gram_bands : callable
        Returns the bands of a matrix in ``"template_gram"``, given it and the width.
    n_uncounted : int
        Number of coefficients of a template that σ² does not count: directions in which
        `precision` is zero, and coefficients of factors.

    Returns
    -------
    dict of str to ndarray
        ``weights`` (C,), ``templates`` (C, L), ``noise_variance`` () or (C,), and
        ``deformation_variance`` (C,) or (C, d) or ``deformation_covariance`` (C, d, d), and
        ``rigid_variance`` (C, n_rigid), the same for each class, where rigid coordinates are
        learned. With channels ``templates`` (C, n_channels, L) and ``noise_variance``
        (n_channels,) or (C, n_channels).

    Notes
    -----
    Labels ``exp_model`` and ``mstep_curvedExp`` of the paper, with conjugate priors. With mean μ
    and precision A of the templates and parameters (a, b) of an inverse gamma,

    * α_j = (s3_j + A/n*)⁻¹ (s2_j + Aμ/n*)
    * σ² = [R + (Σ_j (α_j−μ)ᵀA(α_j−μ) + 2b)/n*] / [s0 + (CL + 2(a+1))/n*],
      R = Σ_j (s5_j − 2 α_jᵀ s2_j + α_jᵀ s3_j α_j)
    * ω_j = (s1_j + (e_j−1)/n*) / (1 + Σ(e−1)/n*)
    * γ_j² = (tr M⁻¹s4_j + 2b/n*) / (d s1_j + 2(a+1)/n*)
    * Γ_j = (s4_j + Λ/n*) / (s1_j + (ν+d+1)/n*)
    * τ_k² = (Σ_j s6_jk + v τ_0k²/n*) / (1 + v/n*)

    Under α ≥ 0 the first is the quadratic program min αᵀQα − 2αᵀr with Q and r the matrix and
    the right-hand side above: with Q = LLᵀ it is min ‖Lᵀα − L⁻¹r‖², which
    ``scipy.optimize.nnls`` solves.
    The prior is then a normal truncated at zero. At μ = 0 its normalizing constant does not
    depend on σ², and the second formula is exact; at another μ it omits that constant.

    Channels share weights and deformations. Given these they are independent: the first two
    formulas hold for each, with one matrix and several right-hand sides where no channel lacks a
    value that another one has.
    """
    if not effective_size > 0:
        raise ValueError(f"effective_size is {effective_size!r}; give a positive number.")
    share = 1.0 / effective_size
    mass = np.asarray(statistics["class_weight"], dtype=np.float64)
    excess = priors.concentration(mass.size) - 1.0
    weights = mass + share * excess
    waiting = np.zeros(mass.size, dtype=bool) if ready is None else ~np.asarray(ready)
    if present is None:
        if waiting.any():
            raise ValueError("present: give θ before the M-step, which classes that wait keep.")
        present = {}
    if precision is None:
        precision = symmetric_bands(priors.precision(gram), len(gram) - 1)
    templates, residuals = _templates(
        statistics,
        share * precision,
        gram_bands,
        priors,
        waiting,
        present.get("templates"),
        coefficients,
    )
    found = {
        "weights": weights / weights.sum(),
        "templates": templates,
        "noise_variance": _noise(
            statistics, residuals, share, priors, templates.shape[-1] - n_uncounted, noise, waiting
        ),
        **_deformations(statistics, share, priors, base_covariance, covariance, waiting),
    }
    if rigid_prior is not None and rigid_prior[0].size:
        modes, weight = rigid_prior
        above = np.asarray(statistics["rigid_squares"]).sum(axis=0) + share * weight * modes
        variance = above / (mass.sum() + share * weight)
        # one of each class would let a class with large motions take in images of other kinds
        found["rigid_variance"] = np.tile(variance, (mass.size, 1))
    shared = {"weights", "rigid_variance", *(() if noise == "class" else ("noise_variance",))}
    for name, value in found.items():
        if waiting.any() and name not in shared:
            value[waiting] = present[name][waiting]
    return found


def _templates(
    statistics: Mapping[str, np.ndarray],
    precision: np.ndarray,
    gram_bands: Callable[[np.ndarray, int], np.ndarray],
    priors: TemplatePriors,
    waiting: np.ndarray,
    present: np.ndarray | None,
    coefficients: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the templates (C, L) and the penalized residual sums of squares (C,).

    Channels are an axis after that of classes, of both.
    """
    given = np.asarray(statistics["template_projection"], dtype=np.float64)
    shape, n_basis = given.shape[:-1], given.shape[-1]
    projections = given.reshape(-1, n_basis)
    packed = np.asarray(statistics["template_gram"], dtype=np.float64)
    packed = packed.reshape(-1, *packed.shape[-2:])
    squares = np.asarray(statistics["squared_norm"], dtype=np.float64).ravel()
    mean = priors.mean(*given.shape).reshape(projections.shape)
    present_templates = None if present is None else np.reshape(present, projections.shape)
    n_channels = len(projections) // shape[0]
    templates = np.empty_like(projections)
    residuals = np.empty(len(projections))
    class_gram: np.ndarray
    factor: np.ndarray | None = None
    for index, projection in enumerate(projections):
        right = projection + multiply(precision, mean[index])
        j, channel = divmod(index, n_channels)
        # the channels of a class have the same matrix, unless one of them lacks values
        if channel == 0 or not np.array_equal(packed[index], packed[index - 1]):
            class_gram, factor = gram_bands(packed[index], precision.shape[1] - 1), None
        try:
            if waiting[j] and present_templates is not None:
                template = present_templates[index]
            elif coefficients == "nonnegative":
                template = _nonnegative(class_gram + precision, right)
            else:
                factor = cholesky(class_gram + precision) if factor is None else factor
                template = solve(factor, right)
        except LinAlgError:
            raise ValueError(
                f"statistics: class {j} has mass {statistics['class_weight'][j]:.3g} and "
                "its template is not determined; wait with the M-step, take fewer classes, or "
                "raise template_strength of the priors."
            ) from None
        away = template - mean[index]
        # the quadratic form at the new template, which rounding may make slightly negative
        explained = template @ (2.0 * projection - multiply(class_gram, template))
        residuals[index] = max(squares[index] - explained, 0.0) + away @ multiply(precision, away)
        templates[index] = template
    return templates.reshape(given.shape), residuals.reshape(shape)


def _nonnegative(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the α ≥ 0 that minimizes αᵀ matrix α − 2 αᵀ right, of a matrix by its bands."""
    # imported where it is used: scipy.optimize takes a quarter of a second
    import_whole("scipy.optimize")
    from scipy.optimize import nnls

    factor = upper(cholesky(matrix))
    solution, _ = nnls(factor, solve_triangular(factor, right, trans="T"))
    return np.asarray(solution)


def _noise(
    statistics: Mapping[str, np.ndarray],
    residuals: np.ndarray,
    share: float,
    priors: TemplatePriors,
    n_basis: int,
    noise: str,
    waiting: np.ndarray,
) -> np.ndarray:
    observed = np.asarray(statistics["observed_points"], dtype=np.float64)
    n_axes = observed.ndim - 1  # of channels, none or one
    coefficients = np.full(observed.shape, share * n_basis * (priors.template_strength > 0))
    if noise == "shared":
        residuals, observed, coefficients = (
            each.sum(axis=0) for each in (residuals, observed, coefficients)
        )
    above = residuals + share * 2.0 * priors.rate_of_noise(observed.shape[observed.ndim - n_axes :])
    below = observed + coefficients + share * 2.0 * (priors.noise_shape + 1.0)
    if noise == "class":
        below = np.where(waiting.reshape((-1, *[1] * n_axes)), 1.0, below)
    found = np.asarray(_ratio(above, below, "noise variance", "noise_rate"))
    if noise == "class" and n_axes:
        # a class that has no value of a channel yet has the channel's noise of all classes
        shared = _noise(statistics, residuals, share, priors, n_basis, "shared", waiting)
        found = np.where(observed < share, shared, found)
    return found


def _deformations(
    statistics: Mapping[str, np.ndarray],
    share: float,
    priors: TemplatePriors,
    base: np.ndarray,
    covariance: str,
    waiting: np.ndarray,
) -> dict[str, np.ndarray]:
    mass = np.asarray(statistics["class_weight"], dtype=np.float64)
    outer = np.asarray(statistics["deformation_outer"], dtype=np.float64)
    rate = share * 2.0 * priors.deformation_rate
    count = share * 2.0 * (priors.deformation_shape + 1.0)
    size = len(base)
    if size == 0:
        shape = {"scaled": (), "diagonal": (0,), "full": (0, 0)}[covariance]
        name = "deformation_covariance" if covariance == "full" else "deformation_variance"
        return {name: np.full((mass.size, *shape), priors.deformation_variance)}
    if covariance == "full":
        scale, degrees = priors.wishart(base)
        below = np.where(waiting, 1.0, mass + share * (degrees + size + 1))
        above = outer + share * scale
        return {
            "deformation_covariance": _ratio(
                (above + above.transpose(0, 2, 1)) / 2.0,
                below[:, None, None],
                "deformation covariance",
                "covariance_degrees",
            )
        }
    if covariance == "diagonal":
        above = np.diagonal(outer, axis1=1, axis2=2) + rate
        below = np.where(waiting, 1.0, mass + count)[:, None]
    else:
        # tr(M⁻¹ s4), both symmetric
        above = np.einsum("kl,jkl->j", np.linalg.inv(base), outer) + rate
        below = np.where(waiting, 1.0, size * mass + count)
    return {
        "deformation_variance": _ratio(above, below, "deformation variance", "deformation_rate")
    }


def _ratio(above: np.ndarray, below: np.ndarray, what: str, remedy: str) -> np.ndarray:
    if not (np.asarray(below) > 0).all():
        raise ValueError(
            f"statistics: a class without mass has no {what}; wait with the M-step, take fewer "
            f"classes, or give priors ({remedy}) and a finite effective_size."
        )
    return np.asarray(above / below)

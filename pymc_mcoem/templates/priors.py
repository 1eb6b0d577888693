"""Conjugate priors on the parameters θ of a template mixture, with an M-step in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pymc_mcoem.validation import as_numbers, is_number

__all__ = ["TemplatePriors"]


@dataclass(frozen=True)
class TemplatePriors:
    """Priors on templates, noise, class weights and deformation variances.

    Without priors a class without observations has no template, and two observations do
    not determine a template at every point. The defaults are weak for observations of the
    order of one (gray values in [0, 1]) on points of the order of one: data soon outweigh them.
    For others there is `in_unit`.

    Attributes
    ----------
    template_mean : float or ndarray, default 0.0
        μ: one number for all coefficients, or an array (n_basis,) or (n_classes, n_basis); with
        channels one that broadcasts to (n_classes, n_channels, n_basis), as (n_channels, 1).
    template_strength : float, default 0.1
        α_j | σ² ~ Normal(μ, σ² A⁻¹) with A the strength times `template_precision`. With
        ``"gram"`` the template's values have a prior standard deviation σ / √strength at the
        centers of the kernels, and are smooth in between.
    template_precision : {"gram", "identity"} or ndarray of shape (n_basis, n_basis)
        Matrix that the strength multiplies: the kernels' gram matrix K (plus 10⁻⁶ on its
        diagonal, which keeps wide kernels well conditioned), the identity, or a given matrix.
    noise_shape, noise_rate : float, default 1.0 and 0.01
        σ² ~ InverseGamma(shape, rate), whose mode is rate / (shape + 1). With channels the rate may
        be an array (n_channels,).
    weight_concentration : float or ndarray of shape (n_classes,), default 2.0
        ω ~ Dirichlet; 2 is one pseudo-observation for each class.
    deformation_shape, deformation_rate : float, default 1.0 and 0.02
        γ_j² ~ InverseGamma(shape, rate), mode rate / (shape + 1) = 0.01: one for each class
        if the covariance is scaled, one for each learned coordinate if it is diagonal.
    covariance_degrees : float or None, default None
        Degrees of freedom ν of Γ_j ~ InverseWishart(Λ, ν), used if the covariance is full.
        None: two more than the number of learned coordinates.
    covariance_scale : ndarray of shape (n_learned, n_learned) or None, default None
        Scale matrix Λ. None: such that the prior's mode is the base covariance times
        the mode of γ².

    Raises
    ------
    ValueError
        If a number is out of range.

    See Also
    --------
    TemplatePriors.with_deformation_variance : Hold γ² near a given value.
    TemplatePriors.in_unit : Priors for observations that are not of the order of one.

    Notes
    -----
    The paper maximizes the likelihood alone.

    Examples
    --------
    >>> priors = TemplatePriors().with_deformation_variance(0.005, weight=2000)
    >>> round(priors.deformation_variance, 6)
    0.005
    """

    template_mean: float | np.ndarray = 0.0
    template_strength: float = 0.1
    template_precision: Literal["gram", "identity"] | np.ndarray = "gram"
    noise_shape: float = 1.0
    noise_rate: float | np.ndarray = 0.01
    weight_concentration: float | np.ndarray = 2.0
    deformation_shape: float = 1.0
    deformation_rate: float = 0.02
    covariance_degrees: float | None = None
    covariance_scale: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Check every number."""
        for name in ("noise_shape", "deformation_shape"):
            value = getattr(self, name)
            if not (is_number(value) and value > -1):
                raise ValueError(f"{name} is {value!r}; give a number greater than -1.")
        for name in ("template_strength", "noise_rate", "deformation_rate"):
            value = getattr(self, name)
            many = name == "noise_rate" and isinstance(value, np.ndarray) and value.ndim == 1
            entries = value.tolist() if many else [value]
            if not all(is_number(number) and number >= 0 for number in entries):
                raise ValueError(f"{name} is {value!r}; give a number that is not negative.")
        concentration = as_numbers("weight_concentration", self.weight_concentration)
        if not (np.isfinite(concentration).all() and (concentration >= 1).all()):
            raise ValueError(
                f"weight_concentration is {self.weight_concentration!r}; give numbers of at "
                "least 1: below it the posterior has no mode."
            )
        if isinstance(self.template_precision, str) and self.template_precision not in (
            "gram",
            "identity",
        ):
            raise ValueError(
                f"template_precision is {self.template_precision!r}; give 'gram', 'identity' or "
                "a matrix (n_basis, n_basis)."
            )

    @property
    def deformation_variance(self) -> float:
        """Mode of the prior of γ², from which learning starts."""
        return self.deformation_rate / (self.deformation_shape + 1.0)

    @property
    def noise_variance(self) -> float | np.ndarray:
        """Mode of the prior of σ², one number or one for each channel."""
        return self.noise_rate / (self.noise_shape + 1.0)

    def with_deformation_variance(self, value: float, weight: float) -> TemplatePriors:
        """Return the same priors with γ² held near `value`.

        Parameters
        ----------
        value : float
            The prior's mode.
        weight : float
            Number of observed coordinates of δ that the prior is worth. One observation of a
            class brings as many as the deformation has learned coordinates: 72 for the paper's
            digits with a scaled covariance, one with a diagonal covariance. With a full
            covariance only the mode is set, and `covariance_degrees` is its weight.

        Returns
        -------
        TemplatePriors

        Raises
        ------
        ValueError
            If the value or the weight is not positive.
        """
        if not (is_number(value) and value > 0 and is_number(weight) and weight > 0):
            raise ValueError(
                f"value is {value!r} and weight is {weight!r}; give two positive numbers."
            )
        return replace(
            self, deformation_shape=weight / 2.0 - 1.0, deformation_rate=value * weight / 2.0
        )

    def in_unit(self, unit: float | np.ndarray) -> TemplatePriors:
        """Return the same priors for observations that are `unit` times as large.

        Parameters
        ----------
        unit : float or ndarray of shape (n_channels,)
            Size of the observations, such as their standard deviation, or of each channel.

        Returns
        -------
        TemplatePriors
            With `template_mean` times the unit and `noise_rate` times its square; the others do not
            depend on the size of observations. Learning from observations times the unit then gives
            templates times the unit.

        Raises
        ------
        ValueError
            If the unit is not positive.

        Examples
        --------
        >>> TemplatePriors().in_unit(255.0).noise_rate
        650.25
        """
        entries = unit.tolist() if isinstance(unit, np.ndarray) and unit.ndim == 1 else [unit]
        if not all(is_number(number) and number > 0 for number in entries):
            raise ValueError(f"unit is {unit!r}; give a positive number.")
        mean = self.template_mean
        of_mean = unit[:, None] if isinstance(unit, np.ndarray) and unit.ndim == 1 else unit
        return replace(
            self,
            template_mean=of_mean * (mean if isinstance(mean, (int, float)) else np.asarray(mean)),
            noise_rate=unit**2 * self.noise_rate,
        )

    def precision(self, gram: np.ndarray) -> np.ndarray:
        """Return the prior precision A of a template's coefficients, for unit noise.

        Parameters
        ----------
        gram : ndarray of shape (n_basis, n_basis)

        Returns
        -------
        ndarray of shape (n_basis, n_basis)

        Raises
        ------
        ValueError
            If `template_precision` is a matrix of another shape.
        """
        identity = np.eye(len(gram))
        if isinstance(self.template_precision, str):
            base = gram + 1e-6 * identity if self.template_precision == "gram" else identity
        else:
            base = np.asarray(self.template_precision, dtype=np.float64)
            if base.shape != gram.shape:
                raise ValueError(
                    f"template_precision has shape {base.shape}; the basis needs {gram.shape}."
                )
        result: np.ndarray = self.template_strength * base
        return result

    def mean(self, n_classes: int, *shape: int) -> np.ndarray:
        """Return μ as an array (n_classes, n_basis), or (n_classes, n_channels, n_basis)."""
        return _spread(self.template_mean, (n_classes, *shape), "template_mean")

    def rate_of_noise(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return the rate of the prior of σ² as an array of the shape of channels."""
        return _spread(self.noise_rate, shape, "noise_rate")

    def concentration(self, n_classes: int) -> np.ndarray:
        """Return the Dirichlet's parameters, shape (n_classes,)."""
        return _spread(self.weight_concentration, (n_classes,), "weight_concentration")

    def wishart(self, base: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the scale matrix Λ and the degrees of freedom ν of a full covariance's prior.

        Parameters
        ----------
        base : ndarray of shape (n_learned, n_learned)
            The learned block of the deformation's base covariance M.
        """
        size = len(base)
        degrees = float(
            self.covariance_degrees if self.covariance_degrees is not None else size + 2
        )
        if self.covariance_scale is None:
            return (degrees + size + 1) * self.deformation_variance * base, degrees
        scale = np.asarray(self.covariance_scale, dtype=np.float64)
        if scale.shape != base.shape:
            raise ValueError(
                f"covariance_scale has shape {scale.shape}; the learned deformation needs "
                f"{base.shape}."
            )
        return scale, degrees


def _spread(value: Any, shape: tuple[int, ...], name: str) -> np.ndarray:
    try:
        return np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), shape))
    except ValueError:
        raise ValueError(
            f"{name} has shape {np.shape(value)}; give one number or an array that fits {shape}."
        ) from None

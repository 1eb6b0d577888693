"""The interface of a mixture of warped templates to online EM: data, statistics and M-step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.density.geometry import declare_geometry
from pymc_mcoem.em.family import ROUNDING, Family
from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.curve_loops import curve_functions
from pymc_mcoem.templates.description import describe_mixture
from pymc_mcoem.templates.image_loops import image_functions
from pymc_mcoem.templates.maximization import maximize_templates
from pymc_mcoem.templates.model import build_template_model
from pymc_mcoem.templates.observations import encode_observation, encode_own_points
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.settings import check_settings
from pymc_mcoem.templates.starts import (
    first_parameters,
    kmeans_start,
    mean_design,
    random_start,
    stack_encoded,
)
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.validation import require_semidefinite

__all__ = ["TemplateFamily"]


class TemplateFamily(Family):
    """The family behind `TemplateMixture`, where parameters and attributes are described."""

    def __init__(
        self,
        points: Any,
        basis: GaussianBasis,
        deformation: Deformation,
        n_classes: int,
        *,
        scale: tuple[float, float] | None = None,
        coefficients: str = "real",
        covariance: str = "scaled",
        noise: str = "shared",
        noise_correlation: Any = None,
        own_points: int | None = None,
        priors: TemplatePriors | None = None,
        grid_shape: Sequence[int] | None = None,
        dim_names: Sequence[str] | None = None,
        dim_coords: Sequence[Any] | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "scale": scale,
            "coefficients": coefficients,
            "own_points": own_points,
            "covariance": covariance,
            "noise": noise,
            "noise_correlation": noise_correlation,
            "priors": priors,
            "grid_shape": grid_shape,
            "dim_names": dim_names,
            "dim_coords": dim_coords,
        }
        self.priors = TemplatePriors() if priors is None else priors
        if not isinstance(self.priors, TemplatePriors):
            raise TypeError(f"priors is a {type(priors).__name__}; pass a TemplatePriors.")
        self.settings = check_settings(points, basis, deformation, n_classes, self._options)
        self.gram = basis.gram()
        # refuse priors of the wrong size now, not at the first M-step
        self.priors.precision(self.gram)
        self.priors.mean(self.settings.n_classes, basis.n_basis)
        self.priors.concentration(self.settings.n_classes)
        if covariance == "full":
            self.priors.wishart(self.settings.base_covariance)

        built = build_template_model(self.settings, first_parameters(self.settings, self.priors))
        self.model = built.model
        self.class_index = built.class_index
        self.observation = ("observed_values", "observed_mask")
        if own_points is not None:
            self.observation += ("own_points",)
        self._warned_of_negative_values = False
        self.statistics = built.statistics
        self.geometry = built.geometry
        self.written_out = image_functions(self.settings, built) or curve_functions(
            self.settings, built
        )
        declare_geometry(built.model, built.geometry)
        # attributes that the constructor sets; see `TemplateMixture.__reduce__`
        self._made = frozenset(vars(self))

    @property
    def n_classes(self) -> int:
        """Number of templates."""
        return self.settings.n_classes

    def maximize(
        self, statistics: Mapping[str, np.ndarray], *, effective_size: float
    ) -> dict[str, np.ndarray]:
        """Return the parameters that maximize the expected log-likelihood plus log-priors.

        See `pymc_mcoem.templates.maximization.maximize_templates` for statistics and formulas.
        """
        return maximize_templates(
            self._unpacked(statistics),
            effective_size=effective_size,
            priors=self.priors,
            gram=self.gram,
            base_covariance=self.settings.base_covariance,
            covariance=self.settings.covariance,
            noise=self.settings.noise,
            coefficients=self.settings.coefficients,
        )

    def ready(self, statistics: Mapping[str, np.ndarray], *, effective_size: float) -> np.ndarray:
        """Return which classes have the weight of one observation and a determined template.

        Returns
        -------
        ndarray of bool and shape (n_classes,)
            A template is determined if s3_j + A/n* is positive definite. With the default
            priors it always is, without priors once all kernels have been observed.
        """
        ready = super().ready(statistics, effective_size=effective_size)
        precision = self.priors.precision(self.gram) / effective_size
        grams = self.settings.basis.unpack_gram(np.asarray(statistics["template_gram"])[ready])
        for index, gram in zip(np.flatnonzero(ready), grams, strict=True):
            try:
                np.linalg.cholesky(gram + precision)
            except np.linalg.LinAlgError:
                ready[index] = False
        return ready

    def check_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Refuse statistics that no observation can have.

        Raises
        ------
        ValueError
            If a class weight, a squared norm or a count is negative, or a matrix of second moments
            is not positive semidefinite.
        """
        super().check_statistics(statistics)
        for name in ("squared_norm", "observed_points"):
            if not (np.asarray(statistics[name]) >= -ROUNDING).all():
                raise ValueError(f"statistics: {name} is negative; look at the E-step.")
        for name in ("deformation_outer", "template_gram"):
            for index, matrix in enumerate(statistics[name]):
                # an observation has nothing in most classes
                if matrix.any():
                    if name == "template_gram":
                        matrix = self.settings.basis.unpack_gram(matrix)
                    require_semidefinite(f"statistics: {name} of class {index}", matrix)

    def maximize_ready(
        self,
        statistics: Mapping[str, np.ndarray],
        *,
        effective_size: float,
        ready: np.ndarray,
        present: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return the M-step in which classes that are not ready keep their parameters.

        The shared noise variance is maximized given the templates that are kept.
        """
        return maximize_templates(
            self._unpacked(statistics),
            effective_size=effective_size,
            priors=self.priors,
            gram=self.gram,
            base_covariance=self.settings.base_covariance,
            covariance=self.settings.covariance,
            noise=self.settings.noise,
            coefficients=self.settings.coefficients,
            ready=ready,
            present=present,
        )

    def _unpacked(self, statistics: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        gram = self.settings.basis.unpack_gram(statistics["template_gram"])
        return {**statistics, "template_gram": gram}

    def anneal(
        self, parameters: Mapping[str, np.ndarray], temperature: float
    ) -> dict[str, np.ndarray]:
        """Return parameters with the noise variance multiplied by the temperature."""
        variance = np.asarray(parameters["noise_variance"]) * temperature
        return {**parameters, "noise_variance": variance}

    def class_distances(
        self, parameters: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return mean squared differences between the templates of two θ on the points.

        Kernels overlap, so that very different coefficients may make one template.
        """
        ours, theirs = (
            np.asarray(each["templates"]) @ self._mean_design.T for each in (parameters, others)
        )
        distances: np.ndarray = np.mean((ours[:, None] - theirs) ** 2, axis=2)
        return distances

    def to_dataset(self, parameters: Mapping[str, np.ndarray]) -> xr.Dataset:
        """Label parameters with the model's dims and coords, and kernels with their centers.

        Along ``basis`` there is a coordinate for each axis of the points, such as ``basis_age``, or
        ``basis_row`` and ``basis_column``, in the unit of the points.
        """
        labeled = super().to_dataset(parameters)
        centers, names = self.settings.basis.centers, self.settings.dim_names
        if "basis" not in labeled.dims:
            return labeled
        if len(names) != centers.shape[1]:
            names = tuple(str(axis) for axis in range(centers.shape[1]))
        found = zip(names, centers.T, strict=True)
        return labeled.assign_coords({f"basis_{name}": ("basis", axis) for name, axis in found})

    def describe(self) -> dict[str, str]:
        """Return the arguments of the mixture as text; see `describe_mixture`."""
        return describe_mixture(self.settings, self.priors)

    def encode(self, observation: Any) -> dict[str, np.ndarray]:
        """Check one observation and return its values and its mask.

        Parameters
        ----------
        observation : array_like of the shape of one observation
            NaN, or an entry masked in a masked array, is a missing point. A result of this
            method is accepted too. With ``own_points`` it may also be increasing points above
            values, of shape (2, n) with n up to ``own_points``, or a mapping
            ``{"points": ..., "values": ...}``.

        Returns
        -------
        dict of str to ndarray
            ``observed_values`` with zeros where points are missing and ``observed_mask`` with
            ones where they are not, both of the shape of one observation. With ``own_points``
            these and ``own_points`` have that length; the points that fill it up are missing.

        Raises
        ------
        TypeError
            If the values are not real numbers.
        ValueError
            If the shape is wrong, a value is infinite, all points are missing, or own points
            do not increase or lie where the warp is not defined.

        Warns
        -----
        UserWarning
            Once, if coefficients are not negative but values are below zero by more than a tenth
            of the observation's largest: no template follows them there.

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1)
        >>> mixture.encode([[0.5, np.nan], [1.0, 0.0]])["observed_mask"]
        array([[1., 0.],
               [1., 1.]])
        """
        settings = self.settings
        if isinstance(observation, xr.DataArray):
            observation = self.in_order(observation)
        if settings.own_points is None:
            encoded = encode_observation(observation, settings.grid_shape)
        else:
            encoded = encode_own_points(
                observation,
                settings.points[:, 0],
                settings.own_points,
                settings.deformation.check_points,
            )
        if settings.coefficients == "nonnegative" and not self._warned_of_negative_values:
            values = encoded["observed_values"]
            if values.min() < -0.1 * max(float(values.max()), 0.0):
                warnings.warn(
                    f"observation has values down to {values.min():.4g}, which templates with "
                    "coefficients='nonnegative' cannot follow; pass coefficients='real' if they "
                    "are more than noise.",
                    stacklevel=2,
                )
                # set after the warning, which comes again if it is turned into an error
                self._warned_of_negative_values = True
        return encoded

    def as_source(self, observations: Any) -> Any:
        """Return observations in the form in which they are read; masked entries become NaN.

        Raises
        ------
        TypeError
            With ``own_points``, if they are a bare tuple, or two rows whose first increases within
            the range of points: points and values of one curve would be taken for two curves.
        """
        if self.settings.own_points is not None and (
            isinstance(observations, tuple) or self._looks_like_points_above_values(observations)
        ):
            raise TypeError(
                f"observations: got a {type(observations).__name__} whose first row could be the "
                "points of the second; pass a list of (points, values) pairs, or one observation "
                "as {'points': ..., 'values': ...}."
            )
        if isinstance(observations, np.ma.MaskedArray) and observations.dtype.kind in "biuf":
            return np.ma.filled(observations.astype(np.float64), np.nan)
        return observations

    def is_batch(self, record: Any) -> bool:
        """Return whether a record of an iterable is an array of several observations.

        With ``own_points`` that is an array (n, 2, n_points), as one observation is points above
        values.
        """
        if self.settings.own_points is None:
            return super().is_batch(record)
        return hasattr(record, "shape") and getattr(record, "ndim", None) == 3

    def _looks_like_points_above_values(self, observations: Any) -> bool:
        if not isinstance(observations, (list, np.ndarray)) or len(observations) != 2:
            return False
        if any(isinstance(row, Mapping) or np.ndim(row) != 1 for row in observations):
            return False
        points = np.asarray(observations[0])
        if points.dtype.kind not in "iuf" or len(points) < 2 or not (np.diff(points) > 0).all():
            return False
        try:
            self.settings.deformation.check_points(points[:, None])
        except ValueError:
            return False
        return True

    def check_parameters(self, parameters: Mapping[str, Any] | xr.Dataset) -> dict[str, np.ndarray]:
        """Check parameters given from outside and return them as float64 arrays by name.

        Raises
        ------
        ValueError
            If a name is missing or unknown, a shape is wrong, a value is not finite, weights
            are negative or do not sum to one, or a variance is not positive.
        """
        checked = super().check_parameters(parameters)
        for name in ("noise_variance", "deformation_variance"):
            if name in checked and not (checked[name] > 0).all():
                raise ValueError(
                    f"parameters: {name} is {checked[name]}; give variances greater than zero."
                )
        for index, matrix in enumerate(checked.get("deformation_covariance", ())):
            symmetric = np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-12)
            if matrix.size and not (symmetric and np.linalg.eigvalsh(matrix)[0] > 0):
                raise ValueError(
                    f"parameters: deformation_covariance of class {index} is not symmetric "
                    "positive definite; add a little to its diagonal."
                )
        return checked

    def initialize(
        self, observations: list[np.ndarray], rng: np.random.Generator, start: str = "kmeans"
    ) -> dict[str, np.ndarray]:
        """Return parameters to start from.

        Parameters
        ----------
        observations : list of ndarray
            The first observations, as `encode` takes them.
        rng : numpy.random.Generator
        start : {"kmeans", "random"}, default "kmeans"
            ``"kmeans"``: the M-step for observations labeled by k-means, with Φ at the prior
            mean of the warp (the least-squares fit of the centroids, regularized by the
            priors; noise from the residuals, weights from the cluster sizes). Classes
            without a cluster get a perturbed mean template. ``"random"``: α ~ Normal(0,
            K⁻¹) as in the paper (its absolute value, scaled to the observations' mean, if
            coefficients are not negative), equal weights, noise as large as the observations'
            variance.
            In both cases the deformation's variance starts at the mode of its prior (0.01 if it
            has none) times the base covariance.

        Returns
        -------
        dict of str to ndarray

        Raises
        ------
        ValueError
            If there is no observation or `start` is unknown.

        Notes
        -----
        Sections ``subsec:5:2`` and ``sec:5:2:2`` of the paper.
        """
        return self.initialize_labeled(observations, rng, start, None)

    def initialize_labeled(
        self,
        observations: list[np.ndarray],
        rng: np.random.Generator,
        start: str,
        allowed: np.ndarray | None,
    ) -> dict[str, np.ndarray]:
        """Return parameters to start from where labels are known.

        Parameters
        ----------
        observations, rng, start
            As for `initialize`.
        allowed : ndarray of bool of shape (n_observations, n_classes), optional
            Classes that may have made each observation. k-means then runs among observations with
            the same label, and gives as many clusters as that allows classes. A random start does
            not use labels.
        """
        if start not in ("kmeans", "random"):
            raise ValueError(f"start is {start!r}; give 'kmeans' or 'random'.")
        if len(observations) == 0:
            raise ValueError("observations is empty; give at least one to start from.")
        encoded = [self.encode(each) for each in observations]
        values, mask = stack_encoded(encoded)
        if start == "random":
            return random_start(self.settings, self.priors, self.gram, values, mask, rng)
        own = None
        if self.settings.own_points is not None:
            own = np.stack([data["own_points"] for data in encoded])
        return kmeans_start(self.settings, self.priors, self.gram, values, mask, rng, own, allowed)

    def mean_design(self) -> np.ndarray:
        """Return λΦ at the prior means of warp and scale, shape (n_points, n_basis)."""
        return self._mean_design.copy()

    @cached_property
    def _mean_design(self) -> np.ndarray:
        return mean_design(self.settings)

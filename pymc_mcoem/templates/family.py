"""The interface of a mixture of warped templates to online EM: data, statistics and M-step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import xarray as xr

from pymc_mcoem.density.geometry import declare_geometry
from pymc_mcoem.em.family import ROUNDING, Family
from pymc_mcoem.templates.bases.bands import cholesky, require_semidefinite, symmetric_bands
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.curve_loops import curve_functions
from pymc_mcoem.templates.description import describe_mixture
from pymc_mcoem.templates.exemplars import exemplar_start
from pymc_mcoem.templates.family_observations import TemplateObservations
from pymc_mcoem.templates.image_loops import image_functions
from pymc_mcoem.templates.maximization import maximize_templates
from pymc_mcoem.templates.model import build_template_model
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.settings import check_settings
from pymc_mcoem.templates.starts import (
    first_parameters,
    kmeans_start,
    mean_design,
    n_uncounted,
    precision_bands,
    random_start,
    stack_encoded,
    template_precision,
    warn_of_size,
)
from pymc_mcoem.templates.warps.deformations import Deformation

__all__ = ["TemplateFamily"]


class TemplateFamily(TemplateObservations, Family):
    """The family behind `TemplateMixture`, where parameters and attributes are described."""

    start_names = ("kmeans", "random", "exemplars")

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
        units: Mapping[str, str] | None = None,
        channels: int | Sequence[Any] | Mapping[str, Any] | None = None,
        offset: float | None = None,
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
            "units": units,
            "channels": channels,
            "offset": offset,
        }
        self.priors = TemplatePriors() if priors is None else priors
        if not isinstance(self.priors, TemplatePriors):
            raise TypeError(f"priors is a {type(priors).__name__}; pass a TemplatePriors.")
        self.settings = check_settings(points, basis, deformation, n_classes, self._options)
        self.gram = basis.gram()
        # refuse priors of the wrong size now, not at the first M-step
        self._precision = precision_bands(self.settings, self.priors, self.gram)
        mean = self.priors.mean(
            self.settings.n_classes, *self.settings.channel_shape, basis.n_basis
        )
        if isinstance(basis, BasisWithFactors) and mean[..., basis.kernels.n_basis :].any():
            raise ValueError(
                f"priors: template_mean is {self.priors.template_mean}; give zeros for the "
                "coefficients of factors, which come after those of the template."
            )
        self.priors.rate_of_noise(self.settings.channel_shape)
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
        if deformation.n_scores:
            self.reason_not_to_merge = (
                "their templates have factors, with signs and an order of their own in each run"
            )
        self.statistics = built.statistics
        self.geometry = built.geometry
        self.written_out = image_functions(self.settings, built) or curve_functions(
            self.settings, built
        )
        declare_geometry(built.model, built.geometry)
        # attributes that the constructor sets; see `__reduce__`
        self._made = frozenset(vars(self))

    @property
    def n_classes(self) -> int:
        """Number of templates."""
        return self.settings.n_classes

    @property
    def class_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that each class has its own row of, without the weights."""
        # the rows of rigid variances are the same
        return tuple(name for name in super().class_parameters if name != "rigid_variance")

    def maximize(
        self, statistics: Mapping[str, np.ndarray], *, effective_size: float
    ) -> dict[str, np.ndarray]:
        """Return the parameters that maximize the expected log-likelihood plus log-priors.

        See `pymc_mcoem.templates.maximization.maximize_templates` for statistics and formulas.
        """
        return self._maximized(statistics, effective_size=effective_size)

    def ready(self, statistics: Mapping[str, np.ndarray], *, effective_size: float) -> np.ndarray:
        """Return which classes have the weight of one observation and a determined template.

        Returns
        -------
        ndarray of bool and shape (n_classes,)
            A template is determined if s3_j + A/n* is positive definite. With the default
            priors it always is, without priors once all kernels have been observed.
        """
        ready = super().ready(statistics, effective_size=effective_size)
        packed, n_channels = np.asarray(statistics["template_gram"]), self.settings.n_channels
        packed = packed.reshape(-1, *packed.shape[-2:])
        diagonals = self.settings.basis.gram_bands(packed, 0)[..., 0]
        # s3_j is a sum of squares, so that what the prior adds may exceed all rounding (Demmel's
        # bound for Cholesky's method, twice): most of the time no matrix is factorized here
        share = 1.0 / effective_size
        size = diagonals.max(axis=1) + share * self._precision[:, 0].max()
        rounding = np.finfo(float).eps * diagonals.shape[1] ** 2 * size
        is_sure = share * self._least_precision > rounding
        for index in np.flatnonzero(np.repeat(ready, n_channels) & ~is_sure):
            try:
                cholesky(self._gram_bands(packed[index]) + share * self._precision)
            except np.linalg.LinAlgError:
                ready[index // n_channels] = False
        return ready

    def check_statistics(self, statistics: Mapping[str, np.ndarray]) -> None:
        """Refuse statistics that no observation can have.

        Raises
        ------
        ValueError
            If a class weight, a sum of squares or a count is negative, or a matrix of second
            moments is not positive semidefinite.
        """
        super().check_statistics(statistics)
        for name in ("squared_norm", "observed_points", "rigid_squares"):
            if name in statistics and not (np.asarray(statistics[name]) >= -ROUNDING).all():
                raise ValueError(f"statistics: {name} is negative; look at the E-step.")
        for name in ("deformation_outer", "template_gram"):
            for index, matrices in enumerate(statistics[name]):
                # an observation has nothing in most classes
                if not matrices.any():
                    continue
                last = None
                for matrix in matrices.reshape(-1, *matrices.shape[-2:]):
                    # channels have the same one, unless one of them lacks values
                    if last is None or not np.array_equal(matrix, last):
                        bands = (
                            self._gram_bands(matrix)
                            if name == "template_gram"
                            else symmetric_bands(matrix, len(matrix) - 1)
                        )
                        require_semidefinite(f"statistics: {name} of class {index}", matrix, bands)
                    last = matrix

    def maximize_ready(
        self,
        statistics: Mapping[str, np.ndarray],
        *,
        effective_size: float,
        ready: np.ndarray,
        present: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Return the M-step in which classes that are not ready keep their parameters.

        What classes share, as the variance of noise, is maximized given what is kept.
        """
        return self._maximized(
            statistics, effective_size=effective_size, ready=ready, present=present
        )

    def rescale(
        self,
        parameters: Mapping[str, np.ndarray],
        statistics: Mapping[str, np.ndarray],
        *,
        ready: np.ndarray,
        share: float,
    ) -> Mapping[str, np.ndarray]:
        r"""Return the M-step's parameters with templates for scales of mean a/b within each class.

        Parameters
        ----------
        parameters, statistics, ready, share
            As for `Family.rescale`.

        Notes
        -----
        λ and α_j are known by their product λ α_j, almost: only the prior of λ holds either. EM
        corrects templates that are too low, under scales that are too high, by a share of
        a σ²/‖λ f_j‖² in each step, and needs thousands at little noise. Here the M-step is made in
        a wider model (parameter-expanded EM of Liu, Rubin and Wu, 1998), λ | I = j ~
        Gamma(a, b/c_j), that is c_j times the λ of the model: templates c_j α_j make the same
        observations from Gamma(a, b) as α_j do there. The maximum over c_j is at

        .. math:: c_j = \frac{b}{a} \frac{E[δ_{I,j} λ]}{E[δ_{I,j}]},

        and α_j becomes c_j α_j, a power `share` of c_j in a stream. Maxima of the likelihood stay
        where they were, at c_j = 1, and with the whole c_j a step does not lower it. The prior of
        templates is that of α_j before it is multiplied: it is to keep them smooth, and would make
        all of them low, since against it there is nothing but the prior of λ.
        """
        if self.settings.scale is None:
            return parameters
        shape, rate = self.settings.scale
        mass = np.where(ready, statistics["class_weight"], 1.0)
        means = np.where(ready, statistics["scale"] / mass * (rate / shape), 1.0)
        templates = parameters["templates"]
        factors = means.reshape((-1, *[1] * (templates.ndim - 1))) ** share
        return {**parameters, "templates": templates * factors}

    def _maximized(
        self, statistics: Mapping[str, np.ndarray], **given: Any
    ) -> dict[str, np.ndarray]:
        return maximize_templates(
            statistics,
            priors=self.priors,
            gram=self.gram,
            precision=self._precision,
            gram_bands=self.settings.basis.gram_bands,
            n_uncounted=n_uncounted(self.settings),
            base_covariance=self.settings.base_covariance,
            rigid_prior=self.settings.rigid_prior,
            covariance=self.settings.covariance,
            noise=self.settings.noise,
            coefficients=self.settings.coefficients,
            **given,
        )

    def _gram_bands(self, sums: np.ndarray) -> np.ndarray:
        return self.settings.basis.gram_bands(sums, self._precision.shape[1] - 1)

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

        Kernels overlap, so that very different coefficients may make one template. Of several
        channels each is divided by the standard deviation of its noise in the first θ, relative to
        the others', as they may differ in what they measure.
        """
        ours, theirs = (
            np.asarray(each["templates"]) @ self._mean_design.T for each in (parameters, others)
        )
        if self.settings.n_channels > 1:
            noise = np.sqrt(np.atleast_2d(parameters["noise_variance"])).mean(axis=0)
            units = (noise / np.exp(np.log(noise).mean()))[:, None]
            ours, theirs = ours / units, theirs / units
        ours, theirs = (each.reshape(len(each), -1) for each in (ours, theirs))
        distances: np.ndarray = np.mean((ours[:, None] - theirs) ** 2, axis=2)
        return distances

    def to_dataset(self, parameters: Mapping[str, np.ndarray]) -> xr.Dataset:
        """Label parameters with the model's dims and coords, and kernels with their centers.

        Along ``basis`` there is a coordinate for each axis of the points, such as ``basis_time``,
        or ``basis_row`` and ``basis_column``, in the unit of the points. With factors
        ``basis_factor`` is 0 for the template's coefficients, 1 for those of its first factor.
        """
        labeled = super().to_dataset(parameters)
        centers, names = self.settings.basis.centers, self.settings.dim_names
        if "basis" not in labeled.dims:
            return labeled
        if len(names) != centers.shape[1]:
            names = tuple(str(axis) for axis in range(centers.shape[1]))
        basis = self.settings.basis
        if isinstance(basis, BasisWithFactors):
            places = np.arange(len(centers)) // basis.kernels.n_basis
            labeled = labeled.assign_coords(basis_factor=("basis", places))
        return labeled.assign_coords(
            {
                f"basis_{name}": ("basis", axis, self.settings.attributes_of(name))
                for name, axis in zip(names, centers.T, strict=True)
            }
        )

    def describe(self) -> dict[str, str]:
        """Return the arguments of the mixture as text; see `describe_mixture`."""
        return describe_mixture(self.settings, self.priors)

    def check_parameters(self, parameters: Mapping[str, Any] | xr.Dataset) -> dict[str, np.ndarray]:
        """Check parameters given from outside and return them as float64 arrays by name.

        Raises
        ------
        ValueError
            If a name is missing or unknown, a shape is wrong, a value is not finite, weights
            are negative or do not sum to one, or a variance is not positive.
        """
        checked = super().check_parameters(parameters)
        for name in ("noise_variance", "deformation_variance", "rigid_variance"):
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
        start : {"kmeans", "random", "exemplars"}, default "kmeans"
            ``"kmeans"``: the M-step for observations labeled by k-means, with Φ at the prior
            mean of the warp (the least-squares fit of the centroids, regularized by the
            priors; noise from the residuals, weights from the cluster sizes). For k-means,
            images of more than 16 pixels a side are smoothed by 3 % of the longer side. Classes
            without a cluster get a perturbed mean template. ``"random"``: α ~ Normal(0,
            K⁻¹) as in the paper (its absolute value, scaled to the observations' mean, if
            coefficients are not negative), equal weights, noise as large as the observations'
            variance. ``"exemplars"``: templates are chosen among those of k-means and 4 C + 6
            single observations, so that their warps explain all others best by Laplace's evidence.
            Where they do so far better under a fourth, a sixteenth, … of k-means' noise, the run
            begins with that. It takes a mode search for each template and observation, of at most
            200 observations, and some more to look at the noise: seconds for fifty curves or small
            images, half a minute where the noise is divided, minutes for 200 curves with loose
            clocks. Where labels are known it is
            ``"kmeans"``.
            In all cases the deformation's variance starts at the mode of its prior (0.01 if it
            has none) times the base covariance, and rigid variances at theirs.

        Returns
        -------
        dict of str to ndarray

        Raises
        ------
        ValueError
            If there is no observation or `start` is unknown.

        Warns
        -----
        UserWarning
            If the observations are smaller than the priors expect, or too large for a random start.

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
        if start not in self.start_names:
            raise ValueError(f"start is {start!r}; give one of {self.start_names}.")
        if len(observations) == 0:
            raise ValueError("observations is empty; give at least one to start from.")
        encoded = [self.encode(each) for each in observations]
        values, mask = stack_encoded(encoded)
        is_curve = self.settings.points.shape[1] == 1
        warn_of_size(self.priors, values[mask > 0], start, is_curve=is_curve)
        if start == "random":
            return random_start(self.settings, self.priors, self.gram, values, mask, rng)
        own = None
        if self.settings.own_points is not None:
            own = np.stack([data["own_points"] for data in encoded])
        found = kmeans_start(self.settings, self.priors, self.gram, values, mask, rng, own, allowed)
        if start == "kmeans" or allowed is not None:
            return found
        chosen = exemplar_start(self, encoded, found, rng)
        if isinstance(self.settings.basis, BasisWithFactors):
            # single observations tell no factors
            begin = self.settings.basis.kernels.n_basis
            chosen["templates"][..., begin:] = found["templates"][..., begin:]
        return chosen

    def mean_design(self) -> np.ndarray:
        """Return λΦ at the prior means of warp and scale, shape (n_points, n_basis)."""
        return self._mean_design.copy()

    @cached_property
    def _least_precision(self) -> float:
        """Smallest eigenvalue of the precision of the templates' prior."""
        whole = template_precision(self.settings, self.priors, self.gram)
        return float(np.linalg.eigvalsh(whole)[0])

    @cached_property
    def _mean_design(self) -> np.ndarray:
        return mean_design(self.settings)

    def with_classes(self, n_classes: int, **options: Any) -> Self:
        """Return the same mixture with another number of classes.

        Parameters
        ----------
        n_classes : int
        **options
            Other options of `TemplateMixture` to change, such as ``noise="class"``. All others,
            including priors, stay as they are: with another `covariance` give priors for it. With
            other priors searches still start from the same clocks.

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> small = TemplateMixture.for_images((4, 4), n_classes=1, n_landmarks=2)
        >>> small.with_classes(3, noise="class").parameters["noise_variance"].shape
        (3,)
        """
        unknown = set(options) - set(self._options)
        if unknown:
            raise ValueError(
                f"options: got {sorted(unknown)}; choose from {sorted(self._options)}."
            )
        settings = self.settings
        arguments = settings.points, settings.basis, settings.deformation, n_classes
        return type(self)(*arguments, **{**self._options, **options})

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to rebuild the mixture when it is unpickled.

        Compiled functions, and traces that compiling leaves in a graph, are not stored. A copy
        computes bitwise the same as the original, whether or not that was used.
        """
        settings = self.settings
        arguments = (settings.points, settings.basis, settings.deformation, self.n_classes)
        more = {name: value for name, value in vars(self).items() if name not in self._made}
        more |= {"geometry": self._own_hints(), "_declared": self.declared_parameters()}
        # the new mixture makes these from its own model
        for name in (
            "_made",
            "_compiled",
            "_mean_design",
            "_least_precision",
            "_registrars",
            "latents",
        ):
            more.pop(name, None)
        return partial(type(self), **self._options), arguments, (self.model_parameters(), more)

    def __setstate__(self, state: Any) -> None:
        """Set the values of θ in the model, and attributes that were added to the mixture."""
        parameters, more = state
        built = self.geometry
        vars(self).update(more)
        self.geometry = replace(built, **more["geometry"])
        self.set_model_parameters(parameters)

    def _own_hints(self) -> dict[str, Any]:
        """Return the fields of the geometry that a user can change and that are not graphs."""
        return {
            "starts": self.geometry.starts,
            "noise_variance": self.geometry.noise_variance,
        }

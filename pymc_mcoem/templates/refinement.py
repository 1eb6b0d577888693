"""Refined templates and their standard errors, by the method of scoring."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy.linalg import LinAlgError, cho_solve, solve_triangular

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.linear_algebra import symmetric_inverse
from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.interrupts import deferred, import_whole, require_own_fault
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.templates.images import template_images
from pymc_mcoem.templates.noise import masked_correlation
from pymc_mcoem.templates.register import encoded, seed_of
from pymc_mcoem.templates.starts import template_precision
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["RefinedTemplates", "refine_templates"]

type Arrays = Mapping[str, np.ndarray]

_log = logging.getLogger("pymc_mcoem")

#: Where the prior has more than this share of the variance, observations tell no template.
PRIOR_SHARE = 0.5


@dataclass(frozen=True)
class RefinedTemplates:
    """Templates that were refined, with standard errors.

    Attributes
    ----------
    parameters : Dataset
        Parameters θ, as `OnlineEM.parameters` has them.
    templates : Dataset
        ``template`` on the observation's axes, as from `template_images`, and its standard error
        ``template_sd``, both ``(class, *grid)``, with channels last; and ``last_step`` (class), how
        far the last step moved the template: the root mean square, in standard errors. The standard
        error is NaN where the observations say less than the prior, such as where none has a value,
        and in a class with less than one observation, which keeps its template.
    """

    parameters: xr.Dataset
    templates: xr.Dataset


def refine_templates(
    parameters: Mapping[str, Any] | xr.Dataset,
    mixture: TemplateMixture,
    observations: Any,
    *,
    rounds: int = 2,
    draws: int = 50,
    tune: int = 20,
    e_step: CarlinChibBurst | None = None,
    random_seed: int | Sequence[int] = 0,
    progressbar: bool = True,
) -> RefinedTemplates:
    r"""Move learned templates nearer to the maximum of the likelihood, and tell their errors.

    Online EM corrects a warp that all observations of a class have in common very slowly. Two steps
    of another method, over observations that were learned, correct it, and give standard errors of
    the templates that count it.

    Parameters
    ----------
    parameters : Dataset or mapping of str to array_like
        Parameters θ that were learned, as ``em.parameters``, best the average of a run with
        ``average_from``.
    mixture : TemplateMixture
    observations : array_like, DataArray, DataFrame, or iterable
        Those that were learned, or a sample of them, as `OnlineEM.partial_fit` takes them, but
        without labels. Standard errors are those of so many observations, and the other parameters
        are learned from these alone. All are held in memory.
    rounds : int
        Passes over the observations; each makes one step.
    draws, tune : int
        Sweeps of the burst for each observation that are kept, and sweeps before them.
    e_step : CarlinChibBurst, optional
        Settings of the bursts. Default: as in `OnlineEM`.
    random_seed : int or sequence of int
        Not None by default, so that the same observations give the same templates twice.
    progressbar : bool

    Returns
    -------
    RefinedTemplates

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range, as `TemplateMixture.register` says, or `observations`
        are none or a single one that is not in a list.
    FloatingPointError, RuntimeError
        If the burst of an observation fails; the error names it.

    Notes
    -----
    If all curves of a class are early, its template could be late as well: only the prior of β, of
    mean m, holds either. An EM step corrects this by the small share of the information that is not
    missing (Dempster, Laird and Rubin, 1977). Here a step is α_j + A_j⁻¹ s_j, Fisher's method of
    scoring. The score s_j is the posterior mean of the derivative of log p(y, I, λ, β) by α_j,
    summed over observations. The information A_j is that of models which are linear in α_j, β and
    log λ around the mean of the burst's draws in class j (Lindstrom and Bates, 1990): with the
    design X = λΦ(D(u, β)), the derivatives J of λ f_j(D(u, β)) by (β, log λ), and the precision Q
    of their prior, bλ for log λ,

    .. math:: X^T X/σ^2 - B^T (J J^T/σ^2 + Q)^{-1} B, \qquad B = J X/σ^2,

    times the share of the draws in the class. To A_j the prior's precision is added, as if the
    present template were its mean: where observations say little, templates stay.

    The mean of the derivatives of the log-density by the latents is zero. From the mean over the
    draws, B and the matrix above tell how far the score is off because of where the draws happen
    to be, which is subtracted: a control variate (Mira, Solgi and Imparato, 2013) that leaves a
    tenth of the Monte Carlo error.

    The other parameters make an M-step. Standard errors are the larger of two: those of the
    covariance A_j⁻¹, and those of A_j⁻¹ V_j A_j⁻¹, where V_j is the sum of s_ij s_ijᵀ over
    observations plus the prior's precision. The second do not trust the model of the noise, but
    are often too small in small samples. Both are of θ before the last step. Under α ≥ 0 a step
    ends at the nearest such α by the metric A_j, and standard errors are as without that bound.

    **Limits.** Standard errors are those of large samples. They lack that classes may be confused,
    that γ_j² and σ² are estimates, and that the prior of γ_j² may be wrong: if warps stray by more
    than it expects, as those of `simulate_curves` do under the default, bands are too narrow. A log
    line tells when the last step was larger than the standard errors. Far from the maximum, as at
    random templates, steps may lead away: start from what was learned.

    **Cost.** A burst for each observation and round, and a product of matrices, kernels by points,
    for each class it may be of. Memory has two matrices a class with a row and a column for each
    coefficient of all channels.

    References
    ----------
    Lindstrom, M. J. and Bates, D. M. (1990). Nonlinear mixed effects models for repeated measures
    data. Biometrics 46, 673-687.

    Mira, A., Solgi, R. and Imparato, D. (2013). Zero variance Markov chain Monte Carlo for Bayesian
    estimators. Statistics and Computing 23, 653-662.

    Examples
    --------
    >>> import pymc_mcoem as mcoem
    >>> drawn = mcoem.datasets.simulate_curves(20, 2, random_seed=1)
    >>> mixture = mcoem.TemplateMixture.for_curves(drawn.point.values, 2, coefficients="real")
    >>> em = mcoem.OnlineEM(mixture, n_start=20, progressbar=False, random_seed=1)
    >>> em = em.partial_fit(drawn.curves.values)
    >>> found = mcoem.refine_templates(
    ...     em.parameters, mixture, drawn.curves.values, rounds=1, draws=10, progressbar=False
    ... )
    >>> found.templates.template_sd.dims, bool((found.templates.template_sd > 0).all())
    (('class', 'time'), True)
    """
    theta = mixture.check_parameters(parameters)
    for name, count, least in (("rounds", rounds, 1), ("draws", draws, 2), ("tune", tune, 0)):
        require_whole(name, count, least)
    entropy = seed_entropy(random_seed)
    if mixture.is_single(observations):
        raise ValueError("observations: got a single one; give those that were learned.")
    held = [data for _, data in encoded(mixture, observations)]
    if not held:
        raise ValueError("observations: got none; pass those that were learned.")
    with telling(progressbar):
        step = ScoringStep(mixture, CarlinChibBurst() if e_step is None else e_step)
    seeds = [seed_of(entropy, data).spawn(rounds) for data in held]
    with (
        deferred("observations") as interrupts,
        CountProgress(progressbar, rounds * len(held), "Refined") as progress,
        telling(progressbar),
        one_blas_thread(),
    ):
        for number in range(rounds):
            sums = Sums(mixture)
            for index, data in enumerate(held):
                rng = np.random.default_rng(seeds[index][number])
                try:
                    step.add(sums, data, theta, rng, draws, tune)
                except Exception as error:
                    require_own_fault(error)
                    kind = (
                        FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
                    )
                    raise kind(
                        f"observation {index}, counted from 0: {error} Leave it out."
                    ) from error
                progress.advance()
                interrupts.between()
            found = step.moved(sums, theta)
            theta = found.theta
    if (far := np.flatnonzero(found.lengths > 1.0)).size:
        _log.warning(
            "refine_templates: the last step moved the templates of classes %s by more than their "
            "standard errors; give more rounds= than %d.",
            far.tolist(),
            rounds,
        )
    labeled = mixture.to_dataset(theta)
    templates = template_images(labeled, mixture)
    return RefinedTemplates(
        labeled,
        xr.Dataset(
            {
                "template": templates,
                "template_sd": templates.copy(data=found.errors),
                "last_step": ("class", found.lengths),
            },
            attrs={"rounds": rounds, "draws": draws, "tune": tune, "observations": len(held)},
        ),
    )


class Sums:
    """What one round adds over its observations.

    Attributes
    ----------
    n : int
    statistics : dict of str to ndarray
    scores : ndarray of shape (n_classes, n_coefficients)
        Coefficients are those of all channels.
    outer, information : ndarray of shape (n_classes, n_coefficients, n_coefficients)
    """

    def __init__(self, mixture: TemplateMixture) -> None:
        settings = mixture.settings
        size = settings.n_channels * settings.basis.n_basis
        self.n = 0
        self.statistics: dict[str, np.ndarray] = {}
        self.scores = np.zeros((settings.n_classes, size))
        self.outer = np.zeros((settings.n_classes, size, size))
        self.information = np.zeros((settings.n_classes, size, size))


@dataclass(frozen=True)
class Linearized:
    """Information of an observation on coefficients and latents, of a model that is linear in both.

    Attributes
    ----------
    whole : ndarray of shape (n_coefficients, n_coefficients)
        That on coefficients if latents were known.
    mixed : ndarray of shape (n_latents, n_coefficients)
    lower : ndarray of shape (n_latents, n_latents)
        Cholesky factor of that on latents, with their prior.
    """

    whole: np.ndarray
    mixed: np.ndarray
    lower: np.ndarray

    @property
    def information(self) -> np.ndarray:
        """Information on coefficients, (n_coefficients, n_coefficients)."""
        explained = solve_triangular(self.lower, self.mixed, lower=True)
        return np.asarray(self.whole - explained.T @ explained)

    def response(self, slope: np.ndarray) -> np.ndarray:
        """Return how the score changes with latents that make a mean slope of the log-density."""
        return np.asarray(self.mixed.T @ cho_solve((self.lower, True), slope))


@dataclass(frozen=True)
class Moved:
    """What a step makes.

    Attributes
    ----------
    theta : dict of str to ndarray
    errors : ndarray of shape (n_classes, *grid)
        Standard errors of templates.
    lengths : ndarray of shape (n_classes,)
        How far templates moved, in standard errors.
    """

    theta: dict[str, np.ndarray]
    errors: np.ndarray
    lengths: np.ndarray


class ScoringStep:
    """A step of the method of scoring for the templates of one mixture."""

    def __init__(self, mixture: TemplateMixture, e_step: CarlinChibBurst) -> None:
        self.mixture, self._settings = mixture, mixture.settings
        self._burst = compiled_for(mixture, e_step)
        density = self._burst.density
        self._search, _ = Laplace().compile_search(density, mixture.geometry, self._burst.mode)

    def add(
        self,
        sums: Sums,
        data: Arrays,
        theta: Arrays,
        rng: np.random.Generator,
        draws: int,
        tune: int,
    ) -> None:
        """Add an encoded observation's statistics, scores and information at θ."""
        result, sweeps = self._burst.with_draws(
            data, theta, rng, self._burst.initial_state(), draws=draws, tune=tune
        )
        found = result.statistics
        classes, positions = sweeps.class_index[tune:], sweeps.position[tune:]
        terms = []
        for j in np.unique(classes).tolist():
            own = positions[classes == j]
            share = len(own) / draws
            score = self._score(found, theta, j)
            linear = self._linearized(data, theta, j, own.mean(axis=0))
            # has the mean zero, and makes up for where the draws happen to be
            score -= share * linear.response(self._slope(data, theta, j, own))
            information = share * linear.information
            if not (np.isfinite(score).all() and np.isfinite(information).all()):
                raise FloatingPointError(f"the information on class {j} is not finite.")
            terms.append((j, score, information))
        for name, value in found.items():
            sums.statistics[name] = sums.statistics.get(name, 0.0) + value
        for j, score, information in terms:
            sums.scores[j] += score
            sums.outer[j] += np.outer(score, score)
            sums.information[j] += information
        sums.n += 1

    def moved(self, sums: Sums, theta: Arrays) -> Moved:
        """Make the step from θ."""
        settings, mixture = self._settings, self.mixture
        means = {name: value / sums.n for name, value in sums.statistics.items()}
        ready = mixture.ready(means, effective_size=float(sums.n))
        found = mixture.maximize_ready(
            means, effective_size=float(sums.n), ready=ready, present=theta
        )
        templates = np.array(theta["templates"])
        design = np.kron(np.eye(settings.n_channels), mixture.mean_design())
        errors = np.full((settings.n_classes, len(design)), np.nan)
        moved = np.full(settings.n_classes, np.nan)
        for j in np.flatnonzero(ready).tolist():
            prior = np.kron(
                np.eye(settings.n_channels) / self._noise(theta, j), self._prior_precision
            )
            before = templates[j].ravel()
            try:
                after, inverse = stepped(
                    before,
                    sums.scores[j],
                    sums.information[j] + prior,
                    nonnegative=settings.coefficients == "nonnegative",
                )
            except LinAlgError:
                raise ValueError(
                    f"observations: they do not determine the template of class {j}; give more "
                    "of them, or raise template_strength of the priors."
                ) from None
            rows = design @ inverse
            by_model = (rows * design).sum(axis=1)
            by_prior = ((rows @ prior) * rows).sum(axis=1)
            by_scores = ((rows @ sums.outer[j]) * rows).sum(axis=1) + by_prior
            own = np.sqrt(np.maximum(by_model, by_scores))
            # a prior that only smooths has no error to tell
            errors[j] = np.where(by_prior > PRIOR_SHARE * by_model, np.nan, own)
            lengths = (design @ (after - before)) / own
            moved[j] = np.sqrt(np.mean(np.square(lengths)))
            templates[j] = after.reshape(templates[j].shape)
        channels_last = errors.reshape(settings.n_classes, settings.n_channels, -1).swapaxes(1, 2)
        return Moved(
            {**found, "templates": templates},
            channels_last.reshape(settings.n_classes, *settings.value_shape),
            moved,
        )

    def _score(self, statistics: Arrays, theta: Arrays, j: int) -> np.ndarray:
        """Return the derivative of an observation's log-likelihood by the coefficients."""
        templates = np.atleast_2d(theta["templates"][j])
        projections = np.atleast_2d(statistics["template_projection"][j])
        packed = statistics["template_gram"][j]
        packed = packed.reshape(len(templates), *packed.shape[-2:])
        found = [
            (projection - self._settings.basis.unpack_gram(sums) @ template) / variance
            for projection, sums, template, variance in zip(
                projections, packed, templates, self._noise(theta, j), strict=True
            )
        ]
        return np.concatenate(found)

    def _slope(self, data: Arrays, theta: Arrays, j: int, positions: np.ndarray) -> np.ndarray:
        """Return the mean derivative of the log-density by the latents, (n_latents,)."""
        density = self._burst.density
        evaluate = self._search.evaluations.at(density.arguments({**data, **theta}))
        classes = np.full(len(positions), j)
        _, slopes, *_ = evaluate(classes, positions, positions, np.ones(3))
        return np.asarray(slopes.mean(axis=0))

    def _linearized(self, data: Arrays, theta: Arrays, j: int, position: np.ndarray) -> Linearized:
        """Return the model of an observation of class j, linear around a position."""
        settings = self._settings
        n_parameters = settings.deformation.n_parameters
        beta, scale = position[:n_parameters], 1.0
        if settings.scale is not None:
            scale = float(np.exp(position[n_parameters]))
        points = settings.points
        if settings.own_points is not None:
            points = np.reshape(data["own_points"], (-1, 1))
        shape = (len(points), settings.n_channels)
        mask = np.reshape(data["observed_mask"], shape)
        size, n_channels = settings.basis.n_basis, settings.n_channels
        whole = np.zeros((n_channels * size, n_channels * size))
        precision = self._latent_precision(theta, j, scale)
        mixed = np.zeros((len(precision), n_channels * size))
        templates = np.atleast_2d(theta["templates"][j])
        for c, (template, variance) in enumerate(
            zip(templates, self._noise(theta, j), strict=True)
        ):
            warped, rows = self._places(beta, template, points)
            matrix, rows = scale * settings.basis.matrix(warped), scale * rows
            if settings.scale is not None:
                rows = np.concatenate([rows, (matrix @ template)[None]])
            # columns of kernels, then of latents
            columns = self._whitened(np.concatenate([matrix, rows.T], axis=1), mask[:, c])
            products = columns.T @ columns / variance
            own = slice(c * size, (c + 1) * size)
            whole[own, own] = products[:size, :size]
            mixed[:, own] = products[size:, :size]
            precision += products[size:, size:]
        return Linearized(whole, mixed, np.linalg.cholesky(precision))

    def _whitened(self, columns: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return columns (n_points, n) without missing points and correlation of noise."""
        masked: np.ndarray = columns * mask[:, None]
        covariance = self._settings.noise_covariance
        if covariance is None:
            return masked
        factor = np.linalg.cholesky(masked_correlation(covariance, mask))
        return np.asarray(solve_triangular(factor, masked, lower=True))

    def _latent_precision(self, theta: Arrays, j: int, scale: float) -> np.ndarray:
        """Return the prior precision of (deformation, log scale) in class j."""
        settings = self._settings
        covariance, learned = settings.whole_covariance, settings.learned
        block = np.ix_(learned, learned)
        if settings.covariance == "full":
            covariance[block] = theta["deformation_covariance"][j]
        elif settings.covariance == "diagonal":
            covariance[block] = np.diag(theta["deformation_variance"][j])
        else:
            covariance[block] *= theta["deformation_variance"][j]
        size = len(covariance)
        precision = np.zeros((size + (settings.scale is not None),) * 2)
        precision[:size, :size] = symmetric_inverse(covariance)
        if settings.scale is not None:
            precision[size, size] = settings.scale[1] * scale
        return precision

    def _noise(self, theta: Arrays, j: int) -> np.ndarray:
        """Return the noise variances of class j, (n_channels,)."""
        noise = np.asarray(theta["noise_variance"])
        return np.atleast_1d(noise[j] if self._settings.noise == "class" else noise)

    @cached_property
    def _prior_precision(self) -> np.ndarray:
        mixture = self.mixture
        found: np.ndarray = template_precision(mixture.settings, mixture.priors, mixture.gram)
        return found

    @cached_property
    def _places(self) -> Any:
        """Function from β, a template and points of an observation's own to D and derivatives.

        D is (n_points, n_dims), and derivatives of the template by β are (n_parameters, n_points).
        """
        settings = self._settings
        beta, template, points = pt.vector("beta"), pt.vector("template"), pt.matrix("points")
        at: Any = settings.points if settings.own_points is None else points
        warped = settings.deformation.coordinates(at, beta)
        gradient = settings.basis.gradient(warped, template)
        rows = settings.deformation.jacobian(at, beta, gradient)
        return pytensor.function(
            [beta, template, points],
            [pt.stack(warped, axis=1), rows],
            mode=interpreted_mode(),
            on_unused_input="ignore",
        )


def stepped(
    template: np.ndarray, score: np.ndarray, information: np.ndarray, *, nonnegative: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return coefficients after a step, and the inverse of the information.

    Parameters
    ----------
    template, score : ndarray of shape (n,)
    information : ndarray of shape (n, n)
    nonnegative : bool
        Whether coefficients are kept from below zero.

    Examples
    --------
    >>> found, inverse = stepped(np.ones(2), np.array([2.0, -8.0]), 4 * np.eye(2), nonnegative=True)
    >>> found, inverse.diagonal()
    (array([1.5, 0. ]), array([0.25, 0.25]))
    """
    lower = np.linalg.cholesky(information)
    found = template + cho_solve((lower, True), score)
    if nonnegative and (found < 0).any():
        import_whole("scipy.optimize")
        from scipy.optimize import nnls

        found, _ = nnls(lower.T, lower.T @ found)
    return found, cho_solve((lower, True), np.eye(len(found)))

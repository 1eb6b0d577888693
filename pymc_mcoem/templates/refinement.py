"""Refined templates and their standard errors, by the method of scoring."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.interrupts import deferred
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.templates.images import template_images
from pymc_mcoem.templates.register import encoded, own_failure, seed_of
from pymc_mcoem.templates.scoring import ScoringStep, Sums
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["RefinedTemplates", "refine_templates"]

_log = logging.getLogger("pymc_mcoem")


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
    that γ_j², τ² and σ² are estimates, and that the prior of γ_j² may be wrong: if warps stray by
    more than it expects, as those of `simulate_curves` do under the default, bands are too narrow.
    A log line tells when the last step was larger than the standard errors. Far from the maximum,
    as at random templates, steps may lead away: start from what was learned.

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
    if mixture.settings.deformation.n_scores:
        raise ValueError("mixture: it has factors, which are not refined; make it without them.")
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
                    raise own_failure(error, index, "cannot be used") from error
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

"""Start from observations that explain the others, by the evidence of the model itself.

k-means compares observations as they are: curves of one kind whose peaks come at different times
are far apart. Here each of some observations, the exemplars, is made a template, and Laplace's
evidence says how well its warps explain every other observation, and whether the noise is far less
than k-means leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.merge_and_split import best_columns
from pymc_mcoem.templates.starts import own_templates, stack_encoded

__all__ = ["exemplar_evidence", "exemplar_start", "n_exemplars"]

#: Exemplars for each class, and beyond that.
_FOR_EACH, _MORE = 4, 6

#: Most observations that are compared with every template, drawn from all of them.
_MOST_COMPARED = 200

#: Observations by which the noise is judged: so many, or so many for each class if that is more.
_FEW, _FEW_FOR_EACH = 30, 3

#: The noise is divided by this as long as values gain, on average, half of the ½ ln 4 nats that
#: they would without residuals.
_DIVISOR = 4.0
_LEAST_GAIN = 0.5 * np.log(_DIVISOR) / 2

#: Share of the observations, those explained worst, that have no say in it.
_ODD = 0.1


def n_exemplars(n_classes: int, n_observations: int) -> int:
    """Return how many of the observations are made templates."""
    return min(n_observations, _FOR_EACH * n_classes + _MORE)


def exemplar_start(
    mixture: Any,
    encoded: Sequence[Mapping[str, np.ndarray]],
    clustered: Mapping[str, np.ndarray],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Return parameters whose templates are those that explain the observations best.

    They are chosen among exemplars and the templates of a start by k-means. The noise is that
    start's, or a fourth, a sixteenth, … of it where that explains the observations far better.

    Parameters
    ----------
    mixture : TemplateMixture
        The mixture to start, of C classes.
    encoded : list of mapping
        The first observations.
    clustered : mapping of str to ndarray
        Parameters found by k-means: some of the templates to choose from, the noise to divide, and
        what else is not chosen. If noise differs between classes, one that starts from an exemplar
        gets the mean. Where the noise is divided, no class has more than the divided mean.
    rng : numpy.random.Generator

    Returns
    -------
    dict of str to ndarray
        Parameters of the same shapes.
    """
    n_classes = len(clustered["weights"])
    if n_classes == 1:
        return dict(clustered)
    if len(encoded) > _MOST_COMPARED:
        places = np.sort(rng.choice(len(encoded), _MOST_COMPARED, replace=False))
        encoded = [encoded[place] for place in places]
    chosen = rng.choice(len(encoded), n_exemplars(n_classes, len(encoded)), replace=False)
    many = _with_classes(mixture, len(chosen))
    rows = stack_encoded([encoded[i] for i in chosen])
    points = None
    if many.settings.own_points is not None:
        points = np.stack([encoded[i]["own_points"] for i in chosen])
    own = own_templates(many.settings, many.priors, many.gram, *rows, points)
    templates = np.concatenate([clustered["templates"], own])
    # of itself an exemplar knows the noise too
    is_other = np.ones((len(encoded), len(templates)), dtype=bool)
    is_other[chosen, n_classes + np.arange(len(chosen))] = False
    # a class for each template that can be chosen
    choice = _with_classes(mixture, len(templates))
    judged = _judge_noise(choice, encoded, clustered, templates, is_other, rng)
    if judged.share < 1.0:
        clustered = {**clustered, "noise_variance": _divided(mixture, clustered, judged.share)}
    evidence = np.empty(is_other.shape)
    evidence[judged.rows] = judged.evidence
    if judged.others.size:
        others = [encoded[place] for place in judged.others]
        evidence[judged.others] = exemplar_evidence(choice, others, clustered, templates, rng)
    best = best_columns(np.where(is_other, evidence, -np.inf), n_classes)
    sizes = np.bincount(evidence[:, best].argmax(axis=1), minlength=n_classes)
    found = {
        **clustered,
        "templates": templates[best],
        "weights": (1.0 + sizes) / (n_classes + sizes.sum()),
    }
    if mixture.settings.noise == "class":
        noise = clustered["noise_variance"]
        mean = np.repeat(noise.mean(axis=0, keepdims=True), len(chosen), axis=0)
        found["noise_variance"] = np.concatenate([noise, mean])[best]
    return found


@dataclass(frozen=True)
class _Judged:
    """The share of the noise to begin with, and by which observations it was judged.

    Attributes
    ----------
    share : float
    rows, others : ndarray of int
        The observations by which it was judged, and all others.
    evidence : ndarray of shape (n_rows, n_templates)
        Evidence of the former under that share.
    """

    share: float
    rows: np.ndarray
    others: np.ndarray
    evidence: np.ndarray


def _judge_noise(
    choice: Any,
    encoded: Sequence[Mapping[str, np.ndarray]],
    clustered: Mapping[str, np.ndarray],
    templates: np.ndarray,
    is_other: np.ndarray,
    rng: np.random.Generator,
) -> _Judged:
    """Return the share of k-means' noise to begin with, 1, 1/4, 1/16, …, and how it was judged.

    k-means' noise includes what warps explain. Where that is most of it, something short that tells
    two kinds apart does not count. The share is the same for all classes and channels, and not so
    small that all noise is below the mode of its prior. `choice` has a class for each template.
    """
    n_classes = len(clustered["weights"])
    # the same for every seed, so that what is drawn next does not depend on this
    order = np.random.default_rng(0).permutation(len(encoded))
    n_rows = max(_FEW, _FEW_FOR_EACH * n_classes)
    rows, others = order[:n_rows], order[n_rows:]
    judged = [encoded[place] for place in rows]
    n_values = np.array([np.sum(data["observed_mask"]) for data in judged])

    def explained(found: np.ndarray) -> float:
        """Return the mean evidence of a value under the best templates."""
        allowed = np.where(is_other[rows], found, -np.inf)
        each = allowed[:, best_columns(allowed, n_classes)].max(axis=1)
        counted = np.argsort(each / n_values)[int(_ODD * len(each)) :]
        return float(each[counted].sum() / n_values[counted].sum())

    share, evidence = 1.0, exemplar_evidence(choice, judged, clustered, templates, rng)
    most = explained(evidence)
    while np.isfinite(most):
        less = _divided(choice, clustered, share / _DIVISOR)
        if np.max(less / choice.priors.noise_variance) < 1.0:
            break
        tried = {**clustered, "noise_variance": less}
        found = exemplar_evidence(choice, judged, tried, templates, rng)
        now = explained(found)
        if not now > most + _LEAST_GAIN:
            break
        share, most, evidence = share / _DIVISOR, now, found
    return _Judged(share, rows, others, evidence)


def _divided(mixture: Any, clustered: Mapping[str, np.ndarray], share: float) -> np.ndarray:
    """Return a share of the noise, of the mean noise if it differs between classes.

    A class whose noise is less than that keeps it.
    """
    noise = clustered["noise_variance"]
    most = noise.mean(axis=0, keepdims=True) if mixture.settings.noise == "class" else noise
    less: np.ndarray = np.minimum(noise, share * most)
    return less


def _with_classes(mixture: Any, n: int) -> Any:
    """Return the mixture with n classes, which share what its priors say of each class."""
    priors, settings = mixture.priors, mixture.settings
    shape = *settings.channel_shape, settings.basis.n_basis
    mean = priors.mean(settings.n_classes, *shape).mean(axis=0)
    concentration = float(np.mean(priors.weight_concentration))
    shared = replace(priors, template_mean=mean, weight_concentration=concentration)
    return mixture.with_classes(n, priors=shared)


def exemplar_evidence(
    mixture: Any,
    encoded: Sequence[Mapping[str, np.ndarray]],
    parameters: Mapping[str, np.ndarray],
    templates: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return Laplace's log-evidence of each observation under each of n templates.

    Parameters
    ----------
    mixture : TemplateMixture
        A mixture of n classes.
    encoded : list of mapping
        The observations.
    parameters : mapping of str to ndarray
        Parameters of any number of classes, whose noise and deformations are taken, averaged over
        classes where these differ.
    templates : ndarray of shape (n, n_basis) or (n, n_channels, n_basis)
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (n_observations, n)
    """
    n = mixture.n_classes
    theta = mixture.declared_parameters() | {"templates": templates}
    for name, value in theta.items():
        if name in ("weights", "templates"):
            continue
        given = parameters[name]
        if np.shape(given) != np.shape(value):  # an axis of classes
            given = np.repeat(np.mean(given, axis=0, keepdims=True), n, axis=0)
        theta[name] = given
    e_step = compiled_for(mixture, LaplaceGaussian(search=Laplace(race=None)))
    found = np.stack(
        [e_step.approximation({**data, **theta}, rng).log_evidence for data in encoded]
    )
    return np.where(np.isnan(found), -np.inf, found)

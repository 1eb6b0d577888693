"""Start from observations that explain the others, by the evidence of the model itself.

k-means compares observations as they are: curves of one kind whose peaks come at different times
are far apart. Here each of some observations, the exemplars, is made a template, and Laplace's
evidence says how well its warps explain every other observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.merge_and_split import best_columns
from pymc_mcoem.templates.starts import own_templates, stack_encoded

__all__ = ["exemplar_evidence", "exemplar_start", "n_exemplars"]

#: Exemplars for each class, and beyond that.
_FOR_EACH, _MORE = 4, 6

#: Most observations that are compared with every template, drawn from all of them.
_MOST_COMPARED = 200


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

    They are chosen among exemplars and the templates of a start by k-means.

    Parameters
    ----------
    mixture : TemplateMixture
        The mixture to start, of C classes.
    encoded : list of mapping
        The first observations.
    clustered : mapping of str to ndarray
        Parameters found by k-means. They give all but templates, weights, and the noise of classes
        that start from an exemplar, if it differs between classes: that is the mean.
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
    evidence = exemplar_evidence(mixture, encoded, clustered, templates, rng)
    # of itself an exemplar knows the noise too
    others = evidence.copy()
    others[chosen, n_classes + np.arange(len(chosen))] = -np.inf
    best = best_columns(others, n_classes)
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
    encoded : list of mapping
        The observations.
    parameters : mapping of str to ndarray
        Its noise and deformations are taken, averaged over classes where these differ.
    templates : ndarray of shape (n, n_basis) or (n, n_channels, n_basis)
    rng : numpy.random.Generator

    Returns
    -------
    ndarray of shape (n_observations, n)
    """
    n = len(templates)
    many = _with_classes(mixture, n)
    theta = many.declared_parameters() | {"templates": templates}
    for name, value in theta.items():
        if name in ("weights", "templates"):
            continue
        given = parameters[name]
        if np.shape(given) != np.shape(value):  # an axis of classes
            given = np.repeat(np.mean(given, axis=0, keepdims=True), n, axis=0)
        theta[name] = given
    e_step = LaplaceGaussian(search=Laplace(race=None)).compile(many)
    found = np.stack(
        [e_step.approximation({**data, **theta}, rng).log_evidence for data in encoded]
    )
    return np.where(np.isnan(found), -np.inf, found)

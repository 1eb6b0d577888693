"""Initial parameters of a template mixture, from the first observations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.linalg import bandwidth, solve_triangular

from pymc_mcoem.templates.bases.bands import symmetric_bands
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.clusters import allowed_labels, kmeans_labels, smoothed
from pymc_mcoem.templates.first_factors import first_factors
from pymc_mcoem.templates.maximization import maximize_templates
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.settings import TemplateSettings

__all__ = [
    "first_parameters",
    "kmeans_start",
    "labeled_statistics",
    "mean_design",
    "n_free",
    "n_uncounted",
    "own_templates",
    "precision_bands",
    "random_start",
    "random_templates",
    "stack_encoded",
    "start_variance",
    "template_precision",
    "warn_of_size",
]

#: Initial variance of deformations if the priors give none.
_DEFAULT_DEFORMATION_VARIANCE = 0.01
#: Observations that vary more than this are not of the order of one, as random templates are.
_LARGE = 10.0


def start_variance(priors: TemplatePriors) -> float:
    """Return the initial γ² of deformations: its prior mode, or 0.01 if that is zero."""
    return priors.deformation_variance or _DEFAULT_DEFORMATION_VARIANCE


def first_parameters(settings: TemplateSettings, priors: TemplatePriors) -> dict[str, np.ndarray]:
    """Return the parameters of a model before anything is learned: the priors' modes."""
    n_classes, variance = settings.n_classes, start_variance(priors)
    noise_shape = settings.channel_shape
    if settings.noise == "class":
        noise_shape = (n_classes, *noise_shape)
    noise = np.asarray(priors.noise_variance, dtype=np.float64)
    parameters = {
        "weights": np.full(n_classes, 1.0 / n_classes),
        "templates": priors.mean(n_classes, *settings.channel_shape, settings.basis.n_basis),
        "noise_variance": np.full(noise_shape, np.where(noise > 0, noise, 1.0)),
    }
    if settings.covariance == "full":
        parameters["deformation_covariance"] = np.tile(
            variance * settings.base_covariance, (n_classes, 1, 1)
        )
    elif settings.covariance == "diagonal":
        parameters["deformation_variance"] = np.full((n_classes, settings.learned.size), variance)
    else:
        parameters["deformation_variance"] = np.full(n_classes, variance)
    if settings.rigid.size:
        parameters["rigid_variance"] = np.tile(settings.rigid_prior[0], (n_classes, 1))
    return parameters


def warn_of_size(
    priors: TemplatePriors, values: np.ndarray, start: str, *, is_curve: bool = True
) -> None:
    """Warn if the first observations are too small for the priors, or large for a random start.

    Parameters
    ----------
    values : ndarray of shape (n_values,)
        All values of the first observations.
    start : {"kmeans", "random"}
    is_curve : bool
        Whether observations are on a line, so that a mixture can be made from them.

    Examples
    --------
    >>> warn_of_size(TemplatePriors(), np.array([0.0, 0.4, 255.0]), "kmeans")
    """
    spread = float(np.std(values))
    # values that differ by rounding alone are constant
    rounding = 1e-12 * float(np.abs(values).max(initial=0.0))
    expected = float(np.sqrt(np.min(priors.noise_variance)))
    from_curves = ""
    if is_curve:
        from_curves = "make the mixture from them, TemplateMixture.for_curves(curves, ...), or "
    if rounding < spread < expected:
        warnings.warn(
            f"observations have a standard deviation of {spread:.3g}, less than the "
            f"{expected:.3g} that the priors expect of the noise alone; "
            f"{from_curves}take mixture.with_classes(mixture.n_classes, "
            f"priors=mixture.priors.in_unit({spread:.1g})).",
            stacklevel=2,
        )
    if start == "random" and spread > _LARGE:
        warnings.warn(
            f"observations have a standard deviation of {spread:.3g}, and start='random' draws "
            "templates of the order of one; divide the observations by their largest value, such "
            "as 255, or give start='kmeans'.",
            stacklevel=2,
        )


def n_free(settings: TemplateSettings) -> int:
    """Return the number of directions of a template on which the prior says nothing.

    That is the level, where observations have offsets: these leave little in the data on it, which
    even a weak prior would outweigh. The mean of offsets would not be zero within a class.
    """
    return 0 if settings.offset is None else 1


def n_uncounted(settings: TemplateSettings) -> int:
    """Return the number of a template's coefficients that the noise's M-step does not count.

    Those on which the prior says nothing, and those of factors. With these, which are many beside a
    class's images, the noise would come out too small: 0.177 for 0.199 of 100 postal digits, whose
    pixels have noise of 0.2.
    """
    basis = settings.basis
    own = basis.kernels.n_basis if isinstance(basis, BasisWithFactors) else basis.n_basis
    return n_free(settings) + basis.n_basis - own


def template_precision(
    settings: TemplateSettings, priors: TemplatePriors, gram: np.ndarray
) -> np.ndarray:
    """Return the prior precision of a template's coefficients, which leaves levels free."""
    precision = priors.precision(gram)
    if not n_free(settings):
        return precision
    design = mean_design(settings)
    level = np.linalg.lstsq(design, np.ones(len(design)), rcond=1e-6)[0]
    weighted = precision @ level
    squares = level @ weighted
    if squares > 0:
        precision = precision - np.outer(weighted, weighted) / squares
    found: np.ndarray = (precision + precision.T) / 2.0
    return found


def precision_bands(
    settings: TemplateSettings, priors: TemplatePriors, gram: np.ndarray
) -> np.ndarray:
    """Return the bands of `template_precision`, as many as the M-step's matrices need."""
    precision, grid = template_precision(settings, priors, gram), settings.basis.grid
    width = len(gram) - 1
    # noise that is correlated joins kernels that have no point in common
    if grid is not None and settings.noise_covariance is None:
        size = np.sqrt(np.diag(precision))
        is_there = np.abs(precision) > np.finfo(float).eps * np.outer(size, size)
        width = max(grid.reach, *bandwidth(is_there))
    return symmetric_bands(precision, width)


def mean_design(settings: TemplateSettings, points: np.ndarray | None = None) -> np.ndarray:
    """Return λΦ at the prior means of warp and scale, shape (n_points, n_basis).

    By default the points, of shape (n_points, n_dims), are those of the mixture.
    """
    points = settings.points if points is None else points
    warped = settings.deformation.warp(points, settings.deformation.mean)
    design = settings.basis.matrix(warped.eval(mode="FAST_COMPILE"))
    return design if settings.scale is None else design * (settings.scale[0] / settings.scale[1])


def _design(settings: TemplateSettings, own_points: np.ndarray | None) -> np.ndarray:
    """Return λΦ at the prior means, at the mixture's points or at those of each observation."""
    if own_points is None:
        return mean_design(settings)
    return mean_design(settings, own_points.reshape(-1, 1)).reshape(*own_points.shape, -1)


def random_start(
    settings: TemplateSettings,
    priors: TemplatePriors,
    gram: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Return parameters with random templates, for observations (n_observations, n_values)."""
    parameters = first_parameters(settings, priors)
    shape = parameters["templates"].shape
    templates = random_templates(gram, settings.n_classes * settings.n_channels, rng)
    channels = _by_channel(settings, values, mask)
    if settings.coefficients == "nonnegative":
        design = mean_design(settings)
        levels = [float(np.mean(np.abs(seen))) for seen in channels]
        for c, level in enumerate(levels):
            own = slice(c, None, settings.n_channels)
            templates[own] = _positive_templates(templates[own], design, level)
    parameters["templates"] = templates.reshape(shape)
    spreads = np.array([float(np.var(seen)) for seen in channels]).reshape(settings.channel_shape)
    noise = parameters["noise_variance"]
    parameters["noise_variance"] = np.full_like(noise, np.where(spreads > 0, spreads, noise))
    return parameters


def _by_channel(
    settings: TemplateSettings, values: np.ndarray, mask: np.ndarray
) -> list[np.ndarray]:
    """Return the values of each channel that are observed, of rows (n_observations, n_values)."""
    n = settings.n_channels
    found = [values[:, c::n][mask[:, c::n] > 0] for c in range(n)]
    return [seen if seen.size else np.zeros(1) for seen in found]


def kmeans_start(
    settings: TemplateSettings,
    priors: TemplatePriors,
    gram: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    rng: np.random.Generator,
    own_points: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Return the M-step's parameters for observations labeled by k-means.

    Observations are rows of values, channels in turn at each point. The clustering takes channels
    in units of their standard deviation, as they may differ in what they measure. Images of more
    than 16 pixels a side are smoothed for it, because single pixels hold mostly noise.

    Observations on points of their own, (n_observations, n_points), are interpolated linearly at
    the mixture's points for the clustering only. `allowed`, (n_observations, n_classes), says which
    classes may have made an observation; None: all.
    """
    drawn, design = (values, mask), _design(settings, own_points)
    if own_points is not None:
        drawn = _on_grid(settings.points[:, 0], values, mask, own_points)
    drawn = _without_offsets(settings, *drawn), drawn[1]
    drawn = _in_own_units(settings, *drawn), drawn[1]
    drawn = smoothed(*drawn, settings.grid_shape, settings.n_channels)
    if allowed is None:
        labels = kmeans_labels(*drawn, settings.n_classes, rng)
    else:
        labels = allowed_labels(*drawn, allowed, rng)
    parameters, empty = _labeled_parameters(settings, priors, gram, values, mask, labels, design)
    if empty.any():
        # classes without a cluster would all be the prior mean, and stay equal forever
        templates, mass = parameters["templates"], np.bincount(labels, minlength=len(empty))
        middle = (mass / mass.sum() @ templates.reshape(len(mass), -1)).reshape(templates.shape[1:])
        spreads = [0.1 * float(np.std(seen)) for seen in _by_channel(settings, values, mask)]
        away = random_templates(gram, int(empty.sum()) * settings.n_channels, rng)
        away = away.reshape(-1, *templates.shape[1:])
        found = middle + np.array(spreads).reshape((*settings.channel_shape, 1)) * away
        if settings.coefficients == "nonnegative":
            found = np.maximum(found, 0.0)
        parameters["templates"][empty] = found
        if settings.noise == "class":
            parameters["noise_variance"][empty] = parameters["noise_variance"][~empty].mean(axis=0)
    if isinstance(settings.basis, BasisWithFactors):
        parameters["templates"] += first_factors(
            settings.basis, parameters["templates"], values, mask, labels, design, rng
        )
    return parameters


def own_templates(
    settings: TemplateSettings,
    priors: TemplatePriors,
    gram: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    own_points: np.ndarray | None = None,
) -> np.ndarray:
    """Return templates (n, n_basis), or (n, n_channels, n_basis), each of one observation alone.

    Parameters
    ----------
    settings : TemplateSettings
        Those of a mixture of n classes.
    values, mask : ndarray of shape (n, n_values)
    own_points : ndarray of shape (n, n_points), optional
    """
    labels = np.arange(len(values))
    design = _design(settings, own_points)
    found, _ = _labeled_parameters(settings, priors, gram, values, mask, labels, design)
    return found["templates"]


def _labeled_parameters(
    settings: TemplateSettings,
    priors: TemplatePriors,
    gram: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray,
    labels: np.ndarray,
    design: np.ndarray,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the M-step's parameters for labeled observations, and which classes are empty."""
    values = _without_offsets(settings, values, mask, labels)
    statistics = _labeled_by_channel(settings, values, mask, labels, design)
    mass = statistics["class_weight"]
    base = settings.base_covariance
    statistics["deformation_outer"] = start_variance(priors) * mass[:, None, None] * base
    statistics["rigid_squares"] = mass[:, None] * settings.rigid_prior[0]
    parameters = maximize_templates(
        statistics,
        effective_size=float(len(values)),
        priors=priors,
        gram=gram,
        base_covariance=base,
        rigid_prior=settings.rigid_prior,
        covariance=settings.covariance,
        noise=settings.noise,
        coefficients=settings.coefficients,
        precision=precision_bands(settings, priors, gram),
        n_uncounted=n_uncounted(settings),
    )
    return parameters, mass == 0


def _without_offsets(
    settings: TemplateSettings,
    values: np.ndarray,
    mask: np.ndarray,
    labels: np.ndarray | None = None,
) -> np.ndarray:
    """Return rows of values with the mean of each channel moved to zero, or to that of its class.

    Only where observations have offsets. Values that are missing stay zero.
    """
    if settings.offset is None:
        return values
    found, n = values.copy(), settings.n_channels
    for c in range(n):
        seen = mask[:, c::n]
        counts = seen.sum(axis=1)
        means = (values[:, c::n] * seen).sum(axis=1) / np.maximum(counts, 1.0)
        moved = means
        if labels is not None:
            totals = np.bincount(labels, means * (counts > 0), settings.n_classes)
            known = np.bincount(labels, 1.0 * (counts > 0), settings.n_classes)
            moved = means - (totals / np.maximum(known, 1.0))[labels]
        found[:, c::n] = (values[:, c::n] - moved[:, None]) * seen
    return found


def _in_own_units(settings: TemplateSettings, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return rows of values in which each of several channels has a standard deviation of one."""
    if settings.n_channels == 1:
        return values
    units = np.array([float(np.std(seen)) or 1.0 for seen in _by_channel(settings, values, mask)])
    scaled: np.ndarray = values / np.tile(units, values.shape[1] // units.size)
    return scaled


def _labeled_by_channel(
    settings: TemplateSettings,
    values: np.ndarray,
    mask: np.ndarray,
    labels: np.ndarray,
    design: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return `labeled_statistics`, with an axis of channels after that of classes, if any."""
    n = settings.n_channels
    if not settings.channel_shape:
        return labeled_statistics(values, mask, labels, settings.n_classes, design)
    found = [
        labeled_statistics(values[:, c::n], mask[:, c::n], labels, settings.n_classes, design)
        for c in range(n)
    ]
    together = {name: np.stack([each[name] for each in found], axis=1) for name in found[0]}
    return {**together, "class_weight": found[0]["class_weight"]}


def labeled_statistics(
    values: np.ndarray,
    mask: np.ndarray,
    labels: np.ndarray,
    n_classes: int,
    design: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the statistics of labeled observations that the M-step needs, but for deformations'.

    They are those at the mean deformation: `design` is λΦ at the prior means, (n_points, n_basis),
    or (n_observations, n_points, n_basis) where each observation has points of its own.
    """
    member = (labels[:, None] == np.arange(n_classes)).astype(np.float64) / len(labels)
    points = member.T @ mask
    if design.ndim == 2:
        projection = member.T @ (values * mask) @ design
        gram = np.stack([(design * row[:, None]).T @ design for row in points])
    else:
        seen = design * mask[:, :, None]
        projection = member.T @ np.einsum("ns,nsl->nl", values, seen)
        gram = np.einsum("nj,nsl,nsk->jlk", member, seen, seen, optimize=True)
    return {
        "class_weight": member.sum(axis=0),
        "template_projection": projection,
        "template_gram": gram,
        "squared_norm": member.T @ np.square(values * mask).sum(axis=1),
        "observed_points": points.sum(axis=1),
    }


def random_templates(gram: np.ndarray, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Return templates drawn from Normal(0, K⁻¹), shape (n_classes, n_basis).

    Section ``subsec:5:2`` of the paper. A millionth of the identity is added to K, which is then
    invertible for wide kernels too.
    """
    factor = np.linalg.cholesky(gram + 1e-6 * np.eye(len(gram)))
    draws = rng.standard_normal((len(gram), n_classes))
    coefficients: np.ndarray = solve_triangular(factor, draws, trans="T", lower=True).T
    return coefficients


def _positive_templates(draws: np.ndarray, design: np.ndarray, level: float) -> np.ndarray:
    """Return absolute draws (n_classes, n_basis), each scaled so that its mean is `level`."""
    templates = np.abs(draws)
    means = (templates @ design.T).mean(axis=1)
    scaled: np.ndarray = templates * (level / means)[:, None]
    return scaled


def _on_grid(
    grid: np.ndarray, values: np.ndarray, mask: np.ndarray, own_points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return values and mask on the grid (n_grid,), interpolated linearly, missing outside.

    Rows of values and of the result have channels in turn at each point.
    """
    shape = (*own_points.shape, -1)
    given, seen = values.reshape(shape), mask.reshape(shape) > 0
    drawn = np.full((len(values), len(grid), given.shape[2]), np.nan)
    for i, c in np.argwhere(seen.any(axis=1)):
        known = seen[i, :, c]
        curve = own_points[i, known], given[i, known, c]
        drawn[i, :, c] = np.interp(grid, *curve, left=np.nan, right=np.nan)
    drawn = drawn.reshape(len(values), -1)
    known = ~np.isnan(drawn)
    return np.where(known, drawn, 0.0), known.astype(np.float64)


def stack_encoded(
    encoded: Sequence[Mapping[str, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray]:
    """Return values and mask of encoded observations, each (n_observations, n_points)."""
    values = np.stack([np.ravel(data["observed_values"]) for data in encoded])
    mask = np.stack([np.ravel(data["observed_mask"]) for data in encoded])
    return values, mask

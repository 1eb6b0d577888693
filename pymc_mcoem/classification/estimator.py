"""A mixture of templates as an estimator of scikit-learn: rows of curves or flattened images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from pymc_mcoem.classification.scores import check_sweeps, compile_class_weights
from pymc_mcoem.compiling.threads import one_blas_thread, one_call_at_a_time
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.passes import Passes
from pymc_mcoem.interrupts import deferred, require_own_fault
from pymc_mcoem.runs.failed_records import refusal
from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.curves import BANDWIDTH, FIRST, CurveSource, curve_priors
from pymc_mcoem.templates.images import template_images
from pymc_mcoem.templates.mixture import TemplateMixture
from pymc_mcoem.templates.register import seed_of
from pymc_mcoem.templates.warps.time_warp import TimeWarp
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import EStep

__all__ = ["TemplateClustering"]

#: Number of mixtures kept, with their compiled functions, for estimators of the same settings: a
#: search over settings fits many clones of one estimator.
N_CACHED = 16
#: Largest numbers of kernels of a template and of a clock in the default mixture of curves.
LANDMARKS, WARP_KERNELS = 35, 20


class TemplateClustering(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Cluster curves or images by templates, and align them, with the interface of scikit-learn.

    It is a thin layer over `TemplateMixture`, `OnlineEM` and `TemplateMixture.register`, for a
    ``Pipeline`` or a ``GridSearchCV``. Rows of X are curves, or images with their pixels in C
    order; NaN is a missing point.

    Parameters
    ----------
    n_classes : int, default 2
        Number of templates.
    shape : tuple of (int, int) or (int, int, int) or None
        Rows and columns of an image, and of color images channels. None: rows of X are curves at
        evenly spaced points.
    make_mixture : callable or None
        Returns the `TemplateMixture` for a number of classes, as
        ``lambda n_classes: TemplateMixture.for_curves(ages, n_classes)``. Then `shape` is not used.
        Default: `TemplateMixture.for_images` with the shape, or a mixture of curves without scales;
        its priors have the unit of X, and templates of curves are nowhere negative if X is not.
    n_passes : int, default 1
        Passes over X that `fit` learns from, each in its own random order.
    em_options : mapping or None
        Further options of `OnlineEM`, such as ``{"n_start": 100}``.
    e_step : EStep or None
        E-step for learning, and for class probabilities and evidence. Default: `CarlinChibBurst`.
    draws, tune : int
        Sweeps that the results of a row use, and sweeps before them.
    random_seed : int, sequence of int, or None
        Seed; None takes one from the operating system at each `fit`.
    progressbar : bool, default False

    Attributes
    ----------
    mixture_ : TemplateMixture
    parameters_ : Dataset
        Learned parameters; ``template_images(parameters_, mixture_)`` draws the templates.
    em_ : OnlineEM
        The run, with its history.
    random_seed_ : int or list of int
        The seed that was used.
    n_features_in_ : int
        Number of points of a row.
    feature_names_in_ : ndarray of str
        Names of the columns of a DataFrame.

    Notes
    -----
    Results of a row depend on the seed and the row alone, not on other rows. The cost of
    `predict` is a burst for each row, that of `transform` a burst for each row and class. The
    first call compiles, for some ten seconds; clones with the same `make_mixture` and `n_classes`
    compile nothing. Known labels `y` are not used; `OnlineEM.partial_fit` takes them.

    Examples
    --------
    >>> from pymc_mcoem.esteps import FixedLatents
    >>> rng = np.random.default_rng(1)
    >>> flat, tall = np.zeros(6), np.array([0.0, 1.0, 3.0, 3.0, 1.0, 0.0])
    >>> curves = np.stack([flat, tall] * 10) + 0.1 * rng.normal(size=(20, 6))
    >>> clusters = TemplateClustering(2, e_step=FixedLatents(), random_seed=1)
    >>> found = clusters.fit(curves).predict(curves)
    >>> bool((found[::2] == found[0]).all() and (found[1::2] != found[0]).all())
    True
    >>> clusters.score(curves) > clusters.score(curves + 1.0)
    True
    """

    def __init__(
        self,
        n_classes: int = 2,
        *,
        shape: tuple[int, ...] | None = None,
        make_mixture: Callable[[int], TemplateMixture] | None = None,
        n_passes: int = 1,
        em_options: Mapping[str, Any] | None = None,
        e_step: EStep | None = None,
        draws: int = 50,
        tune: int = 10,
        random_seed: int | Sequence[int] | None = None,
        progressbar: bool = False,
    ) -> None:
        self.n_classes = n_classes
        self.shape = shape
        self.make_mixture = make_mixture
        self.n_passes = n_passes
        self.em_options = em_options
        self.e_step = e_step
        self.draws = draws
        self.tune = tune
        self.random_seed = random_seed
        self.progressbar = progressbar

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn templates from rows, from the beginning.

        Parameters
        ----------
        X : array_like of shape (n, n_points)
        y : object
            Not used.

        Returns
        -------
        TemplateClustering
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            If the settings or X do not fit one another, or a row has no value at all.
        """
        em, rows = self._begin(X)
        passes = Passes(rows, self.n_passes, random_seed=em.run.random_seed)
        return self._keep(em.partial_fit(passes))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn more rows, once each and in their order; the first call begins a run.

        Its rows set the unit of a default mixture, whose templates of curves may be negative.

        Parameters
        ----------
        X : array_like of shape (n, n_points)
        y : object
            Not used.

        Returns
        -------
        TemplateClustering
            The estimator itself.
        """
        em, rows = (self.em_, self._rows(X)) if hasattr(self, "em_") else self._begin(X, "real")
        return self._keep(em.partial_fit(rows))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, ``(n, n_classes)``.

        Parameters
        ----------
        X : array_like of shape (n, n_points)
        """
        rule = compile_class_weights(self._fitted(), self._e_step())

        def answer(data: Any, theta: Any, rng: np.random.Generator) -> np.ndarray:
            return rule.class_probability(data, theta, rng, draws=self.draws, tune=self.tune)

        return np.stack(list(self._answers(X, answer)))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row, ``(n,)``, counted from 0.

        Parameters
        ----------
        X : array_like of shape (n, n_points)
        """
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Return ``fit(X).predict(X)``."""
        return self.fit(X).predict(X)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-evidence log p(row | θ) of each row, ``(n,)``, by Laplace's approximation.

        Missing points do not count, so that only rows with equally many values compare.

        Parameters
        ----------
        X : array_like of shape (n, n_points)

        Raises
        ------
        ValueError
            If `e_step` gives no evidence.
        """
        compiled = compiled_for(self._fitted(), self._e_step())
        state = compiled.initial_state()

        def answer(data: Any, theta: Any, rng: np.random.Generator) -> np.ndarray:
            found = compiled(data, theta, rng, state, draws=self.draws, tune=self.tune)
            return np.asarray(found.log_evidence)

        scores = np.stack(list(self._answers(X, answer)))
        if np.isnan(scores).any():
            raise ValueError(f"e_step: {self._e_step()!r} gives no evidence; give another.")
        return scores

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-evidence of the rows; for rows that were not learned, more is better.

        Parameters
        ----------
        X : array_like of shape (n, n_points)
        y : object
            Not used.
        """
        return float(np.mean(self.score_samples(X)))

    def transform(self, X: Any) -> np.ndarray:
        """Return rows aligned on the templates' frame, ``(n, n_points)``.

        Values are those of ``aligned_mean_averaged`` of `TemplateMixture.register`. Where a row
        has no data, there is the average of the templates by the row's class probabilities, so that
        later steps of a pipeline get no missing values.

        Parameters
        ----------
        X : array_like of shape (n, n_points)

        Raises
        ------
        ValueError
            If the points of the mixture make no grid, on which rows could be aligned.
        """
        mixture = self._fitted()
        found = mixture.register(
            self._rows(X),
            self.parameters_,
            draws=max(self.draws, 2),
            tune=self.tune,
            e_step=self.e_step if isinstance(self.e_step, CarlinChibBurst) else None,
            random_seed=self.random_seed_,
            progressbar=self.progressbar,
        )
        if "aligned_mean_averaged" not in found:
            raise ValueError(
                "make_mixture: its points make no grid, and rows cannot be aligned; use predict or "
                "predict_proba, or points on a grid."
            )
        scale = mixture.settings.scale
        level = 1.0 if scale is None else scale[0] / scale[1]
        templates = template_images(self.parameters_, mixture).values / level
        templates = templates.reshape(len(templates), -1)
        aligned = found["aligned_mean_averaged"].values.reshape(len(found["observation"]), -1)
        filled = found["class_probability"].values @ templates
        return np.where(np.isnan(aligned), filled, aligned)

    def _begin(self, X: Any, sign: str | None = None) -> tuple[OnlineEM, np.ndarray]:
        """Return a run for the columns of X, and X in the form of observations.

        Without a `sign`, the coefficients of a default mixture of curves have that of X.
        """
        values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
        require_whole("n_classes", self.n_classes, 1)
        check_sweeps(self.draws, self.tune)
        shape = (values.shape[1],) if self.shape is None else tuple(self.shape)
        if self.make_mixture is None and math.prod(shape) != values.shape[1]:
            raise ValueError(
                f"X has {values.shape[1]} columns, and images of shape {shape} have "
                f"{math.prod(shape)} pixels; give the shape of the images."
            )
        mixture = _mixture(self.make_mixture, shape, self.n_classes)
        if math.prod(mixture.settings.value_shape) != values.shape[1]:
            raise ValueError(
                f"X has {values.shape[1]} columns, and the mixture of make_mixture observations of "
                f"shape {mixture.settings.value_shape}; give one value for each point."
            )
        if mixture.settings.own_points is not None:
            raise ValueError(
                "make_mixture: its curves have points of their own, which rows of X do not have; "
                "leave out own_points."
            )
        rows = values.reshape(len(values), *mixture.settings.value_shape)
        if self.make_mixture is None:
            mixture = _in_unit_of(rows, mixture, sign)
        given: dict[str, Any] = {
            "e_step": self.e_step,
            "random_seed": self.random_seed,
            "progressbar": self.progressbar,
        }
        return OnlineEM(mixture, **given | dict(self.em_options or {})), rows

    def _keep(self, em: OnlineEM) -> Self:
        """Take over a run that has learned."""
        assert isinstance(em.family, TemplateMixture)
        self.em_, self.mixture_, self.random_seed_ = em, em.family, em.run.random_seed
        # read once here: while a run holds its first rows, reading learns them on a copy
        self.parameters_ = em.parameters
        return self

    def _fitted(self) -> TemplateMixture:
        check_is_fitted(self, "parameters_")
        return self.mixture_

    def _rows(self, X: Any) -> np.ndarray:
        """Return X, with the columns that were learned, in the form of observations."""
        given = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        return np.reshape(given, (len(given), *self.mixture_.settings.value_shape))

    def _e_step(self) -> EStep:
        return CarlinChibBurst() if self.e_step is None else self.e_step

    def _answers(
        self,
        X: Any,
        answer: Callable[[Any, Any, np.random.Generator], np.ndarray],
    ) -> Iterator[np.ndarray]:
        """Yield an answer for each row."""
        mixture = self._fitted()
        theta = mixture.check_parameters(self.parameters_)
        with deferred("rows") as interrupts, one_call_at_a_time(), one_blas_thread():
            for index, row in enumerate(self._rows(X)):
                try:
                    data = mixture.encode(row)
                except (TypeError, ValueError) as error:
                    raise refusal(error, index) from error
                rng = np.random.default_rng(seed_of(self.random_seed_, data))
                try:
                    found = answer(data, theta, rng)
                except (ArithmeticError, RuntimeError) as error:
                    require_own_fault(error)
                    raise RuntimeError(f"row {index}, counted from 0: {error}") from error
                yield found
                interrupts.between()

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: missing values are allowed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


@lru_cache(N_CACHED)
def _mixture(
    make_mixture: Callable[[int], TemplateMixture] | None, shape: tuple[int, ...], n_classes: int
) -> TemplateMixture:
    """Return a mixture; the same for equal arguments, so that it compiles once."""
    if make_mixture is not None:
        made = make_mixture(n_classes)
        if not isinstance(made, TemplateMixture) or made.n_classes != n_classes:
            raise TypeError(
                f"make_mixture: got {made!r} for {n_classes} classes; return a TemplateMixture "
                "with as many."
            )
        return made
    if len(shape) > 1:
        return TemplateMixture.for_images(shape, n_classes)
    return _curves(shape[0], n_classes)


def _in_unit_of(rows: np.ndarray, mixture: TemplateMixture, sign: str | None) -> TemplateMixture:
    """Return a default mixture with priors in the unit of rows, and for curves of their sign."""
    settings = mixture.settings
    # not the first ones: rows may be sorted by their kind
    some = rows[:: 1 + (len(rows) - 1) // FIRST]
    some = some.reshape(len(some), len(settings.points), *settings.channel_shape)
    source = CurveSource(settings.points, first=some)
    if len(settings.grid_shape) > 1:
        # where no image has a pixel, templates stay dark
        priors = source.fit_priors(mixture.priors, settings.basis, "nonnegative", False)
        return mixture.with_classes(mixture.n_classes, priors=priors)
    sign = sign or source.coefficients
    priors = source.fit_priors(mixture.priors, settings.basis, sign, False)
    return mixture.with_classes(mixture.n_classes, coefficients=sign, priors=priors)


def _curves(n_points: int, n_classes: int) -> TemplateMixture:
    """Return a mixture of curves of the order of one at the points 0, 1, ..., without scales.

    Unlike `TemplateMixture.for_curves` it takes two or three points, which hardly show a warp.
    """
    if n_points < 2:
        raise ValueError(
            f"X has n_features = {n_points}; a curve has at least two points, and a warp shows "
            "with four."
        )
    n_landmarks = min(LANDMARKS, n_points + 2)
    spacing = (n_points - 1) / (n_landmarks - 3) if n_landmarks > 4 else float(n_points - 1)
    landmarks = spacing * np.arange(-1, n_landmarks - 1)
    n_kernels = max(2, min(WARP_KERNELS, n_points // 2))
    warp = TimeWarp((0.0, float(n_points - 1)), n_kernels=n_kernels)
    return TemplateMixture(
        np.arange(float(n_points)),
        GaussianBasis.regular([landmarks], BANDWIDTH * spacing),
        warp,
        n_classes,
        priors=curve_priors(warp),
    )

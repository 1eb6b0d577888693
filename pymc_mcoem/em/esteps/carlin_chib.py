"""The Carlin-Chib burst as an E-step: the simulation step of Algorithm 1 (label ``alg:MCoEM``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.compiled_sweeps import Sweeps
from pymc_mcoem.carlin_chib.moves.defaults import BURST_MOVE
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.compiling.backends import require_backend
from pymc_mcoem.em.burst import Burst, adaptation_gains
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.burst_calls import BurstCall, BurstResult
from pymc_mcoem.em.esteps.class_fits import NEGLIGIBLE
from pymc_mcoem.em.esteps.together import TogetherEStep, allow_shared_calls
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["CarlinChibBurst", "CompiledCarlinChibBurst", "PosteriorChain"]

#: Largest number of observations in one call of a driver, unless `at_once` is given.
_GROUP_SIZE = 256


@dataclass(frozen=True)
class CarlinChibBurst:
    """Statistics averaged over a burst of Carlin-Chib sweeps.

    Parameters
    ----------
    pseudo_priors : PseudoPriorRule
        Default: `Laplace`.
    within_class : WithinClassMove
        Default: `Hamiltonian`, which needs a density with a gradient. On postal digits, with 78
        latents, a sweep costs three quarters of twenty random-walk moves and gives three to four
        times their effective draws.
    rao_blackwell : bool
        Average Σ_j w_j S(U_j) instead of S(X), with U_j as it was when the weights w were
        computed, that is, before the within-class moves. This applies to all statistics or none.
        Off by default: on digits under six classes, mean squared error times seconds was the
        same either way (errors of the plain average over those of Rao-Blackwell: 0.90 to 1.03).
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; None is PyTensor's default, numba,
        which learns fastest. JAX, if installed, finishes a first image of 16 × 16 pixels in a
        tenth of the time, and takes one and a half times as long for every later one. It compiles
        anew for every number of sweeps, so use bursts of one length, and it does not work in
        forked processes; pseudo-priors other than `Laplace` are then compiled by numba.
    at_once : int, optional
        With JAX: largest number of observations in one compiled call. Drivers with mini-batches,
        and classifiers, pass many to a call if pseudo-priors are `Laplace`, moves `RandomWalk` or
        `Hamiltonian`, and statistics plain averages; with other settings one after the other. None:
        16 on a processor, and what memory holds on an accelerator.
    dtype : {"float64", "float32"}
        Precision of these calls. Single precision halves memory and, on most accelerators, time;
        ``docs/choose.md`` has its errors.

    Raises
    ------
    ValueError
        If there is no such back end or precision, `at_once` is not positive, or single precision is
        requested with settings that take observations one by one.

    Notes
    -----
    Labels ``alg:MCMC`` and ``estep_SAOEM``. The chain starts in a class drawn by the
    pseudo-priors' estimates of evidence, at a draw from that class's pseudo-prior. Step sizes
    adapt only while tuning and are passed from observation to observation. The evidence
    reported is the pseudo-priors' estimate: Laplace's, or nan for pilot moments.

    Examples
    --------
    The E-step on its own, for two classes around −2 and 2 and an observation of 0:

    >>> import pymc as pm
    >>> from pymc_mcoem.em.family import Family
    >>> class Pair(Family):
    ...     observation = ("y",)
    ...
    ...     def __init__(self):
    ...         with pm.Model() as self.model:
    ...             means = pm.Data("means", [-2.0, 2.0])
    ...             y = pm.Data("y", 0.0)
    ...             self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
    ...             x = pm.Normal("x", means[self.class_index], 1.0)
    ...             pm.Normal("value", x, 1.0, observed=y)
    ...         self.statistics = {"x": x}
    >>> family, rng = Pair(), np.random.default_rng(1)
    >>> e_step = CarlinChibBurst(within_class=RandomWalk(n_moves=2)).compile(family)
    >>> theta, state = family.model_parameters(), e_step.initial_state()
    >>> found = e_step(family.encode(0.0), theta, rng, state, draws=4000, tune=50)
    >>> found.statistics["class_weight"].round(1), found.statistics["x"].round(1)
    (array([0.5, 0.5]), array([-0.5,  0.5]))
    """

    pseudo_priors: PseudoPriorRule = field(default_factory=Laplace)
    within_class: WithinClassMove = BURST_MOVE
    rao_blackwell: bool = False
    backend: str | None = None
    at_once: int | None = None
    dtype: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        require_backend(self.backend)
        if self.at_once is not None:
            require_whole("at_once", self.at_once, 1)
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype: got {self.dtype!r}; give 'float64' or 'float32'.")
        if self.dtype == "float32" and not allow_shared_calls(self):
            raise ValueError(
                "dtype: 'float32' is for calls of JAX with many observations; give "
                "backend='jax', Laplace pseudo-priors, RandomWalk or Hamiltonian moves and no "
                "rao_blackwell, or 'float64'."
            )

    @property
    def group_size(self) -> int:
        """Largest number of observations in one call of a driver; 1 if each has its own call."""
        return (self.at_once or _GROUP_SIZE) if allow_shared_calls(self) else 1

    @classmethod
    def as_in_paper(cls, **overrides: Any) -> CarlinChibBurst:
        """Return the paper's settings for images: pilot moments, 20 random-walk moves."""
        settings: dict[str, Any] = {
            "pseudo_priors": PilotMoments(n_steps=100),
            "within_class": RandomWalk(n_moves=20, target_acceptance=0.4),
        }
        return cls(**{**settings, **overrides})

    def compile(self, family: Family) -> CompiledCarlinChibBurst:
        """Compile pseudo-priors, burst and statistics for `family`."""
        with family.as_declared():
            return CompiledCarlinChibBurst(self, family)


@dataclass(frozen=True)
class PosteriorChain:
    """Draws of the class index and the latents of one observation, after tuning.

    Attributes
    ----------
    class_index : ndarray of int of shape (draws,)
    position : ndarray of shape (draws, n_latents)
        On the scale on which PyMC samples.
    log_weight : ndarray of shape (draws, n_classes)
        Logarithms of the unnormalized weights from which the class index was drawn.
    acceptance : ndarray of shape (draws,)
        Acceptance rate of the moves within the class.
    troubles : dict of str to int
        Troubles of the pseudo-priors.
    """

    class_index: np.ndarray
    position: np.ndarray
    log_weight: np.ndarray
    acceptance: np.ndarray
    troubles: dict[str, int]


class CompiledCarlinChibBurst(TogetherEStep):
    """A `CarlinChibBurst` compiled for one family."""

    def __init__(self, settings: CarlinChibBurst, family: Family) -> None:
        super().__init__(family, settings.backend, settings.pseudo_priors)
        self.settings, self.family = settings, family
        self.burst = Burst(
            self.density,
            settings.within_class,
            keep_auxiliaries=settings.rao_blackwell,
            mode=self.mode,
        )
        self.initial_log_step = self.burst.initial_log_step

    def with_draws(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        tune: int,
    ) -> tuple[EStepResult, Sweeps]:
        """Return the result of a call and its ``tune + draws`` sweeps, on PyMC's sampling scale."""
        values = self._values(data, parameters)
        pseudo_priors, found = self._run(values, rng, state["log_step"], draws, tune)
        return self._moved(self._summed(pseudo_priors, found, tune, rng, values)), found

    def chain(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> PosteriorChain:
        """Return draws of the class index and the latents, without statistics."""
        return self._chain(self._values(data, parameters), rng, draws, tune)

    def chain_all(
        self,
        data: Sequence[Mapping[str, np.ndarray]],
        parameters: Mapping[str, np.ndarray],
        rngs: Sequence[np.random.Generator],
        *,
        draws: int,
        tune: int,
    ) -> list[PosteriorChain | Exception]:
        """Return what `chain` does for many observations, or for many chains of one."""
        gains = adaptation_gains(tune + draws, tune)
        calls = [
            BurstCall(self._values(each, parameters), rng, self.initial_log_step, gains)
            for each, rng in zip(data, rngs, strict=True)
        ]

        def alone(at: int) -> PosteriorChain:
            return self._chain(calls[at].values, rngs[at], draws, tune)

        def from_burst(at: int, burst: BurstResult) -> PosteriorChain:
            return _after(tune, burst.found, burst.troubles)

        return self._all(calls, alone, from_burst, tune, summed=False)

    def _chain(
        self, values: Mapping[str, np.ndarray], rng: np.random.Generator, draws: int, tune: int
    ) -> PosteriorChain:
        pseudo_priors, found = self._run(values, rng, self.initial_log_step, draws, tune)
        return _after(tune, found, pseudo_priors.troubles)

    def _mean_statistics(
        self, found: Sweeps, drawn: slice, values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        if not self.settings.rao_blackwell:
            return super()._mean_statistics(found, drawn, values)
        assert found.auxiliaries is not None
        weight = softmax(found.log_weight[drawn], axis=1)
        sweep, index = np.nonzero(weight > NEGLIGIBLE)
        chosen = weight[sweep, index]
        return self.statistics(
            index, found.auxiliaries[drawn][sweep, index], chosen / chosen.sum(), values
        )


def _after(tune: int, found: Sweeps, troubles: Mapping[str, int]) -> PosteriorChain:
    """Return the sweeps after tuning."""
    return PosteriorChain(
        found.class_index[tune:],
        found.position[tune:],
        found.log_weight[tune:],
        found.acceptance[tune:],
        dict(troubles),
    )

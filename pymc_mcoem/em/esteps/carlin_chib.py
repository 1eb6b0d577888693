"""The Carlin-Chib burst as an E-step: the simulation step of Algorithm 1 (label ``alg:MCoEM``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.carlin_chib.pseudo_priors.base import N_STARTS, PseudoPriorRule, PseudoPriors
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.carlin_chib.sweeps import Sweeps
from pymc_mcoem.compiling.backends import pytensor_mode, require_backend
from pymc_mcoem.density.class_density import as_argument
from pymc_mcoem.em.burst import Burst, WeightedStatistics, adaptation_gains
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.class_fits import (
    NEGLIGIBLE,
    family_density,
    fit_to_keep,
    kept_fit,
    own_chain,
)

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["CarlinChibBurst", "CompiledCarlinChibBurst", "PosteriorChain"]


@dataclass(frozen=True)
class CarlinChibBurst:
    """Statistics averaged over a burst of Carlin-Chib sweeps.

    Parameters
    ----------
    pseudo_priors : PseudoPriorRule
        Default: `Laplace`.
    within_class : WithinClassMove
        Default: `Hamiltonian`, which needs a density with a gradient. On postal digits, 78 latents,
        a sweep has three quarters of the cost of twenty random-walk moves and three to four times
        their effective draws.
    rao_blackwell : bool
        Average Σ_j w_j S(U_j) instead of S(X), with every U_j as it stood when the weights
        w were computed, that is before the within-class moves. All statistics, or none.
        Off by default: on digits under six classes, mean squared error times seconds was the
        same either way (``benchmarks/rao_blackwell.py``: plain over Rao-Blackwell 0.90 to 1.03).
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; None is PyTensor's default, numba,
        which learns fastest. JAX, if installed, explains a first image of 16 × 16 pixels a tenth as
        late and every later one in one and a half times the time. It compiles anew for every new
        number of sweeps, so give it bursts of one length, and it does not work in forked
        processes; pseudo-priors other than `Laplace` are then left to numba.

    Notes
    -----
    Labels ``alg:MCMC`` and ``estep_SAOEM``. The chain starts in a class drawn from the
    pseudo-priors' estimates of evidence and at a draw from that class's pseudo-prior; step sizes
    are adapted during burn-in only and handed from observation to observation. The evidence
    reported is the pseudo-priors' own estimate: Laplace's, or nan for pilot moments.

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
    >>> found = e_step(family.encode(0.0), theta, rng, state, draws=4000, burn_in=50)
    >>> found.statistics["class_weight"].round(1), found.statistics["x"].round(1)
    (array([0.5, 0.5]), array([-0.5,  0.5]))
    """

    pseudo_priors: PseudoPriorRule = field(default_factory=Laplace)
    within_class: WithinClassMove = field(default_factory=Hamiltonian)
    rao_blackwell: bool = False
    backend: str | None = None

    def __post_init__(self) -> None:
        require_backend(self.backend)

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
    """Draws of one observation's class index and latents that were kept.

    Attributes
    ----------
    class_index : ndarray of int of shape (draws,)
    position : ndarray of shape (draws, n_latents)
        On the scale on which PyMC samples.
    log_weight : ndarray of shape (draws, n_classes)
        Logarithms of the weights from which the class index was drawn, not normalised.
    acceptance : ndarray of shape (draws,)
        Of the moves within the class.
    troubles : dict of str to int
        Of the pseudo-priors.
    """

    class_index: np.ndarray
    position: np.ndarray
    log_weight: np.ndarray
    acceptance: np.ndarray
    troubles: dict[str, int]


class CompiledCarlinChibBurst:
    """A `CarlinChibBurst` compiled for one family.

    Parameters
    ----------
    settings : CarlinChibBurst
    family : Family
    """

    def __init__(self, settings: CarlinChibBurst, family: Family) -> None:
        mode = pytensor_mode(settings.backend)
        self.settings = settings
        self.density = family_density(family)
        self.pseudo_priors = settings.pseudo_priors.compile(self.density, family.geometry, mode)
        self.burst = Burst(
            self.density,
            settings.within_class,
            keep_auxiliaries=settings.rao_blackwell,
            mode=mode,
        )
        self.statistics = WeightedStatistics(family, self.density, mode=mode)

    def initial_state(self) -> dict[str, np.ndarray]:
        """Return the step sizes that a run starts with: ``log_step`` of shape (n_classes,)."""
        return {"log_step": self.burst.initial_log_step.copy()}

    def __call__(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        burn_in: int,
    ) -> EStepResult:
        """Return mean statistics over `draws` sweeps kept after `burn_in` sweeps.

        Parameters
        ----------
        data : mapping of str to ndarray
            The encoded observation.
        parameters : mapping of str to ndarray
            θ by ``pm.Data`` name.
        rng : numpy.random.Generator
        state : mapping of str to ndarray
            As from `initial_state` or the last result.
        draws, burn_in : int

        Returns
        -------
        EStepResult
        """
        return self.with_draws(data, parameters, rng, state, draws=draws, burn_in=burn_in)[0]

    def with_draws(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        burn_in: int,
    ) -> tuple[EStepResult, Sweeps]:
        """Return what a call returns, and the sweeps themselves.

        Parameters
        ----------
        data, parameters, rng, state, draws, burn_in
            As for a call.

        Returns
        -------
        EStepResult
        Sweeps
            All ``burn_in + draws`` sweeps; positions are on the scale on which PyMC samples.
        """
        values = self._values(data, parameters)
        pseudo_priors, found = self._run(values, rng, state, draws, burn_in)
        result = self._summed(pseudo_priors, found, slice(burn_in, None), values)
        if result.acceptance == 0.0:
            result.troubles["chain did not move within its class"] = 1
        return result, found

    def chain(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        burn_in: int,
    ) -> PosteriorChain:
        """Return draws of the class index and the latents themselves, and no statistics.

        Parameters
        ----------
        data, parameters, rng, draws, burn_in
            As for a call; step sizes begin as a run's do.

        Returns
        -------
        PosteriorChain
        """
        values = self._values(data, parameters)
        pseudo_priors, found = self._run(values, rng, self.initial_state(), draws, burn_in)
        return PosteriorChain(
            found.class_index[burn_in:],
            found.position[burn_in:],
            found.log_weight[burn_in:],
            found.acceptance[burn_in:],
            dict(pseudo_priors.troubles),
        )

    def _summed(
        self,
        pseudo_priors: PseudoPriors,
        found: Sweeps,
        kept: slice,
        values: Mapping[str, np.ndarray],
    ) -> EStepResult:
        """Return mean statistics over the sweeps in `kept`."""
        acceptance = float(np.mean(found.acceptance[kept]))
        # SciPy's logsumexp takes a thirtieth of a short burst; nan is what pilot moments have
        with np.errstate(invalid="ignore"):
            log_evidence = float(np.logaddexp.reduce(pseudo_priors.log_evidence))
        indices = found.class_index[kept]
        if self.settings.rao_blackwell:
            statistics = self._rao_blackwell(found, kept, values)
        else:
            statistics = self.statistics(
                indices, found.position[kept], np.full(len(indices), 1.0 / len(indices)), values
            )
        return EStepResult(
            statistics,
            class_index=indices,
            acceptance=acceptance,
            log_evidence=log_evidence,
            troubles=dict(pseudo_priors.troubles),
            state={"log_step": found.log_step},
        )

    def resume(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        chain: Mapping[str, np.ndarray],
        *,
        gains: np.ndarray,
        refit: bool,
        keep_fit: bool,
    ) -> EStepResult:
        """Go on with the chain of an observation, or begin it; see `CompiledChains.resume`.

        The chain is ``class_index``, ``position`` (n_latents,) and ``log_step`` (n_classes,), and
        with `keep_fit` the pseudo-priors, ``2 n_classes n_latents**2`` numbers.
        """
        values = self._values(data, parameters)
        log_steps = self.burst.initial_log_step
        chain = own_chain(
            chain, class_index=(), position=(self.density.n_latents,), log_step=log_steps.shape
        )
        fitted = None if refit else kept_fit(chain)
        pseudo_priors = self.pseudo_priors(values, rng) if fitted is None else fitted
        found = None
        if chain:
            start = int(chain["class_index"]), chain["position"]
            log_steps = chain["log_step"]
            found = self.burst(rng, start, log_steps, pseudo_priors, gains, values)
        # where parameters have moved a hard edge past the chain, it begins anew
        if found is None or not _has_density(found):
            found = self._begun(rng, log_steps, pseudo_priors, gains, values)
        result = self._summed(pseudo_priors, found, slice(None), values)
        following = {
            "class_index": np.asarray(found.class_index[-1], dtype=np.int64),
            "position": found.position[-1].copy(),
            "log_step": np.array(found.log_step),
        }
        if keep_fit:
            following |= fit_to_keep(pseudo_priors)
        # Troubles belong to the visit that met them, not to those that use the same fit again.
        troubles = result.troubles if fitted is None else {}
        return replace(result, troubles=troubles, chain=following)

    def class_probability(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        burn_in: int,
    ) -> np.ndarray:
        """Return the posterior class probabilities of one encoded observation.

        Parameters
        ----------
        data, parameters, rng, draws, burn_in
            As for a call.

        Returns
        -------
        ndarray of shape (n_classes,)
            Mean over the kept sweeps of the probabilities from which the index was drawn: the
            Rao-Blackwell form of the share of visits, at no cost.
        """
        values = self._values(data, parameters)
        _, found = self._run(values, rng, self.initial_state(), draws, burn_in)
        mean: np.ndarray = softmax(found.log_weight[burn_in:], axis=1).mean(axis=0)
        return mean

    def _values(
        self, data: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        given = {**parameters, **data}
        return {
            name: as_argument(given[name], symbol.dtype)
            for name, symbol in self.density.data_inputs.items()
        }

    def _run(
        self,
        values: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        draws: int,
        burn_in: int,
    ) -> tuple[PseudoPriors, Sweeps]:
        pseudo_priors = self.pseudo_priors(values, rng)
        gains = adaptation_gains(burn_in + draws, burn_in)
        return pseudo_priors, self._begun(rng, state["log_step"], pseudo_priors, gains, values)

    def _begun(
        self,
        rng: np.random.Generator,
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> Sweeps:
        """Run a burst from draws of pseudo-priors, which may reach beyond the density's support.

        Another start is drawn where a sweep finds no density, as often as by `CarlinChib`, and by
        the same numbers.
        """
        start = pseudo_priors.start(rng)
        before = rng.bit_generator.state
        found = self.burst(rng, start, log_step, pseudo_priors, gains, values)
        if _has_density(found):
            return found
        rng.bit_generator.state = before
        # from here on a single sweep is enough to see whether there is density
        for _ in range(N_STARTS - 1):
            tried = self.burst(rng, start, log_step, pseudo_priors, gains[:1], values)
            if _has_density(tried):
                rng.bit_generator.state = before
                break
            start = pseudo_priors.start(rng)
            before = rng.bit_generator.state
        return self._swept(rng, start, log_step, pseudo_priors, gains, values)

    def _swept(
        self,
        rng: np.random.Generator,
        start: tuple[int, np.ndarray],
        log_step: np.ndarray,
        pseudo_priors: PseudoPriors,
        gains: np.ndarray,
        values: Mapping[str, np.ndarray],
    ) -> Sweeps:
        found = self.burst(rng, start, log_step, pseudo_priors, gains, values)
        if not _has_density(found):
            raise FloatingPointError(
                "burst: the log-density is not finite for any class at some sweep; check the "
                "observation and the parameters, which lie where the model has no density."
            )
        return found

    def _rao_blackwell(
        self, found: Sweeps, kept: slice, values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        assert found.auxiliaries is not None
        weight = softmax(found.log_weight[kept], axis=1)
        sweep, index = np.nonzero(weight > NEGLIGIBLE)
        chosen = weight[sweep, index]
        return self.statistics(
            index, found.auxiliaries[kept][sweep, index], chosen / chosen.sum(), values
        )


def _has_density(found: Sweeps) -> bool:
    """Say whether there was a class with density at every sweep."""
    return bool(np.isfinite(found.log_weight.max(axis=1)).all())

"""The paper's rule for classification: likelihoods averaged over the posterior of the latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytensor.tensor as pt
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.class_chains import ClassChains
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk, WithinClassMove
from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriorRule
from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.backends import backend_of, pytensor_mode, require_backend
from pymc_mcoem.density.log_densities import LogDensities
from pymc_mcoem.em.burst import adaptation_gains
from pymc_mcoem.em.esteps.class_fits import family_density, require_moves

if TYPE_CHECKING:
    from pytensor.tensor.variable import TensorVariable

    from pymc_mcoem.density.class_density import ClassDensity
    from pymc_mcoem.em.family import Family

__all__ = ["CompiledExpectedLikelihood", "ExpectedLikelihood", "log_likelihood"]


@dataclass(frozen=True)
class ExpectedLikelihood:
    """Settings of the paper's rule, the mean likelihood of an observation once a class is fitted.

    Parameters
    ----------
    pseudo_priors : PseudoPriorRule
        Starting points of chains and shape of their moves. Default: `Laplace`, with a complete
        mode search in every class.
    within_class : WithinClassMove
        Default: `RandomWalk` with five moves in each sweep.
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; see `CarlinChibBurst`.

    Notes
    -----
    Label ``classif1`` of the paper. In class j a chain X_1, …, X_T has the target p(x | y, I = j),
    and the score of the class is

        log (1/T) Σ_t g(y | I = j, X_t),

    the logarithm of a mean of normalized densities of the observation given its latents. It is
    not the evidence, which averages over the prior of the latents: a class that needs a large
    deformation to explain an observation is not penalized here. Weights of classes have no effect.

    The cost is a mode search in every class, and a density evaluation for each sweep and move.
    """

    pseudo_priors: PseudoPriorRule = field(default_factory=lambda: Laplace(race=None))
    within_class: WithinClassMove = field(default_factory=lambda: RandomWalk(n_moves=5))
    backend: str | None = None

    def __post_init__(self) -> None:
        require_backend(self.backend)

    def compile(self, family: Family) -> CompiledExpectedLikelihood:
        """Compile for `family`."""
        with family.as_declared():
            return CompiledExpectedLikelihood(self, family)


class CompiledExpectedLikelihood:
    """An `ExpectedLikelihood` compiled for one family."""

    def __init__(self, settings: ExpectedLikelihood, family: Family) -> None:
        mode = pytensor_mode(settings.backend)
        density, move = family_density(family), settings.within_class
        require_moves(move, density)
        self.density = density
        self.pseudo_priors = settings.pseudo_priors.compile(density, family.geometry, mode)
        self.chains = ClassChains(density, move, mode=mode)
        # If no value is observed, a hand-written density is the prior: the likelihood is the
        # difference, and is not compiled.
        self._written_out = density.written_out if backend_of(mode) == "numba" else None
        self._log_densities = LogDensities(
            density, mode, log_likelihood(density) if self._written_out is None else None
        )

    def log_scores(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> np.ndarray:
        """Return the score of each class, ``(n_classes,)``.

        Parameters
        ----------
        data : mapping of str to ndarray
            The encoded observation.
        parameters : mapping of str to ndarray
            θ by ``pm.Data`` name.
        draws, tune : int
            Sweeps of each class's chain that are used, and sweeps before them.
        """
        values = {**parameters, **data}
        pseudo_priors = self.pseudo_priors(values, rng)
        noise = rng.standard_normal(pseudo_priors.mean.shape)
        found = self.chains(
            rng,
            pseudo_priors.mean + np.einsum("jab,jb->ja", pseudo_priors.scale, noise),
            self.chains.initial_log_step,
            pseudo_priors,
            adaptation_gains(tune + draws, tune),
            values,
        )
        positions = found.position[:, tune:]
        n_classes, _, n_latents = positions.shape
        points = np.repeat(np.arange(n_classes), draws), positions.reshape((-1, n_latents))
        terms = self._log_densities(*points, self.density.arguments(values))
        if self._written_out is not None:
            unobserved = self._written_out.unobserved(values)
            terms = terms - self._log_densities(*points, self.density.arguments(unobserved))
        scores = logsumexp(terms.reshape((n_classes, draws)), axis=1)
        found_scores: np.ndarray = scores - np.log(draws)
        return found_scores


def log_likelihood(density: ClassDensity) -> Callable[[Any, Any], TensorVariable]:
    """Return the graph of the log-density of what is observed, given a class and a position."""
    model = density.model
    terms = model.logp(vars=list(model.observed_RVs), sum=False)
    total = pt.add(*[term.sum() for term in terms]) if len(terms) > 1 else terms[0].sum()
    return lambda k, x: pt.cast(density.place_values(total, k, x), "float64")

"""The E-step of Ma et al., which replaces the posterior by a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.pseudo_priors.laplace import Laplace
from pymc_mcoem.compiling.backends import require_backend
from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.esteps.class_fits import require_density
from pymc_mcoem.em.esteps.compiled import DensityEStep

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.laplace.modes import Modes

__all__ = ["CompiledPosteriorMode", "PosteriorMode"]


@dataclass(frozen=True)
class PosteriorMode:
    """Statistics at one point: the most probable class and latents.

    Parameters
    ----------
    search : Laplace
        Settings of the mode search: starts, race, tolerance.
    backend : str or None
        ``"numba"``, ``"c"`` or ``"jax"``, as in ``pm.sample``; see `CarlinChibBurst`.

    Notes
    -----
    Ma, Miller, Trouvé and Younes (2008). With (Î, X̂) = argmax log p(y, I, X),

        E[δ_{I,j} S(X, y) | y]  is replaced by  δ_{Î,j} S(X̂, y).

    Modes are on the scale on which PyMC samples the latents, including the Jacobian. Nothing is
    random, and burst lengths are not used. Cost: a mode search in every class that stays in the
    race, and one evaluation of the statistics.

    The known bias does not vanish with more observations. The point has no variance, so every
    variance learned from second moments is too small by the posterior variance of its variable.
    If an observation y is a normal latent of variance γ² plus noise of variance σ², the learned γ²
    shrinks to zero if γ² < 3 σ². The class is chosen by the height of the joint density and not by
    the mass under it: a class with narrow posteriors beats a broad one that is more probable.
    Class probabilities become 0 or 1, which pushes overlapping classes apart. `CarlinChibBurst`
    has none of these biases. The evidence reported is Laplace's, available at no cost.

    Examples
    --------
    Two classes around −2 and 2. For an observation of 1, the mode of the second class is 1.5; that
    class has posterior probability 0.88, but weight 1 here:

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
    >>> e_step = PosteriorMode().compile(family)
    >>> theta, state = family.model_parameters(), e_step.initial_state()
    >>> found = e_step(family.encode(1.0), theta, rng, state, draws=1, tune=0)
    >>> found.statistics["class_weight"], found.statistics["x"].round(3)
    (array([0., 1.]), array([0. , 1.5]))
    """

    search: Laplace = field(default_factory=Laplace)
    backend: str | None = None

    def __post_init__(self) -> None:
        require_backend(self.backend)

    def compile(self, family: Family) -> CompiledPosteriorMode:
        """Compile mode search and statistics for `family`."""
        with family.as_declared():
            return CompiledPosteriorMode(self, family)


class CompiledPosteriorMode(DensityEStep):
    """A `PosteriorMode` compiled for one family."""

    def __init__(self, settings: PosteriorMode, family: Family) -> None:
        super().__init__(family, settings.backend)
        found = settings.search.compile_search(self.density, family.geometry, self.mode)
        self.search, self.starts = found

    def _highest(self, values: Mapping[str, np.ndarray]) -> tuple[Modes, int]:
        modes = self.search(self.starts, values)
        require_density(modes.log_density, "posterior mode")
        return modes, int(np.argmax(modes.log_density))

    def _run_e_step(
        self,
        values: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        draws: int,
        tune: int,
    ) -> EStepResult:
        modes, chosen = self._highest(values)
        return EStepResult(
            self.statistics(np.array([chosen]), modes.mean[[chosen]], np.ones(1), values),
            log_evidence=float(logsumexp(modes.log_evidence)),
            troubles=modes.troubles(),
        )

    def _class_weights(
        self, values: Mapping[str, np.ndarray], rng: np.random.Generator, draws: int, tune: int
    ) -> np.ndarray:
        """Return 1 for the class of the highest mode and 0 for the others."""
        _, chosen = self._highest(values)
        one_hot: np.ndarray = np.eye(self.density.n_classes)[chosen]
        return one_hot

"""Default moves within a class: one for `pm.sample` and one for bursts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.moves.within_class import WithinClassMove

__all__ = ["BURST_MOVE", "step_move"]

# Effective draws a second on one core, of the index and of the latent that mixes worst, from
# ``python benchmarks/default_moves.py``:
#
#                                        5 moves         20 moves        Hamiltonian
#   pm.sample, counts, 1 latent        13,100 13,100   11,200 12,000   12,500 17,400
#   pm.sample, logistic, 10 latents     2,300    800    1,900  1,500    3,200  4,300
#   pm.sample, logistic, 40 latents         –   –           46      3           68     87
#   pm.sample, funnel, 6 latents           76     39       74     18      102     77
#   burst, curve, 21 latents            6,900  1,900    3,700  1,900    6,000  8,600
#   burst, image, 134 latents               –     20        –     11        –    384

#: Default of all bursts: the pseudo-prior is a good metric and there may be many latents.
BURST_MOVE = Hamiltonian(n_moves=1, n_leapfrog=8)

#: Default of `pm.sample` with few latents, although the Hamiltonian move draws more: the walk needs
#: no gradient, plates accept it too, it compiles faster, and after tuning it takes the shape of the
#: draws if the posterior is far from normal.
_WALK = RandomWalk(n_moves=20)

#: Largest number of latents of a class for which this holds. A walk takes a number of sweeps that
#: grows with the latents, a Hamiltonian move hardly.
_MOST_WALKED = 15


def step_move(density: Any, without_gradient: bool = False) -> WithinClassMove:
    """Return the default move of `pm.sample` for a density of one index or of a plate."""
    walks = without_gradient or len(density.position_shape) > 1
    return _WALK if walks or max(density.n_active) <= _MOST_WALKED else BURST_MOVE

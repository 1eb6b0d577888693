"""Default moves within a class: one for `pm.sample` and one for bursts."""

from __future__ import annotations

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk

__all__ = ["BURST_MOVE", "STEP_MOVE"]

# Effective draws per second on one core, of the index and of the latent that mixes worst:
#
#                                        5 moves         20 moves        Hamiltonian
#   bursts, counts, 1 latent          165,000 168,000   63,000 67,000   102,000 135,000
#   bursts, logistic, 10 latents       33,000  19,000   16,000 15,000    23,000  44,000
#   bursts, image, 168 latents              –      17        –     11         –     552
#   pm.sample, counts, 1 latent         5,500   5,600    4,700  6,100     5,500   7,200
#   pm.sample, logistic, 10 latents     1,100     480    2,300  2,100     3,000   5,100
#   pm.sample, funnel, 6 latents                         1,460    130     1,180      90
#
# The image has one class. With three about equally likely classes and 38 latents, five moves and
# the Hamiltonian move gave class weights with the same mean squared error times seconds, and 20
# moves gave ten times as much.

#: Default of all bursts: the pseudo-prior is a good metric and there may be many latents.
BURST_MOVE = Hamiltonian(n_moves=1, n_leapfrog=8)

#: Default in `pm.sample`: the chain is long enough for the walk to take the shape of the chain's
#: draws if the posterior is far from normal; the density needs no gradient; plates accept the move
#: too; and it compiles faster.
STEP_MOVE = RandomWalk(n_moves=20)

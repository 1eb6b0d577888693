"""Moves within a class where none is named: one for `pm.sample`, one for bursts."""

from __future__ import annotations

from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk

__all__ = ["BURST_MOVE", "STEP_MOVE"]

# Effective draws of the index, and of the latent that mixes worst, a second on one core:
#
#                                        5 moves         20 moves        Hamiltonian
#   bursts, counts, 1 latent          165,000 168,000   63,000 67,000   102,000 135,000
#   bursts, logistic, 10 latents       33,000  19,000   16,000 15,000    23,000  44,000
#   bursts, image, 168 latents              –      17        –     11         –     552
#   pm.sample, counts, 1 latent         5,500   5,600    4,700  6,100     5,500   7,200
#   pm.sample, logistic, 10 latents     1,100     480    2,300  2,100     3,000   5,100
#   pm.sample, funnel, 6 latents                         1,460    130     1,180      90
#
# The image has one class. With three, undecided, and 38 latents five moves and the Hamiltonian one
# gave class weights of the same mean squared error times seconds, 20 moves ten times as much.

#: In bursts, whatever they are for: the pseudo-prior is a good metric and latents may be many.
BURST_MOVE = Hamiltonian(n_moves=1, n_leapfrog=8)

#: In `pm.sample`: the chain is long enough to take the shape of its own draws, where posteriors are
#: far from normal; a density needs no gradient; plates take it too; and it is sooner compiled.
STEP_MOVE = RandomWalk(n_moves=20)

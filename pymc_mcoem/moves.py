"""Moves within a class and between classes, and the building blocks of a custom move."""

from pymc_mcoem.carlin_chib.moves.annealed import AnnealedJump
from pymc_mcoem.carlin_chib.moves.hamiltonian import Hamiltonian
from pymc_mcoem.carlin_chib.moves.within_class import (
    ClassProposal,
    Independence,
    MoveResult,
    RandomWalk,
    WithinClassMove,
    log_uniform,
)

__all__ = [
    "AnnealedJump",
    "ClassProposal",
    "Hamiltonian",
    "Independence",
    "MoveResult",
    "RandomWalk",
    "WithinClassMove",
    "log_uniform",
]

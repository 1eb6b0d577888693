"""Schedules: step sizes, update times, burst lengths, temperatures, and races of searches."""

from pymc_mcoem.em.schedules import (
    Annealing,
    BurstLength,
    BurstSize,
    PhasedStepSize,
    StepSize,
    UpdateSchedule,
)
from pymc_mcoem.laplace.schedule import Cooling, Race

__all__ = [
    "Annealing",
    "BurstLength",
    "BurstSize",
    "Cooling",
    "PhasedStepSize",
    "Race",
    "StepSize",
    "UpdateSchedule",
]

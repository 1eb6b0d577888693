"""The alarm of runs whose streams change; it is in `pymc_mcoem.em.drift`, since runs have one."""

from pymc_mcoem.em.drift import Drift, DriftAlarm

__all__ = ["Drift", "DriftAlarm"]

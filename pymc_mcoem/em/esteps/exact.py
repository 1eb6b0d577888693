"""The E-step in closed form, for families that have one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pymc_mcoem.em.esteps.base import EStepResult
from pymc_mcoem.em.family import Family

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.base import CompiledEStep

__all__ = ["Exact"]


@dataclass(frozen=True)
class Exact:
    """Exact posterior means of the statistics, from `Family.exact`.

    With it `OnlineEM` is the online EM of Cappé and Moulines, without Monte Carlo error, the
    benchmark of the other E-steps. Burst lengths and random numbers are not used.

    Examples
    --------
    >>> Exact()
    Exact()
    """

    def compile(self, family: Family) -> CompiledEStep:
        """Return the E-step of `family`.

        Raises
        ------
        TypeError
            If the family has no closed form.
        """
        if type(family).exact is Family.exact:
            raise TypeError(
                f"e_step: Exact needs a closed form, and {type(family).__name__} has none; "
                "define exact(data, parameters) there, or use CarlinChibBurst."
            )
        return _CompiledExact(family)


@dataclass(frozen=True)
class _CompiledExact:
    family: Family

    def initial_state(self) -> dict[str, np.ndarray]:
        return {}

    def __call__(
        self,
        data: Mapping[str, np.ndarray],
        parameters: Mapping[str, np.ndarray],
        rng: np.random.Generator,
        state: Mapping[str, np.ndarray],
        *,
        draws: int,
        tune: int,
    ) -> EStepResult:
        statistics = dict(self.family.exact(data, parameters))
        evidence = float(statistics.pop("log_evidence", np.nan))
        return EStepResult(statistics=statistics, log_evidence=evidence)

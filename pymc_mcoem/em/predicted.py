"""Plausibility check of the first ten records of a stream, against draws from the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
from pytensor.graph.replace import clone_replace
from pytensor.tensor.random.type import RandomType

from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.compiling.threads import one_call_at_a_time
from pymc_mcoem.interrupts import require_own_fault
from pymc_mcoem.runs.outliers import LEAST, Absurd, largest, remembered, span

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labeling import Arrays

__all__ = ["Predicted"]

_N_DRAWS = 20
#: Only records more than this many times as large as the largest parameter are checked.
_SUSPICIOUS = 10.0


class Predicted:
    """Prior predictive draws of a family's observation at given parameters.

    Notes
    -----
    Only data that are the value of an observed variable of the model are drawn. If there are none,
    or if a distribution cannot be drawn from, no record is refused. The function that
    makes the draws runs in an interpreter and is built at the first suspicious record.
    """

    def __init__(self, family: Family) -> None:
        self._family = family
        self._draw: Any = None
        self._names: list[str] = []

    def require(
        self, encoded: Mapping[str, Any], recent: Arrays | None, parameters: Arrays, beyond: float
    ) -> None:
        """Refuse a record among the first ten that lies far from what the parameters predict.

        Parameters
        ----------
        encoded : mapping of str to ndarray
            The record as encoded by `Family.encode`, since a family may use other units.
        recent : dict of str to ndarray, or None
            As from `remembered`.
        beyond : float
            Largest allowed distance from the median of the draws, in units of the median
            distance of a draw.
        """
        if max(map(len, (recent or {}).values()), default=0) >= LEAST:
            return
        size = largest(parameters)
        spans = {
            name: row
            for name, row in span(encoded).items()
            if np.abs(row).max() > _SUSPICIOUS * size > 0
        }
        if not spans:
            return
        with one_call_at_a_time():
            drawn = self._drawn(parameters)
        for name, rows in drawn.items():
            middle = np.median(rows[:, 1])
            typical = np.median(np.maximum(rows[:, 2] - middle, middle - rows[:, 0]))
            if name not in spans or not typical > 0:
                continue
            low, _, high = spans[name] - middle
            ratio = max(high, -low) / typical
            if ratio > beyond:
                raise Absurd(
                    f"{name} reaches {middle + (high if high > -low else low):.6g}, {ratio:.2g} "
                    f"times as far as what the parameters predict ({beyond:g} are allowed); check "
                    "the source and the start, or give another refuse_beyond, None to accept all."
                )

    def _drawn(self, parameters: Arrays) -> Arrays:
        """Return the `span` of 20 draws by part, ``(20, 3)``; empty if drawing fails."""
        found: Arrays = {}
        states: dict[Any, Any] = {}
        try:
            if self._draw is None:
                self._compile()
            shared = self._draw.get_shared()
            # the same draws at the same parameters, also after a run is resumed; the generators
            # belong to the model, so their states are restored
            generators = [each for each in shared if isinstance(each.type, RandomType)]
            states = {each: each.get_value() for each in generators}
            pm.pytensorf.reseed_rngs(generators, 1)
            model = self._family.model
            given = [
                np.asarray(parameters[name], model[name].type.dtype)
                for name in self._family.parameter_names
            ]
            for _ in range(_N_DRAWS):
                drawn = dict(zip(self._names, self._draw(*given), strict=True))
                found = remembered(found, span(drawn))
        # any exception of a distribution that cannot be drawn from, which is not due to the record
        except Exception as error:
            require_own_fault(error)
            return {}
        finally:
            for generator, state in states.items():
                generator.set_value(state)
        return found

    def _compile(self) -> None:
        model = self._family.model
        seen = {model.rvs_to_values[rv]: rv for rv in model.observed_RVs}
        variables = {name: model[name] for name in self._family.observation}
        self._names = [name for name, data in variables.items() if data in seen]
        symbols = {model[name]: model[name].type() for name in self._family.parameter_names}
        drawn = clone_replace(
            [seen[variables[name]] for name in self._names], symbols, rebuild_strict=False
        )
        self._draw = pm.pytensorf.compile(
            list(symbols.values()), drawn, mode=interpreted_mode(), on_unused_input="ignore"
        )

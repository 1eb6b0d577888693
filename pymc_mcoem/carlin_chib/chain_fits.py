"""Pseudo-priors of one chain, fitted given the other variables and checked by draws."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import product
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np
from pymc.step_methods.state import DataClassState, WithSamplingState, dataclass_state

from pymc_mcoem.carlin_chib.pilots import learn
from pymc_mcoem.carlin_chib.pseudo_prior_checks import PseudoPriorCheck

if TYPE_CHECKING:
    from pymc_mcoem.carlin_chib.engines import Engine
    from pymc_mcoem.carlin_chib.pseudo_prior_checks import Verdict
    from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors

__all__ = ["ChainFits", "ChainFitsState"]

_log = logging.getLogger("pymc_mcoem")

#: Largest number of sweeps by which pseudo-priors are checked.
N_CHECKED = 500

#: A smaller missed share of a class's evidence is not logged.
LEAST_MISSED_SHARE = 0.01


@dataclass_state
class ChainFitsState(DataClassState):
    """Fits that a chain carries from sweep to sweep."""

    by_values: Any


class ChainFits(WithSamplingState):
    """Pseudo-priors of a chain, one fit for each joint value of the model's other indices.

    Parameters
    ----------
    other_indices : dict of int to int
        Numbers of classes of the model's other indices, by position among the other variables.
    is_frozen : bool
        Whether auxiliaries stay where they are until their class is chosen.

    Attributes
    ----------
    by_values : dict of tuple of int to PseudoPriors
        By the values of the other indices; empty before the first fit.
    """

    _state_class = ChainFitsState

    def __init__(self, engine: Engine, other_indices: Mapping[int, int], is_frozen: bool) -> None:
        self._engine = engine
        self._other_indices = other_indices
        self._is_frozen = is_frozen
        self._believed: tuple[tuple[Any, Any], np.ndarray] | None = None
        self.clear()

    def clear(self) -> None:
        """Forget the fits of another chain."""
        self.by_values: dict[tuple[int, ...], PseudoPriors] = {}
        self._check = PseudoPriorCheck(0)
        self._checked_at: tuple[int, ...] = ()

    @property
    def _index_name(self) -> str:
        return str(self._engine.density.index_value.name)

    def values(self, others: Sequence[np.ndarray]) -> tuple[int, ...]:
        """Return the values of the model's other indices, which are the keys of `by_values`."""
        return tuple(int(others[position]) for position in self._other_indices)

    def fit(self, rng: np.random.Generator, others: Sequence[np.ndarray]) -> None:
        """Fit pseudo-priors given the values of the other variables, and log any trouble.

        Other indices of the model jump back and forth, and a fit at one of their values need not
        suit the next: each value has its own fit, and the chain's present value comes first.
        """
        here = self.values(others)
        self.by_values = {here: self._engine.fit(rng, others)}
        for values in product(*map(range, self._other_indices.values())):
            if values not in self.by_values:
                placed = list(others)
                for position, value in zip(self._other_indices, values, strict=True):
                    placed[position] = np.asarray(value, dtype=others[position].dtype)
                self.by_values[values] = self._engine.fit(rng, placed)
        found = self.by_values[here]
        self._checked_at = here
        # Frozen auxiliaries are drawn from the heaviest component alone.
        if self._is_frozen and any(
            getattr(fit, "mixtures", None) for fit in self.by_values.values()
        ):
            _log.warning(
                "CarlinChib: %s: a class has several modes, and with frozen auxiliaries "
                "only the pseudo-prior of the heaviest is drawn from; the chain stays exact, but "
                "may not get from one mode to another. Leave out auxiliaries=.",
                self._index_name,
            )
        self._check = PseudoPriorCheck(N_CHECKED, found.log_evidence)
        for trouble, count in found.troubles.items():
            _log.warning(
                "CarlinChib: %s in %d of %d pseudo-priors; the chain stays exact, but these "
                "classes may be visited too seldom.",
                trouble,
                count,
                found.log_evidence.size,
            )
        if (beyond := self.missed_share(found) > LEAST_MISSED_SHARE).any():
            _log.warning(
                "CarlinChib: %s: the classes %s have more modes than their pseudo-priors hold; "
                "if they have weight, class_index_summary flags them and says what to do.",
                self._index_name,
                np.flatnonzero(beyond).tolist(),
            )

    def learn(
        self, rng: np.random.Generator, others: Sequence[np.ndarray], log_step: np.ndarray
    ) -> list[int]:
        """Learn better pseudo-priors if the sweeps since the fit ask for it; return their classes.

        Those at the present values of the model's other indices are learned.
        """
        here = self.values(others)
        if here != self._checked_at:
            return []
        classes = self._check.worth_learning(if_stuck=bool(others))
        if not classes:
            return []
        _log.info(
            "CarlinChib: %s: pilot chains explore the classes %s, of which some have poor "
            "pseudo-priors or were never visited.",
            self._index_name,
            classes,
        )
        found, learned = learn(self._engine, rng, self.by_values[here], others, log_step, classes)
        for each in learned:
            _log.info("CarlinChib: %s: %s", self._index_name, each)
        if learned:
            self.by_values[here] = found
            self._check = PseudoPriorCheck(N_CHECKED, found.log_evidence)
        return [each.class_number for each in learned]

    def missed_share(self, pseudo_priors: PseudoPriors) -> np.ndarray:
        """Return the share of each class's evidence in missed modes, ``(n_classes,)``.

        On a plate it is the largest of all rows.
        """
        found = pseudo_priors.missed_share
        if found is None:
            return np.zeros(self._engine.density.n_classes)
        return found if found.ndim == 1 else found.max(axis=1)

    def believed_elsewhere(
        self,
        pseudo_priors: PseudoPriors,
        class_index: np.ndarray,
        equalizing_log_weight: np.ndarray,
    ) -> float:
        """Return the other classes' probability by the evidence that the pseudo-priors estimate.

        It is nan without estimates, and on a plate.
        """
        if np.ndim(class_index):
            return float("nan")
        given = pseudo_priors, equalizing_log_weight
        if self._believed is None or not all(map(is_, given, self._believed[0])):
            log_p = pseudo_priors.log_evidence + equalizing_log_weight
            known = not np.isnan(log_p).any() and np.isfinite(log_p.max())
            p = np.exp(log_p - log_p.max()) if known else np.full(len(log_p), np.nan)
            self._believed = given, 1.0 - p / p.sum()
        return float(self._believed[1][int(class_index)])

    def see(self, values: tuple[int, ...], class_index: np.ndarray, log_ratio: np.ndarray) -> None:
        """Store the importance ratios of a sweep, made with the fit at these values.

        Ratios of frozen auxiliaries, which are no sample of their pseudo-prior, are not stored.
        """
        if not self._is_frozen and values == self._checked_at:
            self._check.see(class_index, log_ratio)

    def poor(
        self,
        rng: np.random.Generator,
        last: tuple[np.ndarray, np.ndarray, Sequence[np.ndarray]] | None,
        log_step: np.ndarray,
        equalizing_log_weight: np.ndarray,
    ) -> list[Verdict]:
        """Return verdicts on the pseudo-priors that have proved poor.

        Parameters
        ----------
        rng : Generator
            Not advanced.
        last : tuple, or None
            Class index, position and other variables of the last sweep, from which fresh draws are
            made if the sweeps so far do not suffice.
        """
        # On a plate, rows that stay in one class are common and sweeps are expensive.
        is_plate = len(self._engine.auxiliaries_shape) > 2
        if self._is_frozen or (not is_plate and not self._check.has_enough()):
            if last is not None:
                self._check_by_fresh_draws(rng, *last, log_step, equalizing_log_weight)
        return self._check.verdicts()

    def _check_by_fresh_draws(
        self,
        rng: np.random.Generator,
        class_index: np.ndarray,
        position: np.ndarray,
        others: Sequence[np.ndarray],
        log_step: np.ndarray,
        equalizing_log_weight: np.ndarray,
    ) -> None:
        """Check by draws of the pseudo-priors that are made only for this.

        Frozen auxiliaries have their pseudo-priors' distribution too, but a class gets a new one
        only when it is left, which happens seldom or never if its pseudo-prior is poor. A class
        that the chain never leaves has no draw, although it may be the one at fault.
        """
        pseudo_priors = self.by_values[self.values(others)]
        self._check = PseudoPriorCheck(N_CHECKED, pseudo_priors.log_evidence)
        # a separate generator, which is the same if the chain is resumed
        rng = np.random.default_rng(copy.deepcopy(rng).integers(2**63))
        for t in range(N_CHECKED):
            # the active class has no draw, so the classes are active in turn
            active = (class_index + t) % self._engine.density.n_classes
            swept = self._engine.sweep(
                rng,
                0.0,
                active,
                position,
                log_step,
                pseudo_priors,
                others,
                equalizing_log_weight=equalizing_log_weight,
                auxiliaries=(
                    rng.standard_normal(self._engine.auxiliaries_shape) if self._is_frozen else None
                ),
                jumps=False,
            )
            self._check.see(active, swept.log_ratio)

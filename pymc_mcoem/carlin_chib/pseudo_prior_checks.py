"""Check pseudo-priors by the auxiliaries that were drawn from them.

At every sweep the weight of an inactive class is an importance ratio, target over pseudo-prior,
at a draw of the pseudo-prior. A sample of these ratios says how well the two agree. Frozen
auxiliaries are hardly a sample, so the step then draws one for this purpose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_mcoem.carlin_chib.pareto import pareto_k

__all__ = ["PseudoPriorCheck", "Verdict"]

#: Pseudo-priors with fewer ratios are not checked.
_MIN_DRAWS = 100

#: An effective share below the first is reported; so is one below the second if Pareto k, itself
#: uncertain with so few draws, says that the share cannot be trusted.
_MIN_SHARE = 0.1
_MIN_DOUBTFUL_SHARE = 0.5
_MAX_PARETO_K = 0.7

#: With fewer sweeps in which a class is active, or inactive, the overlap of its pseudo-prior with
#: its posterior is not estimated; with a smaller overlap, a better one is learned.
_MIN_SWEEPS = 30
_MIN_OVERLAP = 0.3

#: A class that was never visited is explored if its evidence seems no further below the best one's:
#: a pseudo-prior that is too narrow makes it seem smaller than it is.
_MAX_UNTRIED = 60.0

#: A class whose evidence is this many nats below the best one's is hardly ever visited anyway.
_MAX_GAP = 10.0


@dataclass(frozen=True)
class Verdict:
    """A fault of the pseudo-prior of a class.

    Attributes
    ----------
    pareto_k : float
        Pareto k of the ratios; nan on a plate, where it is not computed.
    effective_share : float
        Effective sample size of the importance weights over the number of draws; on a plate the
        smallest of all rows.
    n_draws : int
        Number of draws by which it was checked.
    n_rows : int
        Number of rows of a plate in which it is poor; 1 without a plate.
    """

    class_number: int
    pareto_k: float
    effective_share: float
    n_draws: int
    n_rows: int

    def __str__(self) -> str:
        rows = f" in {self.n_rows} rows" if self.n_rows > 1 else ""
        k = "" if np.isnan(self.pareto_k) else f"Pareto k {self.pareto_k:.2f}, "
        return (
            f"class {self.class_number}{rows} ({k}effective share {self.effective_share:.1%} of "
            f"{self.n_draws} draws)"
        )


@dataclass(frozen=True)
class _Seen:
    """Sums over sweeps; all but the first two have shape (n_rows, n_classes)."""

    own: np.ndarray  # (n_sweeps, n_rows, n_classes), like the next
    drawn: np.ndarray
    n_drawn: np.ndarray
    total: np.ndarray
    share: np.ndarray
    near: np.ndarray
    not_far: np.ndarray
    always: np.ndarray


class PseudoPriorCheck:
    """Store importance ratios of the first sweeps after a fit, and check pseudo-priors by them.

    Parameters
    ----------
    n_sweeps : int
        Most sweeps to store; 0 stores none and finds nothing.
    log_evidence : ndarray of shape (n_classes,) or (n_classes, n_rows), optional
        Estimates of the classes' evidence by the rule that made the pseudo-priors; nan where it
        gives none. An estimate from the ratios themselves is too small for a bad pseudo-prior.

    Notes
    -----
    The ratios of a pseudo-prior far narrower than its target are all alike, so its draws do not
    reveal this.

    Examples
    --------
    >>> check = PseudoPriorCheck(n_sweeps=200)
    >>> rng = np.random.default_rng(3)
    >>> for _ in range(200):
    ...     check.see(np.array(0), np.array([0.0, -8.0 + 6.0 * rng.standard_normal()]))
    >>> [verdict.class_number for verdict in check.verdicts()]
    [1]
    """

    def __init__(self, n_sweeps: int, log_evidence: np.ndarray | None = None) -> None:
        self.n_sweeps = n_sweeps
        self.log_evidence = log_evidence
        self._classes: list[np.ndarray] = []
        self._ratios: list[np.ndarray] = []

    def see(self, class_index: np.ndarray, log_ratio: np.ndarray) -> None:
        """Store the ratios of a sweep.

        Parameters
        ----------
        class_index : ndarray of int, shape () or (n_rows,)
            Class before the sweep, whose ratio is not at a draw of its pseudo-prior.
        log_ratio : ndarray of shape (n_classes,) or (n_rows, n_classes)
        """
        if len(self._ratios) < self.n_sweeps:
            self._classes.append(np.array(class_index))
            self._ratios.append(np.array(log_ratio))

    def has_enough(self) -> bool:
        """Return whether each class that the chain might change to or from can be checked.

        A class that is always active has no draws; if it is the only one in reach, none are
        needed.
        """
        if not self._ratios:
            return False
        seen = self._summed()
        matters = seen.near | seen.always
        known = seen.n_drawn >= _MIN_DRAWS
        return bool(((matters.sum(axis=1) < 2) | (known | ~matters).all(axis=1)).all())

    def worth_learning(self, *, if_stuck: bool = False) -> list[int]:
        """Return the classes whose pseudo-priors are worth learning; not on a plate.

        If draws of some pseudo-prior would seldom replace the chain's positions, or if the chain
        hardly left a class while its ratios vary, these are all classes in reach, because one
        sample says little about each. Otherwise they are the classes in reach that were never
        visited, whose evidence may be underestimated.

        Parameters
        ----------
        if_stuck : bool
            Return classes only if the chain has never left its class. This is for models in which
            other variables move, because ratios vary with them.
        """
        if len(self._ratios) < _MIN_SWEEPS:
            return []
        seen, ratios = self._summed(), np.array(self._ratios)
        untried = np.zeros(len(seen.near[0]), dtype=bool)
        poor = np.zeros(len(seen.near[0]), dtype=bool)
        for j, own in enumerate(seen.own[:, 0].T):
            with np.errstate(all="ignore"):
                if not own.any():
                    untried[j] = True
                elif (~own).sum() < _MIN_SWEEPS:
                    poor[j] = not np.std(ratios[own, j]) < 1
                elif own.sum() >= _MIN_SWEEPS:
                    change = ratios[~own, j][:, None] - ratios[own, j]
                    poor[j] = np.exp(np.minimum(change, 0.0)).mean() < _MIN_OVERLAP
        untried &= seen.not_far[0]
        reached = seen.near[0] | seen.always[0] | untried
        if reached.sum() < 2 or (if_stuck and not seen.always.any()):
            return []
        return [int(j) for j in np.flatnonzero(reached if (poor & reached).any() else untried)]

    def verdicts(self) -> list[Verdict]:
        """Return a verdict on each class whose pseudo-prior is poor."""
        if not self._ratios:
            return []
        is_plate = self._ratios[0].ndim == 2
        seen = self._summed()
        n_drawn, share = seen.n_drawn, seen.share
        known = (n_drawn >= _MIN_DRAWS) & np.isfinite(seen.total) & seen.near
        found = []
        for j in range(known.shape[-1]):
            k = np.nan
            if not is_plate and known[0, j]:
                k = pareto_k(seen.drawn[~seen.own[:, 0, j], 0, j])
            least = _MIN_DOUBTFUL_SHARE if k > _MAX_PARETO_K else _MIN_SHARE
            poor = known[:, j] & (share[:, j] < least)
            if poor.any():
                found.append(
                    Verdict(
                        j,
                        k,
                        float(share[poor, j].min()),
                        int(n_drawn[poor, j].max()),
                        int(poor.sum()),
                    )
                )
        return found

    def _summed(self) -> _Seen:
        """Summarize the ratios of every row and class."""
        ratios = np.stack(self._ratios).reshape(len(self._ratios), -1, self._ratios[0].shape[-1])
        classes = np.stack(self._classes).reshape(len(ratios), -1)
        own = classes[..., None] == np.arange(ratios.shape[-1])
        drawn = np.where(own, -np.inf, ratios)
        n_drawn = (~own).sum(axis=0)
        with np.errstate(all="ignore"):
            # in one pass: a plate has many of these numbers
            top = drawn.max(axis=0)
            weights = np.exp(drawn - np.where(np.isfinite(top), top, 0.0))
            sums = weights.sum(axis=0)
            total = np.log(sums) + top
            evidence = total - np.log(n_drawn)
            share = sums**2 / np.einsum("tij,tij->ij", weights, weights) / n_drawn
        near = self._in_reach(evidence, ratios, own, _MAX_GAP)
        not_far = self._in_reach(evidence, ratios, own, _MAX_UNTRIED)
        return _Seen(own, drawn, n_drawn, total, share, near, not_far, own.all(axis=0))

    def _in_reach(
        self, evidence: np.ndarray, ratios: np.ndarray, own: np.ndarray, gap: float
    ) -> np.ndarray:
        """Return which classes the chain might visit, ``(n_rows, n_classes)``."""
        # A class that is always active has no draws, only ratios at the chain's own positions.
        always = own.all(axis=0)
        found = evidence.copy()
        found[always] = np.median(ratios[:, always], axis=0)
        near = evidence > np.fmax.reduce(found, axis=1, keepdims=True) - gap
        if self.log_evidence is not None:
            believed = self.log_evidence.T.reshape(-1, self.log_evidence.shape[0])
            with np.errstate(all="ignore"):
                near |= believed > believed.max(axis=1, keepdims=True) - gap
        return np.asarray(near)

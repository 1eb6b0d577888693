"""An alarm for streams that change: it goes off when the evidence of new observations falls."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

import numpy as np
from scipy.special import ndtr, ndtri

from pymc_mcoem.validation import is_number, require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.run_state import ObservationRecord

__all__ = ["Drift", "DriftAlarm"]

_log = logging.getLogger("pymc_mcoem")

#: Number of alarms that are kept, the last ones.
MAX_ALARMS = 1_000
#: Mean number of alarms per observation of a run that was given no alarm. Its warnings were not
#: asked for, so they are rarer than those of an alarm that was.
UNASKED_RATE = 1e-5


@dataclass(frozen=True)
class Drift:
    """An alarm of `DriftAlarm`.

    Attributes
    ----------
    at : int
        Number of the score at which it went off, counted from 1.
    since : int
        Number of the score with which the fall began, by maximum likelihood.
    """

    at: int
    since: int


class DriftAlarm:
    r"""Alarm that goes off when the evidence of new observations falls.

    `OnlineEM` has one by itself, with one false alarm in 100,000 observations, which only logs.
    Another that is given, ``OnlineEM(..., callbacks=[alarm])``, replaces it, and keeps its alarms
    in `alarms`. The run goes on after an alarm. The score of an observation is its log-evidence
    under the parameters before it was learned; with a label it is larger, because the class is
    given, so a run has no alarm of its own once it is given labels.

    Parameters
    ----------
    false_alarm_rate : float
        Mean number of alarms per score while nothing changes, at most 0.01. With 10⁻⁴ there is one
        in 10,000 scores.
    fall : float
        The fall that is detected fastest, in standard deviations of the scores, at most 4. A fall
        of at least half of it is also detected within few scores, a smaller one later.
    window : int
        Number of previous scores with which each is compared.
    warm_up : int
        Number of scores at the beginning that are ignored, because they depend on the run's start.
        Ignoring all of them, ``DriftAlarm(warm_up=10**15)``, turns warnings off.
    random_seed : int
        Seed of the numbers that break ties.

    Attributes
    ----------
    alarms : deque of Drift
        The last 1,000 alarms.
    n_scores : int
        Number of scores so far, including the warm-up.
    level, threshold : float
        The cumulative sum, and the value above which it raises an alarm.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    See Also
    --------
    pymc_mcoem.schedules.StepSize : With ``floor=`` a run follows a stream that changes.

    Notes
    -----
    With R_n the rank of score n among itself and the last `window` scores, N_n of them in all, and
    U_n uniform on (0, 1),

    .. math::
        z_n = \Phi^{-1}\left(\frac{R_n - U_n}{N_n}\right), \qquad
        c_n = \max\left\{0,\; c_{n-1} - z_n - \tfrac{1}{2} \mathrm{fall}\right\},

    and there is an alarm when c_n exceeds the threshold h. While scores are exchangeable, z_n are
    independent and standard normal whatever the distribution of the scores, exactly until the
    window is full and closely thereafter. The mean number of scores until an alarm is therefore
    known: it solves an integral equation, and h is set to make it ``1 / false_alarm_rate``. An
    alarm empties the window, so that a level that stays low raises no second one. A rise is
    not detected, nor is a fall that takes many times the window.

    A new alarm that is given to a run, also to one that was loaded, begins with the evidence in the
    run's history. Up to 10,000 observations the history has all of them unless the run has another
    `thin`, and the alarm is as if it had been there from the beginning. A longer history has every
    second, fourth, ... of them, which fill the window as well. That of a merged run begins with the
    merging.

    References
    ----------
    Page (1954), Continuous inspection schemes, Biometrika 41, 100-115. Conover, Tercero-Gómez and
    Cordero-Franco (2017), The sequential normal scores transformation, Sequential Analysis 36,
    397-414.

    Examples
    --------
    >>> rng = np.random.default_rng(5)
    >>> alarm = DriftAlarm()
    >>> for score in [*rng.normal(size=800), *rng.normal(-2.0, size=100)]:
    ...     _ = alarm.update(score)
    >>> list(alarm.alarms)
    [Drift(at=809, since=801)]
    """

    def __init__(
        self,
        *,
        false_alarm_rate: float = 1e-4,
        fall: float = 1.0,
        window: int = 1_000,
        warm_up: int = 100,
        random_seed: int = 0,
    ) -> None:
        for name, value, most in (
            ("false_alarm_rate", false_alarm_rate, 0.01),
            ("fall", fall, 4.0),
        ):
            if not (is_number(value) and 0 < value <= most):
                raise ValueError(f"{name}: got {value!r}; give a number above 0, up to {most:g}.")
        require_whole("window", window, 20)
        require_whole("warm_up", warm_up, 0)
        self.false_alarm_rate, self.fall = float(false_alarm_rate), float(fall)
        self.window, self.warm_up = int(window), int(warm_up)
        self.threshold = _threshold(self.false_alarm_rate, self.fall)
        self.alarms: deque[Drift] = deque(maxlen=MAX_ALARMS)
        self.n_scores = 0
        self.level = 0.0
        self._rng = np.random.default_rng(random_seed)
        self._since = 0
        #: Scores to compare with, in their order and sorted.
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._told = False

    @classmethod
    def of_run(cls, n_start: int) -> Self:
        """Return the alarm of a run that was given none; `n_start` observations set its start.

        These observations fit the start better than later ones, so they are not compared with.
        """
        alarm = cls(false_alarm_rate=UNASKED_RATE, warm_up=max(100, n_start))
        alarm._told = True
        return alarm

    def __call__(self, records: Sequence[ObservationRecord]) -> None:
        """Add the log-evidence of the observations of a step; a new alarm reads the run's first."""
        run = getattr(getattr(records, "driver", None), "run", None)
        if run is not None and not self.n_scores:
            for number, score in run.history.evidence_before(records[0].number):
                self.n_scores = number
                self._raises(score)
            # a run that was merged has no history of what its parts learned
            self.n_scores = records[0].number - 1
        for record in records:
            self.update(record.log_evidence)

    def update(self, score: float) -> bool:
        """Add one score, and return whether it raises an alarm.

        Parameters
        ----------
        score : float
            More is better. NaN is skipped, and the log says so once.
        """
        self.n_scores += 1
        if np.isnan(score) and not self._told:
            self._told = True
            _log.warning(
                "Observation %d has no evidence, so DriftAlarm cannot use it; choose an E-step "
                "that gives evidence. Further ones are skipped silently.",
                self.n_scores,
            )
        raises = self._raises(score)
        if raises:
            drift = self.alarms[-1]
            _log.warning(
                "Observation %d: the evidence has fallen since about observation %d, so the stream "
                "may have changed. If it has, start a run from the learned parameters, with "
                "StepSize(floor=0.05) if it goes on changing: 'Streams that change' in "
                "docs/streams.md says what else to do. While nothing changes there is one such "
                "warning in %s observations; callbacks=[DriftAlarm(...)] sets how many.",
                drift.at,
                drift.since,
                f"{1 / self.false_alarm_rate:,.0f}",
            )
        return raises

    def _raises(self, score: float) -> bool:
        """Add the score of number `n_scores`, and return whether it raises an alarm."""
        if np.isnan(score) or self.n_scores <= self.warm_up:
            return False
        if not self.level:
            self._since = self.n_scores
        self.level = max(0.0, self.level - self._normal_score(float(score)) - self.fall / 2)
        if self.level <= self.threshold:
            return False
        self.alarms.append(Drift(self.n_scores, self._since))
        self.level = 0.0
        self._recent.clear()
        self._sorted.clear()
        return True

    def _normal_score(self, score: float) -> float:
        """Return z_n, and add the score to the window."""
        below, among = bisect_left(self._sorted, score), bisect_right(self._sorted, score)
        # in (0, 1], and the rank among scores that are alike is drawn
        place = (1.0 - self._rng.random()) * (among - below + 1)
        share = (below + place) / (len(self._sorted) + 1)
        if len(self._recent) == self.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(score)
        insort(self._sorted, score)
        return float(ndtri(share))


@lru_cache
def _threshold(rate: float, fall: float) -> float:
    """Return the threshold at which the mean number of scores until an alarm is 1 / rate."""
    low, high = 0.0, 1.0
    while mean_run_length(high, fall / 2) < 1 / rate:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        if mean_run_length(middle, fall / 2) < 1 / rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mean_run_length(threshold: float, drift: float) -> float:
    """Return the mean number of steps until c ← max(0, c + z − drift) exceeds a threshold.

    z is standard normal, and c begins at 0. From c = u the mean is L(u) = 1 + L(0) Φ(drift − u)
    + ∫ L(x) φ(x + drift − u) dx over (0, threshold), solved at the nodes of Gauss's rule.

    Examples
    --------
    >>> round(mean_run_length(0.0, 0.0), 6), round(mean_run_length(4.0, 0.5))
    (2.0, 335)
    """
    nodes, weights = np.polynomial.legendre.leggauss(24 + int(2 * threshold))
    nodes, weights = threshold * (nodes + 1) / 2, threshold * weights / 2
    begin = np.concatenate([[0.0], nodes])
    step = nodes - begin[:, None] + drift
    kernel = np.empty((begin.size, begin.size))
    kernel[:, 0] = ndtr(drift - begin)
    kernel[:, 1:] = weights * np.exp(-0.5 * step**2) / np.sqrt(2 * np.pi)
    return float(np.linalg.solve(np.eye(begin.size) - kernel, np.ones(begin.size))[0])

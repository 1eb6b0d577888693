"""Schedules of the drivers: step sizes, update times, burst lengths, temperatures.

Each is a frozen dataclass that is called with a number n, counted from 1. It can be evaluated on
its own, stored with a run, and replaced by any function of n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from pymc_mcoem.validation import is_number, is_whole, require_whole

__all__ = ["Annealing", "BurstLength", "BurstSize", "PhasedStepSize", "StepSize", "UpdateSchedule"]


@dataclass(frozen=True)
class StepSize:
    r"""Gain ϱ_n of the stochastic approximation, with ϱ_1 = 1.

    .. math:: \varrho_n = \max\left\{\left(\frac{1 + o}{n + o}\right)^{\kappa}, f\right\}

    Parameters
    ----------
    exponent : float
        κ in (0.5, 1]. Convergence needs squared gains with a finite sum (κ > 0.5) and gains with
        an infinite sum (κ ≤ 1). Exponent 1 without offset is exactly 1/n, the running mean.
    offset : float
        o ≥ 0. The gain stays near 1 for about o more observations, so that statistics at poor
        parameters are forgotten.
    floor : float
        f in [0, 1), below which the gain never falls. With a floor above zero, the parameters
        follow a changing stream and no longer converge.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Notes
    -----
    Label ``eq:estep_SAOEM`` of the paper. n counts steps, which are observations unless there
    are mini-batches.

    Examples
    --------
    >>> [round(StepSize()(n), 3) for n in (1, 2, 10)]
    [1.0, 0.66, 0.251]
    >>> StepSize(exponent=1)(4)
    0.25
    """

    exponent: float = 0.6
    offset: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        """Check the values."""
        if not (is_number(self.exponent) and 0.5 < self.exponent <= 1):
            raise ValueError(
                f"exponent: got {self.exponent}; choose one in (0.5, 1], as 0.6 (fast to forget) "
                "or 1 (a running mean)."
            )
        if not (is_number(self.offset) and self.offset >= 0):
            raise ValueError(f"offset: got {self.offset}; choose a finite number, 0 or more.")
        if not (is_number(self.floor) and 0 <= self.floor < 1):
            raise ValueError(f"floor: got {self.floor}; choose one in [0, 1), as 0.02.")

    def __call__(self, n: int) -> float:
        """Return the gain of step `n`, counted from 1."""
        check_number(n)
        return max(float(((1 + self.offset) / (n + self.offset)) ** self.exponent), self.floor)

    @classmethod
    def paper(cls) -> StepSize:
        """Return n^−0.6; the paper gives no exponent."""
        return cls(exponent=0.6)


@dataclass(frozen=True)
class PhasedStepSize:
    r"""Gain of batch stochastic approximation: 1 at first, then decreasing.

    .. math:: \gamma_k = 1 \; (k \le k_0), \qquad \gamma_k = (k - k_0)^{-\kappa} \; (k > k_0)

    Parameters
    ----------
    n_constant : int
        k_0, number of iterations with gain 1, at least one. They forget the start and keep the
        noise of a single iteration.
    exponent : float
        κ in (0.5, 1], with which the noise is then averaged out.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Notes
    -----
    The two phases of Kuhn and Lavielle (2004).

    Examples
    --------
    >>> [round(PhasedStepSize(2)(k), 3) for k in (1, 2, 3, 4, 12)]
    [1.0, 1.0, 1.0, 0.616, 0.2]
    """

    n_constant: int = 10
    exponent: float = 0.7

    def __post_init__(self) -> None:
        """Check the values."""
        if not is_whole(self.n_constant) or self.n_constant < 1:
            raise ValueError(
                f"n_constant: got {self.n_constant!r}; give a whole number from 1, because the "
                "first gain is 1."
            )
        if not (is_number(self.exponent) and 0.5 < self.exponent <= 1):
            raise ValueError(
                f"exponent: got {self.exponent}; choose one in (0.5, 1], as 0.7 (fast to forget) "
                "or 1 (a running mean)."
            )

    def __call__(self, n: int) -> float:
        """Return the gain of iteration `n`, counted from 1."""
        check_number(n)
        return float(max(n - self.n_constant, 1) ** -self.exponent)


@dataclass(frozen=True)
class Annealing:
    """Temperature of the simulation, decreasing to 1 by equal factors.

    Parameters
    ----------
    temperature : float
        Temperature of the first iteration, at least 1.
    n_iterations : int
        Number of iterations until it is 1.

    Raises
    ------
    ValueError
        If a value is outside its range.

    Notes
    -----
    At temperature T the likelihood is raised to the power 1/T, so that latents and classes can
    move between modes that are separated later. See `Family.anneal`.

    Examples
    --------
    >>> [Annealing(4.0, n_iterations=2)(k) for k in (1, 2, 3, 4)]
    [4.0, 2.0, 1.0, 1.0]
    """

    temperature: float = 4.0
    n_iterations: int = 10

    def __post_init__(self) -> None:
        """Check the values."""
        if not (is_number(self.temperature) and self.temperature >= 1):
            raise ValueError(
                f"temperature: got {self.temperature}; give a finite number from 1, as 4."
            )
        require_whole("n_iterations", self.n_iterations, 1)

    def __call__(self, n: int) -> float:
        """Return the temperature of iteration `n`, counted from 1."""
        check_number(n)
        left = max(1 - (n - 1) / self.n_iterations, 0.0)
        return float(self.temperature**left)


@dataclass(frozen=True)
class UpdateSchedule:
    """Numbers n of observations after which the parameters are maximized.

    Parameters
    ----------
    times : tuple of int
        The first update times, increasing.
    every : int
        After the last of `times`, every `every`-th observation; 0 for none.

    Raises
    ------
    ValueError
        If `times` is not increasing from 1 or more, or `every` is negative.

    Notes
    -----
    A class that is not ready at an update (see `Family.ready`) keeps all parameters but its weight.
    With mini-batches an update comes at the end of the batch that reaches its time.

    Examples
    --------
    >>> schedule = UpdateSchedule.paper()
    >>> [n for n in range(1, 104) if schedule(n)]
    [50, 75, 100, 101, 102, 103]
    """

    times: tuple[int, ...] = (10, 15, 20)
    every: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        object.__setattr__(self, "times", tuple(int(time) for time in self.times))
        if any(after <= before for before, after in pairwise((0, *self.times))):
            raise ValueError(
                f"times: got {self.times}; give increasing numbers of observations from 1 on."
            )
        if self.every < 0:
            raise ValueError(f"every: got {self.every}; give 1 or more, or 0 for no more updates.")

    def __call__(self, n: int) -> bool:
        """Return whether there is an update at `n`, counted from 1."""
        check_number(n)
        last = self.times[-1] if self.times else 0
        return n in self.times or (self.every > 0 and n > last and (n - last) % self.every == 0)

    @classmethod
    def never(cls) -> UpdateSchedule:
        """Return a schedule without updates: statistics are averaged, parameters stay."""
        return cls(times=(), every=0)

    @classmethod
    def paper(cls) -> UpdateSchedule:
        """Return updates at 50, 75, and every observation from 100 on (``subsec:5:2``)."""
        return cls(times=(50, 75, 100))


@dataclass(frozen=True)
class BurstSize:
    """Length of one burst: `tune` sweeps that are discarded, then `draws` that are kept."""

    draws: int
    tune: int


@dataclass(frozen=True)
class BurstLength:
    """Number of sweeps of the sampler for each observation.

    Parameters
    ----------
    draws : int
        Number of sweeps that are kept, after tuning, as PyMC counts them. The paper's m_n
        counts all sweeps, ``tune + draws``.
    tune : int
        Number of sweeps before them that are discarded.
    later : tuple of (int, int)
        Pairs ``(n, draws)``: the number of draws from observation n on.

    Raises
    ------
    ValueError
        If a length is not positive, `tune` is negative, or `later` is not increasing in n.

    Examples
    --------
    >>> BurstLength.paper()(100), BurstLength.paper()(101)
    (BurstSize(draws=100, tune=100), BurstSize(draws=400, tune=100))
    """

    draws: int = 100
    tune: int = 50
    later: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        if not (is_whole(self.draws) and is_whole(self.tune)):
            raise ValueError(f"draws: got {self.draws!r}, tune {self.tune!r}; give whole numbers.")
        later = tuple((int(first), int(draws)) for first, draws in self.later)
        object.__setattr__(self, "later", later)
        if self.tune < 0:
            raise ValueError(f"tune: got {self.tune}; give 0 or more.")
        if min((self.draws, *(draws for _, draws in later))) < 1:
            raise ValueError(
                f"draws: got {self.draws}, later {later}; at least one draw must be kept."
            )
        firsts = (1, *(first for first, _ in later))
        if any(after <= before for before, after in pairwise(firsts)):
            raise ValueError(f"later: got {later}; give increasing numbers n, from 2 on.")

    def __call__(self, n: int) -> BurstSize:
        """Return the length of the burst for observation `n`, counted from 1."""
        check_number(n)
        draws = self.draws
        for first, more in self.later:
            if n >= first:
                draws = more
        return BurstSize(draws=draws, tune=self.tune)

    @classmethod
    def paper(cls) -> BurstLength:
        """Return m_n = 200 sweeps up to n = 100, then 500, each including 100 of tuning."""
        return cls(draws=100, tune=100, later=((101, 400),))


def check_number(n: int) -> None:
    """Refuse an observation or step number below 1."""
    if n < 1:
        raise ValueError(f"n: got {n}; observations and steps are counted from 1.")


def update_is_due(schedule: Callable[[int], bool], after: int, until: int) -> bool:
    """Return whether `schedule` has an update at a number above `after`, up to `until`."""
    return any(bool(schedule(n)) for n in range(after + 1, until + 1))

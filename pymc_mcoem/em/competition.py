"""Competition of several short runs, a remedy for poor starts: the best one continues."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.run_state import Pending
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.runs.workers import ExecutorError
from pymc_mcoem.validation import is_whole, require_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pymc_mcoem.em.family import Family

__all__ = ["Competition", "compete"]

_log = logging.getLogger("pymc_mcoem")


@dataclass(frozen=True)
class Competition:
    """Result of runs that competed.

    Attributes
    ----------
    winner : OnlineEM
        The run with the highest evidence; continue it with `OnlineEM.partial_fit`.
    log_evidence : ndarray of shape (n_runs,)
        Mean log-evidence of the last `n_scored` observations; −inf for a run that failed.
    failures : dict of int to str
        Errors of the runs that failed, by run number.
    """

    winner: OnlineEM
    log_evidence: np.ndarray
    failures: dict[int, str]

    @property
    def number(self) -> int:
        """Number of the winner among the runs, counted from 0."""
        return int(np.argmax(self.log_evidence))


def compete(
    family: Family,
    observations: Any,
    *,
    n_runs: int = 5,
    n_scored: int | None = None,
    as_in_paper: bool = False,
    random_seed: int | Sequence[int] | None = None,
    progressbar: bool = True,
    **options: Any,
) -> Competition:
    """Let several runs learn the same observations and return the one with the most evidence.

    Online EM converges to a local optimum, which depends on the first parameters. The runs have
    different seeds, hence different starts, and see the same observations in the same order, so
    that their evidence can be compared.

    Parameters
    ----------
    family : Family
        The model.
    observations : array_like or iterable
        The first observations of the stream, as `OnlineEM.partial_fit` takes them. There must
        be finitely many; they are held in memory until all runs have seen them.
    n_runs : int
        Number of runs.
    n_scored : int, optional
        Number of observations, the last ones, whose evidence decides. Default: half of them.
    as_in_paper : bool
        Whether the runs are made by `OnlineEM.as_in_paper`.
    random_seed : int or sequence of int, optional
        Run k has the seed ``(random_seed, k)``, which its history records. None takes a seed from
        the operating system.
    progressbar : bool
        As for `OnlineEM`; the winner keeps it.
    **options
        Further arguments of `OnlineEM`, or of `OnlineEM.as_in_paper`. ``start`` is
        ``"random"`` by default, because runs that all start by k-means differ little.

    Returns
    -------
    Competition

    Raises
    ------
    ValueError
        If there are no observations, if a number is out of range, or if the E-step reports no
        evidence, as with pilot moments.
    RuntimeError
        If every run failed, or if the executor failed.

    Notes
    -----
    Cost: `n_runs` times that of learning the observations; the E-step is compiled once. The
    evidence is the E-step's estimate of log p(y) under the parameters before y was learned, so it
    is predictive, unless the stream repeats observations. The paper starts at random (sections
    ``subsec:5:1`` and ``subsec:5:2``) and suggests other starts.

    Examples
    --------
    >>> import numpy as np, pymc_mcoem as mcoem
    >>> curves = mcoem.datasets.simulate_curves(100, random_seed=1).curves
    >>> mixture = mcoem.TemplateMixture.for_curves(curves.point, 2)
    >>> found = compete(mixture, curves, n_runs=3, random_seed=1)  # doctest: +SKIP
    >>> em = found.winner.partial_fit(more_curves)  # doctest: +SKIP
    """
    require_whole("n_runs", n_runs, 1)
    # copies, like those in the queue of a run, because an iterable may reuse its arrays
    held = [Pending.of(each, 0).observation for each in family.iterate(observations)]
    if not held:
        raise ValueError("observations: got none; pass the first ones of the stream.")
    scored = max(len(held) // 2, 1) if n_scored is None else n_scored
    if not is_whole(scored) or not 1 <= scored <= len(held):
        raise ValueError(
            f"n_scored: got {n_scored!r}; give a whole number from 1 to the {len(held)} "
            "observations."
        )
    entropy = seed_entropy(random_seed)
    words = entropy if isinstance(entropy, list) else [entropy]
    options = {"start": "random", **options}
    # at most as many as there are, so that every run has started before the scored ones
    options.setdefault("n_start", max(1, min(50, len(held) - scored)))
    make = OnlineEM.as_in_paper if as_in_paper else OnlineEM
    runs: list[OnlineEM] = []
    evidence = np.full(n_runs, -np.inf)
    failures: dict[int, str] = {}
    for number in range(n_runs):
        run = make(family, random_seed=[*words, number], progressbar=progressbar, **options)
        if runs:  # all runs have one family and the same settings: they share one compiled E-step
            run.run.executor = runs[0].run.executor
        runs.append(run)
        try:
            run.partial_fit(held)
        except ExecutorError:
            raise
        except (ArithmeticError, RuntimeError) as error:
            failures[number] = str(error)
            continue
        records = run.history["observations"].to_dataset()
        found = records["log_evidence"].to_numpy()[-scored:]
        if np.isnan(found).any():
            raise ValueError(
                "e_step: it reports no evidence, by which runs are compared; give one that does, "
                "such as CarlinChibBurst with Laplace or PriorCovariance pseudo-priors."
            )
        evidence[number] = found.mean()
    if len(failures) == n_runs:
        raise RuntimeError(
            f"compete: all {n_runs} runs failed, the first with: {failures[0]} Try other "
            "settings with one OnlineEM."
        )
    for number, reason in failures.items():
        _log.warning("Run %d of %d dropped out: %s", number, n_runs, reason)
    winner = runs[int(np.argmax(evidence))]
    family.set_model_parameters(family.check_parameters(winner.last_parameters))
    return Competition(winner=winner, log_evidence=evidence, failures=failures)

"""Help in choosing the number of classes: running evidence of runs on one stream."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np
import pandas as pd
import xarray as xr

from pymc_mcoem.em.history import recorded_names

__all__ = ["compare_evidence"]


def compare_evidence(
    histories: Mapping[Hashable, xr.DataTree], *, window: int | None = None
) -> pd.DataFrame:
    """Compare runs on one stream, as with other numbers of classes, by their evidence.

    Parameters
    ----------
    histories : mapping of {hashable : DataTree}
        `OnlineEM.history` of each run, by a name or the number of classes. All have learnt the
        same observations in the same order.
    window : int, optional
        The last so many observations are compared. Default: the second half.

    Returns
    -------
    DataFrame, the run with the largest ``penalised`` first
        ``log_evidence``, the mean of log p(y) of those observations, each before it was learnt,
        and its standard error ``se``; ``difference`` from the first run, observation by
        observation, and its standard error ``difference_se``; ``n_parameters``;
        ``penalised``, log_evidence − n_parameters log(n) / (2 n), which is −BIC / (2 n) with n
        the observations learnt.

    Raises
    ------
    ValueError
        If there are fewer than two runs, they have not learnt the same number of observations,
        an E-step reports no evidence, or the window has fewer than two observations.

    Notes
    -----
    Each observation is judged by parameters that had not seen it, so that ``log_evidence`` is
    predictive and needs no penalty to be honest; the penalty is for those who prefer few classes.
    Its limits: (1) evidence is the E-step's own estimate, with Laplace pseudo-priors a normal
    approximation in each class, whose error need not be the same for every number of classes;
    (2) one run is one local optimum: compare the best of several starts (`compete`) of each;
    (3) BIC wants independent data, a regular model, and the maximum of the likelihood, and mixtures
    with classes that could be left out are not regular; (4) coefficients that a prior holds are
    counted in full, so that the penalty is too large; (5) a difference below twice its error is
    none. Look at the templates: two of them alike say more than any of the numbers.

    References
    ----------
    Dawid (1984), Statistical theory: the prequential approach, Journal of the Royal Statistical
    Society A 147, 278-292. Schwarz (1978), Estimating the dimension of a model, Annals of
    Statistics 6, 461-464.

    Examples
    --------
    >>> n = np.arange(1, 101)
    >>> histories = {}
    >>> for n_classes, level in ((1, -3.0), (2, -2.0)):
    ...     path = xr.Dataset({"weights": (("step", "class"), np.ones((1, n_classes)))})
    ...     seen = {"log_evidence": ("observation", level + 0.1 * np.cos(n))}
    ...     seen = xr.Dataset(seen, {"observation": n})
    ...     tree = {"online_em": path, "observations": seen}
    ...     histories[n_classes] = xr.DataTree.from_dict(tree)
    >>> compare_evidence(histories)[["log_evidence", "difference", "n_parameters"]].round(1)
       log_evidence  difference  n_parameters
    2          -2.0         0.0             1
    1          -3.0        -1.0             0
    """
    if len(histories) < 2:
        raise ValueError(f"histories: got {len(histories)}; give at least two runs.")
    seen = {
        name: history["observations"]["log_evidence"].to_series()
        for name, history in histories.items()
    }
    last = {name: int(series.index[-1]) if len(series) else 0 for name, series in seen.items()}
    if len(set(last.values())) > 1 or not min(last.values()):
        raise ValueError(
            f"histories: the runs have learnt {last} observations; compare runs that learnt the "
            "same ones."
        )
    n = next(iter(last.values()))
    size = n - n // 2 if window is None else window
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise ValueError(f"window: got {window!r}; give a whole number of at least 2.")
    # the observations that all histories keep
    together = pd.DataFrame(seen)
    together = together[together.index > n - size]
    for name, own in seen.items():
        if not np.isfinite(own[own.index > n - size]).all():
            raise ValueError(
                f"histories: that of {name!r} has no evidence; take an E-step that reports it, as "
                "CarlinChibBurst with Laplace or PriorCovariance pseudo-priors."
            )
    together = together.dropna()
    if len(together) < 2:
        raise ValueError(
            f"window: the runs share {len(together)} records among the last {size} observations; "
            "give a longer window."
        )
    counts = {name: _count_parameters(history) for name, history in histories.items()}
    frame = pd.DataFrame({"log_evidence": together.mean(), "se": together.sem()})
    frame["n_parameters"] = pd.Series(counts)
    frame["penalised"] = frame["log_evidence"] - frame["n_parameters"] * np.log(n) / (2 * n)
    frame = frame.sort_values("penalised", ascending=False)
    apart = together.sub(together[frame.index[0]], axis=0)
    frame["difference"], frame["difference_se"] = apart.mean(), apart.sem()
    return frame[["log_evidence", "se", "difference", "difference_se", "n_parameters", "penalised"]]


def _count_parameters(history: xr.DataTree) -> int:
    """Return the number of free parameters: weights add up to one."""
    path = history["online_em"].to_dataset().isel(step=-1)
    sizes = {name: values.size for name, values in path.data_vars.items()}
    total = sum(size for name, size in sizes.items() if name not in recorded_names())
    return int(total - ("weights" in sizes))

"""Evidence along runs, hints when to stop, and comparison of runs and their classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from pymc_mcoem.em.history import recorded_names

__all__ = [
    "ClassAlignment",
    "StoppingHint",
    "align_classes",
    "compare_runs",
    "running_evidence",
    "stopping_hint",
]


def running_evidence(history: Any, *, window: int = 100) -> xr.DataArray:
    """Return the moving average of the log-evidence along a run.

    In a single pass over a stream, the evidence of an observation is computed with the parameters
    before it was learned. It then measures prediction, since no observation is used twice. For
    `SAEM`, and in later passes over the same data, it measures fit.

    Parameters
    ----------
    history : DataTree or OnlineEM
        As ``em.history``.
    window : int
        Number of observations in each mean; fewer at the beginning.

    Returns
    -------
    DataArray
        With dimension ``observation``. The means skip NaN, which E-steps without evidence give.

    Raises
    ------
    ValueError
        If `window` is less than 2 or nothing was learned.

    Examples
    --------
    >>> records = xr.Dataset({"log_evidence": ("observation", [-4.0, -2.0, -1.0, -1.0])})
    >>> history = xr.DataTree.from_dict({"observations": records})
    >>> running_evidence(history, window=2).values
    array([-4. , -3. , -1.5, -1. ])
    """
    if window < 2:
        raise ValueError(f"window: got {window}; give 2 observations or more.")
    evidence = _observations(history)["log_evidence"]
    rolled: xr.DataArray = evidence.rolling(observation=window, min_periods=1).mean()
    return rolled.rename("running_evidence")


@dataclass(frozen=True)
class StoppingHint:
    """Result of `stopping_hint`.

    Attributes
    ----------
    could_stop : bool
    reason : str
    gain, gain_mcse : float
        Mean log-evidence of the last window minus that of the one before, and its Monte Carlo
        error.
    change : float
        Largest relative change of a parameter between the means of the two windows.
    """

    could_stop: bool
    reason: str
    gain: float
    gain_mcse: float
    change: float


def stopping_hint(
    history: Any, *, window: int | None = None, tolerance: float = 0.02
) -> StoppingHint:
    """Return a hint whether a run still learns; it does not stop the run.

    The last two windows of observations are compared. A run could stop when
    the evidence of the second is not above that of the first by more than twice its Monte Carlo
    error, and no parameter's mean over the second differs from that over the first by more
    than `tolerance` of the parameter's size.

    Parameters
    ----------
    history : DataTree, OnlineEM or SAEM
        As ``em.history``.
    window : int, optional
        Number of observations in each of the two windows; for `SAEM`, of iterations. Default: 200,
        or half of a shorter run.
    tolerance : float
        Limit of the relative change of each parameter: root mean square change over root mean
        square value.

    Returns
    -------
    StoppingHint

    Raises
    ------
    ValueError
        If `window` is less than 10 or `tolerance` is not positive.

    Notes
    -----
    The evidence varies much between observations: with a window of 200 and a standard deviation
    of 10 nats, gains under 2 nats are not detected. A decreasing gain ϱ_n makes the change smaller
    whether or not θ is near its limit, so look at both. There are no standard errors of θ, because
    the scores of a single pass, at changing parameters, do not give them; repeat the run with other
    seeds.

    Examples
    --------
    >>> rng = np.random.default_rng(3)
    >>> n = np.arange(1, 401)
    >>> path = xr.Dataset({"level": ("step", 1 - np.exp(-n / 10)), "observation": ("step", n)})
    >>> seen = xr.Dataset(
    ...     {"log_evidence": ("observation", rng.normal(size=400))}, coords={"observation": n}
    ... )
    >>> history = xr.DataTree.from_dict({"steps": path, "observations": seen})
    >>> stopping_hint(history, window=100).could_stop
    True
    """
    if window is not None and window < 10:
        raise ValueError(f"window: got {window}; give 10 observations or more.")
    if not tolerance > 0:
        raise ValueError(f"tolerance: got {tolerance}; give a positive number.")
    records, path = _observations(history), _group(history, "steps")
    what, number = "observations", "observation"
    if _driver(history) == "SAEM":
        # An iteration covers all observations, and its mean evidence is one value.
        what, number = "iterations", "step"
        records = path.isel(step=path["step"].values > 0)
    learned_at = records[number].values
    n_learned = int(learned_at[-1])
    if window is None:
        window = max(10, min(200, n_learned // 2))
    if n_learned < 2 * window:
        reason = f"{n_learned} {what} are fewer than two windows of {window}"
        return StoppingHint(False, reason, np.nan, np.nan, np.nan)
    early = (learned_at > n_learned - 2 * window) & (learned_at <= n_learned - window)
    late = learned_at > n_learned - window
    evidence = records["log_evidence"].values
    gain, error = _difference(evidence[late], evidence[early])
    change, name = _change(path, path[number].values, n_learned, window)
    if np.isnan(change):
        reason = "the history keeps no parameters in one of the windows; raise keep= or window="
    elif gain > 2 * error:
        reason = f"the evidence still grows, by {gain:.3g} ± {error:.2g} an observation"
    elif change > tolerance:
        reason = f"{name} still moves, by {change:.2%} from window to window"
    else:
        reason = (
            f"the evidence grows by {gain:.2g} ± {error:.2g} an observation, and no parameter "
            f"moves by more than {change:.2%}"
        )
        return StoppingHint(True, reason, gain, error, change)
    return StoppingHint(False, reason, gain, error, change)


def compare_runs(runs: Mapping[str, Any], *, first: int = 1) -> pd.DataFrame:
    """Compare runs over one stream, such as with different numbers of classes, by prediction.

    Parameters
    ----------
    runs : mapping of str to DataTree or OnlineEM
        Runs over the same observations in the same order.
    first : int
        Number of the first observation that counts, from 1. Those before determined the start.

    Returns
    -------
    DataFrame
        A row for each ``run``, best first, with columns ``log_evidence``, the mean over
        observations; ``difference`` from the best and its error ``difference_mcse``, from paired
        observations; ``n_parameters``; ``bic``, the log-evidence of all observations minus half the
        logarithm of their number for each parameter, so that more is better; ``n_observations``.

    Raises
    ------
    ValueError
        If there are fewer than two runs, one is of `SAEM`, they have no observations in
        common from `first` on, or they have no evidence.

    Notes
    -----
    The evidence of an observation was computed before the observation was learned. More classes are
    therefore not rewarded for fitting what they saw: ``log_evidence`` needs no penalty, and
    ``bic``, which has one, is the more cautious of the two. Limits: the burst's evidence is
    Laplace's approximation, best for small warps; early observations depend on the start
    more than on the model; priors on θ are not counted; the number of classes that predicts best
    is that of clusters worth separating at this sample size, not of kinds in the world. Different
    seeds end in different optima: compare several runs of each model.

    Examples
    --------
    >>> def run(level, n):
    ...     rng = np.random.default_rng(4)
    ...     seen = {"log_evidence": ("observation", level + rng.normal(size=50))}
    ...     coords = {"observation": np.arange(1, 51)}
    ...     return xr.DataTree.from_dict(
    ...         {
    ...             "steps": xr.Dataset({"weights": (("step", "class"), np.ones((1, n)))}),
    ...             "observations": xr.Dataset(seen, coords=coords),
    ...         }
    ...     )
    >>> compare_runs({"two": run(-3.0, 2), "three": run(-1.0, 3)}).index.tolist()
    ['three', 'two']
    """
    if len(runs) < 2:
        raise ValueError(f"runs: got {len(runs)}; give at least two.")
    batch = [str(name) for name, run in runs.items() if _driver(run) == "SAEM"]
    if batch:
        raise ValueError(
            f"runs: {batch} are of SAEM, which visits every observation repeatedly, so that "
            "its evidence measures fit and not prediction; give runs of OnlineEM."
        )
    evidence = xr.concat(
        [_observations(run)["log_evidence"].reset_coords(drop=True) for run in runs.values()],
        dim="run",
        join="inner",
    ).assign_coords(run=list(runs))
    evidence = evidence.sel(observation=evidence["observation"] >= first)
    if not evidence.sizes["observation"] > 1:
        raise ValueError(
            f"runs: {list(runs)} have no two observations from number {first} on in common; give "
            "runs over one stream."
        )
    empty = [str(name) for name in evidence["run"].values if evidence.sel(run=name).isnull().any()]
    if empty:
        raise ValueError(
            f"runs: {empty} have observations without evidence; use an E-step that gives it."
        )
    n = evidence.sizes["observation"]
    sizes = xr.DataArray([_n_parameters(_group(run, "steps")) for run in runs.values()], dims="run")
    mean = evidence.mean("observation")
    paired = evidence - evidence.isel(run=int(mean.argmax("run")))
    columns = {
        "log_evidence": mean,
        "difference": paired.mean("observation"),
        "difference_mcse": paired.std("observation", ddof=1) / np.sqrt(n),
        "n_parameters": sizes,
        "bic": n * mean - 0.5 * sizes * np.log(n),
    }
    table = pd.DataFrame({name: each.values for name, each in columns.items()}, evidence["run"])
    table["n_observations"] = n
    return table.rename_axis("run").sort_values("log_evidence", ascending=False, kind="stable")


class ClassAlignment(NamedTuple):
    """Result of `align_classes`: the partner of each class.

    Attributes
    ----------
    order : ndarray of int, shape (n_classes_a,)
        ``templates_b[order]`` are the templates of b in the order of a; -1 for a class of a
        without a partner, if b has fewer classes.
    distance : ndarray of shape (n_classes_a,)
        Distance of each template of a from its partner; NaN without one.
    """

    order: np.ndarray
    distance: np.ndarray


def align_classes(
    templates_a: xr.DataArray | ArrayLike,
    templates_b: xr.DataArray | ArrayLike,
    *,
    metric: str = "euclidean",
) -> ClassAlignment:
    """Match the classes of two runs by the distance of their templates.

    The result is the one-to-one match with the smallest sum of distances.

    Parameters
    ----------
    templates_a, templates_b : DataArray with dimension class, or array_like (n_classes, ...)
        Templates on the same grid, as `template_images` returns them.
    metric : str
        A metric of ``scipy.spatial.distance.cdist``.

    Returns
    -------
    ClassAlignment

    Raises
    ------
    ValueError
        If grids differ or a value is not finite.

    Notes
    -----
    There is a best match even if the runs found different classes: look at `distance`.

    Examples
    --------
    >>> a = np.array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    >>> align_classes(a, a[[2, 0, 1]] + 0.1).order
    array([1, 2, 0])
    """
    first, second = _as_rows(templates_a, "templates_a"), _as_rows(templates_b, "templates_b")
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"templates_b: got templates of shape {second.shape[1:]}, and templates_a has "
            f"{first.shape[1:]}; give both on one grid."
        )
    distances = cdist(first.reshape(len(first), -1), second.reshape(len(second), -1), metric=metric)
    rows, columns = linear_sum_assignment(distances)
    order = np.full(len(first), -1)
    distance = np.full(len(first), np.nan)
    order[rows], distance[rows] = columns, distances[rows, columns]
    return ClassAlignment(order, distance)


def _group(history: Any, name: str) -> xr.Dataset:
    tree = getattr(history, "history", history)
    if name not in tree.children:
        raise ValueError(f"history: it has no group {name!r}; give em.history of a run.")
    found: xr.Dataset = tree[name].to_dataset()
    return found


def _driver(history: Any) -> str:
    return str(getattr(history, "history", history).attrs.get("driver", "OnlineEM"))


def _observations(history: Any) -> xr.Dataset:
    records = _group(history, "observations")
    if not records.sizes.get("observation"):
        raise ValueError("history: nothing was learned yet; call partial_fit or fit first.")
    return records


def _difference(late: np.ndarray, early: np.ndarray) -> tuple[float, float]:
    late, early = late[np.isfinite(late)], early[np.isfinite(early)]
    if min(len(late), len(early)) < 2:
        return 0.0, np.inf
    error = np.sqrt(late.var(ddof=1) / len(late) + early.var(ddof=1) / len(early))
    return float(late.mean() - early.mean()), float(error)


def _change(
    path: xr.Dataset, learned: np.ndarray, n_learned: int, window: int
) -> tuple[float, str]:
    """Return the largest relative change of a parameter between windows, and its name."""
    early = (learned > n_learned - 2 * window) & (learned <= n_learned - window)
    late = learned > n_learned - window
    changes = {"no parameter": 0.0}
    if not (early.any() and late.any()):
        return np.nan, ""
    for name in _parameters(path):
        values = path[name].transpose("step", ...).values.reshape(len(learned), -1)
        before, after = values[early].mean(axis=0), values[late].mean(axis=0)
        size = np.sqrt(np.mean(before**2))
        changes[name] = float(np.sqrt(np.mean((after - before) ** 2)) / max(size, 1e-300))
    largest = max(changes, key=lambda name: changes[name])
    return changes[largest], largest


def _parameters(path: xr.Dataset) -> list[str]:
    return [str(name) for name in path.data_vars if name not in recorded_names()]


def _n_parameters(path: xr.Dataset) -> int:
    total = sum(int(path[name].isel(step=-1).size) for name in _parameters(path))
    # weights sum to one, so one of them is not free
    return total - ("weights" in path)


def _as_rows(templates: Any, name: str) -> np.ndarray:
    if isinstance(templates, xr.DataArray):
        if "class" not in templates.dims:
            raise ValueError(
                f"{name}: got dimensions {templates.dims}; give a DataArray with dimension 'class'."
            )
        templates = templates.transpose("class", ...).values
    values = np.asarray(templates, dtype=np.float64)
    if values.ndim < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"{name}: got an array of shape {values.shape}; give finite values of shape "
            "(n_classes, ...)."
        )
    return values

"""Scores of candidates for the number of classes: errors, agreement of starts, and the choice."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

__all__ = [
    "agreement_of_starts",
    "candidate_table",
    "doubts",
    "doubts_of_data",
    "in_words",
    "mean_error",
    "named_candidate",
    "shared_of_classes",
    "splits_of",
]

#: Logarithm of the odds by which a class is to explain its observations better than others do, so
#: that it counts although starts disagree.
DECISIVE = np.log(100.0)

#: An observation lies between classes if the most probable one has less.
CERTAIN = 0.9

#: With fewer scored observations a number is not sure.
FEW = 30

#: Columns of `ClassCount.splits`.
SPLIT = ("n_classes", "split", "into", "gain", "error")


def mean_error(differences: np.ndarray) -> float:
    """Return the standard error of a mean whose terms may be autocorrelated.

    The weights of lags up to n^{1/3} fall linearly (Newey and West). Terms that repel each other
    are not trusted to make the mean surer: the error is at least that of independent terms.

    Examples
    --------
    >>> alternating = np.tile([1.0, -1.0], 50)
    >>> round(mean_error(alternating), 3), round(mean_error(np.sort(alternating)), 3)
    (0.1, 0.218)
    """
    n = len(differences)
    away = differences - differences.mean()
    variance = float(away @ away) / n
    lags = range(1, int(np.cbrt(n)) + 1)
    more = sum((1 - lag / (len(lags) + 1)) * float(away[lag:] @ away[:-lag]) / n for lag in lags)
    return float(np.sqrt((variance + 2 * max(more, 0.0)) / n))


def shared_of_classes(first: np.ndarray, second: np.ndarray) -> float:
    """Return what two assignments have in common of the class that they share least.

    It is the smallest, over the classes of both, of the largest |A ∩ B| / |A ∪ B| with a class of
    the other.

    Examples
    --------
    >>> shared_of_classes(np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0]))
    1.0
    >>> shared_of_classes(np.array([0, 0, 0, 0]), np.array([0, 0, 0, 1]))
    0.25
    """
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1.0)
    sizes = table.sum(axis=1, keepdims=True), table.sum(axis=0, keepdims=True)
    shared = table / np.maximum(sizes[0] + sizes[1] - table, 1.0)
    best = [shared.max(axis=1)[sizes[0][:, 0] > 0], shared.max(axis=0)[sizes[1][0] > 0]]
    return float(np.concatenate(best).min())


def agreement_of_starts(assigned: np.ndarray, best: int) -> tuple[float, float]:
    """Return the adjusted Rand index of the best start and the most similar other one.

    Also what these two have in common of the class on which they agree least. Both are NaN if
    there is no other start.

    Parameters
    ----------
    assigned : ndarray of int, shape (n_starts, n_observations)
        Most probable classes; -1 for a start that failed.
    best : int
        Number of the best start.

    Examples
    --------
    >>> agreement_of_starts(np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]]), 0)
    (1.0, 1.0)
    """
    # imported where it is used: scikit-learn takes a second
    from sklearn.metrics import adjusted_rand_score

    others = [k for k in range(len(assigned)) if k != best and assigned[k, 0] >= 0]
    if not others:
        return np.nan, np.nan
    shared = [shared_of_classes(assigned[best], assigned[k]) for k in others]
    like = others[int(np.argmax(shared))]
    rand = float(adjusted_rand_score(assigned[best], assigned[like]))
    return rand, max(shared)


def candidate_table(
    scored: xr.Dataset, filled: Mapping[tuple[int, int], int], least: float, most: float
) -> tuple[pd.DataFrame, float, int]:
    """Return the table of the candidates, the variance between starts, and which is named.

    Parameters
    ----------
    scored : Dataset
        ``log_evidence``, ``assigned`` and ``probability``, by ``n_classes``, ``start`` and
        ``observation``.
    filled : mapping of (int, int) to int
        Number of classes that are not empty, by number of classes and start.
    least : float
        Share of each class on which starts have to agree.
    most : float
        Share of observations that may lie between classes.
    """
    series: dict[int, np.ndarray] = {}
    rows: dict[int, dict[str, Any]] = {}
    spread, probability = [], scored["probability"]
    for number in scored["n_classes"].values.tolist():
        evidence = scored["log_evidence"].sel(n_classes=number).values
        means = evidence.mean(axis=1)
        known = np.isfinite(means)
        if not known.any():
            continue
        best = int(np.nanargmax(means))
        series[number] = evidence[best]
        assigned = scored["assigned"].sel(n_classes=number).values
        rand, shared = agreement_of_starts(assigned, best)
        if known.sum() > 1:
            spread.append(float(means[known].var(ddof=1)))
        rows[number] = {
            "start": best,
            "log_evidence": float(means[best]),
            "between_starts": float(np.ptp(means[known])) if known.sum() > 1 else np.nan,
            "rand": rand,
            "least_class": shared,
            "filled": filled[number, best],
            "between": float(np.mean(probability.sel(n_classes=number)[best] < CERTAIN)),
        }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("n_classes")
    # of a candidate with a single start nothing is known of agreement
    table["agrees"] = (table["least_class"] >= least) | (least == 0)
    table["apart"] = table["between"] <= most
    between = float(np.median(spread)) if spread else 0.0
    named = named_candidate(table, series, between)
    errors = {
        number: 0.0 if number == named else _error(each, series[named], between)
        for number, each in series.items()
    }
    table.insert(2, "difference", table["log_evidence"] - table.loc[named, "log_evidence"])
    table.insert(3, "error", pd.Series(errors))
    table.attrs = {"least_class": least, "between": most}
    return table, between, named


def named_candidate(table: pd.DataFrame, series: Mapping[int, np.ndarray], between: float) -> int:
    """Return the candidate with the fewest classes that is within one error of the best.

    Only candidates whose starts agree and whose classes are apart are compared. But if others
    predict decisively better, starts have missed a kind. Of these, and if there are none that can
    be compared, the candidate is named that gains most beyond what its classes should.
    """
    filled, score = table["filled"], table["log_evidence"]
    beyond = score - [_least_gain(int(each)) for each in filled]

    def fewest(rows: pd.DataFrame, best: int) -> int:
        """Return the candidate with the fewest classes that is within one error of the best."""
        near = [
            number
            for number in rows.index.tolist()
            if number == best
            or score[best] - score[number] <= _error(series[number], series[best], between)
        ]
        return int(min(near, key=lambda number: (filled[number], number)))

    def most_beyond(rows: pd.DataFrame) -> int:
        best = int(beyond[rows.index].idxmax())
        return fewest(rows[filled[rows.index] == filled[best]], best)

    able = _able(table)
    if not len(able):
        return most_beyond(table)
    named = fewest(able, int(able["log_evidence"].idxmax()))
    missed = table[table["apart"] & (filled > filled[named]) & (beyond > beyond[named])]
    return most_beyond(missed) if len(missed) else named


def _least_gain(n_classes: int) -> float:
    """Return what so many classes should gain on one, in nats an observation.

    The j-th class should tell a j-th of the observations from the others by `DECISIVE`.
    """
    return float(DECISIVE * np.sum(1 / np.arange(2, n_classes + 1)))


def _able(table: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates that can be named."""
    return table[table["agrees"] & table["apart"]]


def _error(first: np.ndarray, second: np.ndarray, between: float) -> float:
    """Return the standard error of the mean difference of two series, and of another start."""
    return float(np.hypot(mean_error(first - second), np.sqrt(between)))


def doubts(table: pd.DataFrame, named: int) -> tuple[str, ...]:
    """Return reasons to doubt the number that is named."""
    found = []
    number = int(table.loc[named, "filled"])
    able = _able(table)
    if not len(able):
        found.append(
            "no candidate's starts agree on classes that are apart, so that prediction alone "
            "decides. Give more observations, or more starts by n_starts="
        )
    others = able[able["filled"] != number]
    close = others[others["difference"].abs() <= 2 * others["error"]]
    if len(close):
        found.append(f"{_enumerated(close)} can hardly be told from {number} by prediction")
    if len(able) and named not in able.index:
        found.append(
            f"the starts of {named} disagree, and it is named because {_enumerated(able)} predict "
            "much worse. Give more observations, or more starts by n_starts="
        )
    beyond = table["difference"] - [_least_gain(int(each)) for each in table["filled"]]
    overlap = table[~table["apart"] & (table["filled"] > number) & (beyond > beyond[named])]
    if len(able) and len(overlap):
        found.append(
            f"{_enumerated(overlap)} predict much better, by classes that overlap: look at their "
            "templates, and see that the prior on warps is not too tight"
        )
    if named == table.index.max() and number == named:
        found.append(f"there is no candidate with more than {named}; give larger ones")
    return tuple(found)


def doubts_of_data(failures: Mapping[tuple[int, int], str], n_scored: int) -> tuple[str, ...]:
    """Return reasons to doubt any number: runs that failed, and few scored observations."""
    found = []
    if failures:
        candidates = ", ".join(map(str, sorted({number for number, _ in failures})))
        found.append(f"runs with {candidates} classes failed, as the log says")
    if n_scored < FEW:
        found.append(f"only {n_scored} observations are scored; give hundreds")
    return tuple(found)


def splits_of(table: pd.DataFrame, scored: xr.Dataset, between: float) -> pd.DataFrame:
    """Return which class of a candidate the next one divides, and what that gains."""
    rows = []
    candidates = table.index.tolist()
    for number, following in pairwise(candidates):
        ours, theirs = (
            scored.sel(n_classes=each, start=table.loc[each, "start"])
            for each in (number, following)
        )
        counts = np.zeros((number, following))
        np.add.at(counts, (ours["assigned"].values, theirs["assigned"].values), 1.0)
        parent = counts.argmax(axis=0)
        held = counts.sum(axis=0) > 0
        gain = theirs["log_evidence"].values - ours["log_evidence"].values
        for split in range(number):
            into = tuple(np.flatnonzero((parent == split) & held).tolist())
            if len(into) > 1:
                error = float(np.hypot(mean_error(gain), np.sqrt(between)))
                rows.append((number, split, into, float(gain.mean()), error))
    return pd.DataFrame(rows, columns=list(SPLIT))


def in_words(number: int, named: int, table: pd.DataFrame, unsure: Any, about: str) -> str:
    """Return the result in words; `about` says over which observations and starts."""
    row = table.loc[named]
    lines = [f"{number} {'class' if number == 1 else 'classes'}{', but unsure' if unsure else ''}."]
    lines += [f"Unsure: {each}." for each in unsure]
    others = table.drop(index=named)
    for word, rows in (
        ("Fewer", others[others["filled"] < number]),
        ("More", others[others["filled"] > number]),
        (f"With {number} that are not empty", others[others["filled"] == number]),
    ):
        if len(rows):
            lines.append(f"{word}: {_listed(rows)}.")
    if np.isfinite(row["rand"]):
        lines.append(
            f"Two starts of {named} have an adjusted Rand index of {row['rand']:.2f}, and at least "
            f"{row['least_class']:.0%} of each class in common. {row['between']:.0%} of the "
            "observations lie between its classes."
        )
    return "\n".join([*lines, about])


def _listed(rows: pd.DataFrame) -> str:
    """Return candidates with how much better or worse they predict, and why they do not count."""
    return "; ".join(map(_described, rows.index, rows.to_dict("records")))


def _described(number: int, row: Mapping[str, Any]) -> str:
    """Return how much better or worse a candidate predicts, and what speaks against it."""
    against = []
    if not row["agrees"]:
        against.append("starts disagree")
    if not row["apart"]:
        against.append(f"{row['between']:.0%} of the observations lie between classes")
    return (
        f"{number} {'better' if row['difference'] > 0 else 'worse'} by "
        f"{abs(row['difference']):.2f} ± {row['error']:.2f}"
        f"{f' ({", ".join(against)})' if against else ''}"
    )


def _enumerated(rows: pd.DataFrame) -> str:
    *first, last = map(str, rows.index)
    return f"{', '.join(first)} and {last}" if first else last

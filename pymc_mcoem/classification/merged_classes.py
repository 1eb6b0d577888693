"""One mixture that has the classes of several mixtures, one for each label."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from pymc_mcoem.labeling import Arrays
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["merge_parameters", "merged_mixture"]

#: Mixtures of all classes, by their number, so that classifiers of one mixture compile once.
_merged: WeakKeyDictionary[TemplateMixture, dict[int, TemplateMixture]] = WeakKeyDictionary()


def merged_mixture(mixture: TemplateMixture, n_classes: int) -> TemplateMixture:
    """Return a mixture like `mixture` with `n_classes` classes and a noise variance for each.

    Nothing is maximized with it. It therefore has no priors, which may be given by class.
    """
    known = _merged.setdefault(mixture, {})
    if n_classes not in known:
        known[n_classes] = mixture.with_classes(n_classes, noise="class", priors=None)
    # Starting points that a user has set apply here too.
    found = known[n_classes]
    found.geometry = replace(found.geometry, starts=mixture.geometry.starts)
    return known[n_classes]


def merge_parameters(
    parameters: Mapping[Hashable, Arrays], label_weights: Mapping[Hashable, float] | None = None
) -> dict[str, np.ndarray]:
    """Return the parameters of all classes of several mixtures, in order.

    Parameters
    ----------
    parameters : mapping of label to mapping of str to ndarray
        As `Family.check_parameters` returns them.
    label_weights : mapping of label to float, optional
        Prior weights of labels; equal by default.
    """
    weights = {label: 1.0 for label in parameters} if label_weights is None else label_weights
    if set(weights) != set(parameters) or not all(weight > 0 for weight in weights.values()):
        raise ValueError(
            f"label_weights: got {dict(weights)}; give a positive weight for each of "
            f"{list(parameters)}."
        )
    total = sum(weights.values())
    by_label = []
    for label, values in parameters.items():
        weight = values["weights"] * weights[label] / total
        # of each class, and of each channel if there are several
        noise = np.broadcast_to(values["noise_variance"], values["templates"].shape[:-1])
        by_label.append({**values, "weights": weight, "noise_variance": noise})
    merged = {name: np.concatenate([each[name] for each in by_label]) for name in by_label[0]}
    merged["weights"] = merged["weights"] / merged["weights"].sum()
    return merged

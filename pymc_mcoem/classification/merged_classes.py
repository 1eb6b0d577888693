"""One mixture of the classes of several, one for each label."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import xarray as xr

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.templates.mixture import TemplateMixture

__all__ = ["unite"]


def unite(
    mixture: TemplateMixture,
    parameters: Mapping[Hashable, xr.Dataset],
    label_weights: Mapping[Hashable, float] | None,
) -> tuple[Family, dict[str, np.ndarray], list[Hashable]]:
    """Make one mixture of the classes of several.

    Returns
    -------
    family : TemplateMixture
        With a noise variance for each class.
    parameters : dict of str to ndarray
    labels : list
        The label of each class.
    """
    if not parameters:
        raise ValueError("parameters: got no label; give the parameters of at least one mixture.")
    weights = {label: 1.0 for label in parameters} if label_weights is None else label_weights
    if set(weights) != set(parameters) or not all(weight > 0 for weight in weights.values()):
        raise ValueError(
            f"label_weights: got {dict(weights)}; give a positive weight for each of "
            f"{list(parameters)}."
        )
    total = sum(weights.values())
    parts: list[dict[str, np.ndarray]] = []
    labels: list[Hashable] = []
    for label, dataset in parameters.items():
        if not isinstance(dataset, xr.Dataset):
            raise TypeError(
                f"parameters: of label {label!r} are a {type(dataset).__name__}; give a Dataset, "
                "as OnlineEM.parameters is."
            )
        n_classes = int(dataset.sizes["class"])
        own = mixture if n_classes == mixture.n_classes else mixture.with_classes(n_classes)
        part = own.check_parameters(dataset)
        part["weights"] = part["weights"] * weights[label] / total
        part["noise_variance"] = np.broadcast_to(part["noise_variance"], n_classes)
        parts.append(part)
        labels += [label] * n_classes
    united = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    united["weights"] = united["weights"] / united["weights"].sum()
    family = _of_all_labels(mixture, len(labels))
    return family, family.check_parameters(united), labels


#: Mixtures for the classes of all labels: classifiers of one mixture compile once.
_united: WeakKeyDictionary[TemplateMixture, dict[int, TemplateMixture]] = WeakKeyDictionary()


def _of_all_labels(mixture: TemplateMixture, n_classes: int) -> TemplateMixture:
    """Return the mixture with as many classes, the same one for all classifiers.

    Nothing is maximised with it, so priors, which may be given by class, do not come along.
    """
    known = _united.setdefault(mixture, {})
    if n_classes not in known:
        known[n_classes] = mixture.with_classes(n_classes, noise="class", priors=None)
    # whoever gave the mixture more starting points than it has by itself wants them here too
    found = known[n_classes]
    found.geometry = replace(found.geometry, starts=mixture.geometry.starts)
    return found

"""Learn one label's mixture in a worker process of two_cores.py.

This is a separate file so that processes import it and keep their compiled functions.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import pymc_mcoem as mcoem

__all__ = ["learned", "own_mixture"]


@cache
def own_mixture(side: int, n_classes: int) -> mcoem.TemplateMixture:
    """Return the process's mixture, which keeps its compiled functions."""
    return mcoem.TemplateMixture.for_images((side, side), n_classes=n_classes)


def learned(stream: np.ndarray, n_classes: int) -> np.ndarray:
    """Return the templates that one pass over images ``(n, side, side)`` learns."""
    mixture = own_mixture(stream.shape[1], n_classes)
    # The model has the parameters of the label before; every label starts as the first did.
    start = mixture.to_dataset(mixture.declared_parameters())
    em = mcoem.OnlineEM(mixture, parameters=start, random_seed=1, progressbar=False)
    templates: np.ndarray = em.partial_fit(stream).parameters["templates"].values
    return templates

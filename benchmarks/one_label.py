"""One label's mixture, learned in whichever process is asked; see two_cores.py.

In a file of its own, so that processes import it and what they compiled stays with them.
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
    # the model holds what the label before has learned; every label starts where the first did
    start = mixture.to_dataset(mixture.declared_parameters())
    em = mcoem.OnlineEM(mixture, parameters=start, random_seed=1, progressbar=False)
    templates: np.ndarray = em.partial_fit(stream).parameters["templates"].values
    return templates

"""Flags of classes with more modes than the step's pseudo-priors hold."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from pymc_mcoem.diagnostics.chains import IndexChains

__all__ = ["missed_share_flags"]

#: Smallest posterior probability of modes that are left out which is flagged.
_LEAST = 0.01

#: A share above this stands for an unknown one.
_UNKNOWN = 0.999


def missed_share_flags(chains: IndexChains) -> list[str]:
    """Return messages about classes of which modes with some weight are known to be left out.

    If a class's share of the chain's weight is w and its pseudo-prior leaves out a share s of its
    evidence, the modes left out have the odds w s / (1 - s) against all that the chain knows. If s
    is unknown, w may be small for that reason. On a plate the step has multiplied by the weight in
    each row and recorded the largest product. Without the statistics of `CarlinChib` there is no
    message.
    """
    if chains.missed_share is None or chains.log_weight is None:
        return []
    share = np.nan_to_num(chains.missed_share.mean(axis=1)).clip(0.0, 1.0)
    weight = np.ones_like(share)
    if len(chains.codes) == 1:
        log_weight = chains.log_weight[0]
        if chains.equalizing_log_weight is not None:
            log_weight = log_weight - chains.equalizing_log_weight
        weight = softmax(log_weight, axis=-1).mean(axis=1)
    odds = weight * share / np.maximum(1.0 - share, 1e-9)
    missed = odds / (1.0 + odds)  # (n_chains, n_classes)
    flags = []
    for j in np.flatnonzero(missed.max(axis=0) > _LEAST):
        n_chains = int((missed[:, j] > _LEAST).sum())
        flags.append(
            f"class {chains.classes[j]} has more modes than its pseudo-prior holds: in {n_chains} "
            f"of {len(chains.chain)} chains {_about(share[:, j].max())} of its evidence was left "
            "out, so that its share may be too small; name the places of its modes by "
            "pseudo_priors=Laplace(starts=...), run more chains, or write the model without the "
            "symmetry that repeats them"
        )
    return flags


def _about(share: float) -> str:
    return "an unknown part" if share > _UNKNOWN else f"about {share:.0%}"

"""Necks of posteriors: ends of a latent in which hardly any move within the class is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import xarray as xr

from pymc_mcoem.diagnostics.chains import IndexChains
from pymc_mcoem.diagnostics.latents import along_the_plate, draws_by_row, latents_along_the_plate

__all__ = ["neck_flags"]

#: Share of a class's draws that are its end, on either side of a latent.
_END = 0.05

#: An end is a neck if its moves are accepted this many times less often than those of the class.
_TIMES_LESS = 4.0

#: Smallest number of draws of a class whose ends are looked at.
_MIN_DRAWS = 200


def neck_flags(
    chains: IndexChains, variables: xr.Dataset, latents: Sequence[str] | None = None
) -> list[str]:
    """Return a message about the worst neck of the posteriors of the classes, if there is one.

    The step of moves is tuned to a whole class. Where the posterior is far narrower, as about
    effects whose common width is near zero, moves of that step are refused. Chains enter such
    a neck seldom, or not far, and neither R-hat nor effective sample sizes see what they have not
    visited.

    Parameters
    ----------
    chains : IndexChains
        Those of a plate have no answer, because acceptances of its rows are not recorded.
    variables : Dataset
        Those of the group of the index.
    latents : sequence of str, optional
        Default: those of `class_latents`.
    """
    accepted = chains.acceptance
    if accepted is None or chains.plate.ndim or not np.isfinite(accepted).all():
        return []
    names = latents_along_the_plate(chains, variables) if latents is None else latents
    drawn = {
        name: draws_by_row(chains, along_the_plate(chains, variables, name))[0][0] for name in names
    }
    necks = []
    for k, (name, values) in product(range(chains.n_classes), drawn.items()):
        active = chains.codes[0] == k
        of_class = accepted[active].mean() if active.sum() >= _MIN_DRAWS else 0.0
        if of_class == 0.0 or not np.isfinite(values[active]).all():
            continue
        for column, draws in enumerate(values[active].T):
            place = "" if values.shape[-1] == 1 else f"[{column}]"
            for end, at_end in _acceptance_at_ends(draws, accepted[active]).items():
                if _TIMES_LESS * at_end < of_class:
                    where = f"{name}{place} in class {chains.classes[k]} is {end}"
                    necks.append((at_end / of_class, where, at_end, of_class))
    if not necks:
        return []
    _, where, at_end, of_class = min(necks)
    more = f" (and at {len(necks) - 1} more ends)" if len(necks) > 1 else ""
    return [
        f"where {where}, {at_end:.2g} of the moves are accepted, and {of_class:.2g} in the whole "
        f"class{more}: its posterior may have a neck there that chains do not enter far enough. "
        "Sample longer with within_class=pymc_mcoem.moves.Hamiltonian(target_acceptance=0.95), or "
        "write the model so that no latent is the scale of others"
    ]


def _acceptance_at_ends(draws: np.ndarray, accepted: np.ndarray) -> dict[str, float]:
    """Return the acceptance where a latent is lowest and highest; nothing if it is constant."""
    low, high = np.quantile(draws, [_END, 1 - _END])
    if low == high:
        return {}
    ends = {"lowest": draws <= low, "highest": draws >= high}
    return {end: float(accepted[inside].mean()) for end, inside in ends.items()}

"""Necks of posteriors: ends of a latent in which hardly any move within the class is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import xarray as xr
from scipy.stats import norm

from pymc_mcoem.diagnostics.chains import IndexChains
from pymc_mcoem.diagnostics.latents import along_the_plate, draws_by_row, latents_along_the_plate

__all__ = ["neck_flags"]

#: Share of a class's draws that are its end, on either side of a latent.
_END = 0.05

#: An end is a neck if its moves are accepted this many times less often than those of the class.
_TIMES_LESS = 4.0

#: Smallest number of draws of a class whose ends are looked at.
_MIN_DRAWS = 200

#: Probability that an end of any latent is taken for a neck by chance.
_BY_CHANCE = 0.01


def neck_flags(
    chains: IndexChains, variables: xr.Dataset, latents: Sequence[str] | None = None
) -> list[str]:
    """Return a message about the worst neck of the classes' posteriors, if there is one.

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
    if accepted is None or chains.plate.ndim:
        return []
    names = latents_along_the_plate(chains, variables) if latents is None else latents
    drawn = {
        name: draws_by_row(chains, along_the_plate(chains, variables, name))[0][0] for name in names
    }
    known = np.isfinite(accepted)
    n_ends = 2 * chains.n_classes * sum(values.shape[-1] for values in drawn.values())
    deviations = norm.isf(_BY_CHANCE / max(n_ends, 1))
    necks = []
    for k, (name, values) in product(range(chains.n_classes), drawn.items()):
        active = known & (chains.codes[0] == k)
        if active.sum() < _MIN_DRAWS or not np.isfinite(values[active]).all():
            continue
        of_class, spread = accepted[active].mean(), accepted[active].std()
        for column, draws in enumerate(values[active].T):
            place = "" if values.shape[-1] == 1 else f"[{column}]"
            for end, inside in _ends(draws).items():
                at_end = float(accepted[active][inside].mean())
                by_chance = deviations * spread / np.sqrt(inside.sum())
                if at_end < min(of_class / _TIMES_LESS, of_class - by_chance):
                    where = f"{name}{place} in class {chains.classes[k]} is {end}"
                    necks.append((at_end / of_class, where, at_end, of_class))
    if not necks:
        return []
    _, where, at_end, of_class = min(necks)
    more = f" (likewise at {len(necks) - 1} more ends of latents)" if len(necks) > 1 else ""
    return [
        f"where {where}, {at_end:.2g} of the moves are accepted, and {of_class:.2g} in the whole "
        f"class{more}: the posterior of the class may have a neck there that chains do not enter "
        "far enough. Sample longer and with shorter steps, by within_class=pymc_mcoem.moves."
        "Hamiltonian(target_acceptance=0.95); in a hierarchy, write latents as level + scale * z"
    ]


def _ends(draws: np.ndarray) -> dict[str, np.ndarray]:
    """Return which draws are the lowest and the highest; nothing if a latent is constant."""
    low, high = np.quantile(draws, [_END, 1 - _END])
    return {} if low == high else {"lowest": draws <= low, "highest": draws >= high}

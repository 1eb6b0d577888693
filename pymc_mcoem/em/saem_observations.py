"""The observations of one call of `SAEM.fit`: those that are learnt, and why others are not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymc_mcoem.em.left_out import named
from pymc_mcoem.em.reading import Unreadable, admit, read
from pymc_mcoem.em.saem_state import SAEMState, fingerprint

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import Arrays

__all__ = ["Taken", "require_same", "take"]


@dataclass(eq=False)
class Taken:
    """What one call was given.

    Attributes
    ----------
    n_records : int
        Records, whatever became of them.
    encoded : dict of int to dict of str to ndarray
        Observations by their positions.
    held : list of ndarray or dict of str to ndarray
        The same as they were given, while there is no start.
    reasons : dict of int to str
        Why others are left out.
    """

    n_records: int = 0
    encoded: dict[int, Arrays] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)


def take(family: Family, observations: Any, state: SAEMState, on_error: str) -> Taken:
    """Read all observations, past those that are left out.

    Parameters
    ----------
    family : Family
    observations : array_like, DataArray, or iterable
        As `SAEM.fit` takes them.
    state : SAEMState
        Where the run stands: what it has left out before stays so.
    on_error : {"raise", "skip"}

    Raises
    ------
    ValueError, TypeError
        If the family refuses one that is not to be skipped, or nothing is left.
    Exception
        What the source raises.
    """
    taken, known = Taken(), frozenset(state.positions)
    for position, observation in enumerate(read(family, observations)):
        taken.n_records += 1
        if position < state.n_records and position not in known:
            continue
        if isinstance(observation, Unreadable):
            if on_error == "raise":
                raise observation.error
            taken.reasons[position] = f"reading it failed: {named(observation.error)}"
            continue
        try:
            item, encoded = admit(family, observation, position)
        except Exception as error:
            if on_error == "skip":
                taken.reasons[position] = f"refused: {named(error)}"
                continue
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"observation {position} (counted from 0) was refused: {error}") from error
        taken.encoded[position] = encoded
        if state.parameters is None:
            taken.held.append(item.observation)
    if not taken.n_records:
        raise ValueError("observations: got none; pass at least one observation.")
    if not taken.encoded:
        reason = next(iter(taken.reasons.values()), "they were left out before")
        raise ValueError(
            f"observations: none of these {taken.n_records} can be learnt ({reason}); see to the "
            "source."
        )
    return taken


def require_same(taken: Taken, state: SAEMState) -> None:
    """Refuse observations that are not those of a run's chains.

    Raises
    ------
    ValueError
        If there are more or fewer records, or one is another; the error says which.
    """
    where = ""
    if taken.n_records == state.n_records:
        found = dict(zip(state.positions, state.fingerprints, strict=True))
        other = [at for at, data in taken.encoded.items() if found[at] != fingerprint(data)]
        if not other:
            return
        where = f" (observation {other[0]}, counted from 0, is another)"
    raise ValueError(
        f"observations: these {taken.n_records} are not the {state.n_records} that the run's "
        f"chains belong to{where}; give the same ones in the same order, or make a new SAEM with "
        "parameters=saem.parameters."
    )

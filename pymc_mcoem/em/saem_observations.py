"""The observations of one call of `SAEM.fit`: those that are learnt, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pymc_mcoem.em.reading import Unreadable, admit, read
from pymc_mcoem.em.saem_state import SAEMSettings, SAEMState, fingerprint
from pymc_mcoem.interrupts import require_readable
from pymc_mcoem.runs.failed_records import named
from pymc_mcoem.runs.outliers import absurd_among, largest, span

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labelling import Arrays

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
    held : dict of int to ndarray or dict of str to ndarray
        The same as they were given, while there is no start.
    reasons : dict of int to str
        Why others are left out.
    refused : dict of int to object
        Those of them that could be read.
    """

    n_records: int = 0
    encoded: dict[int, Arrays] = field(default_factory=dict)
    held: dict[int, Any] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    refused: dict[int, Any] = field(default_factory=dict)


def take(
    family: Family,
    observations: Any,
    state: SAEMState,
    settings: SAEMSettings,
    between: Callable[[], None],
) -> Taken:
    """Read all observations, past those that are left out.

    Parameters
    ----------
    family : Family
    observations : array_like, DataArray, or iterable
        As `SAEM.fit` takes them.
    state : SAEMState
        Where the run stands: what it has left out before stays so.
    settings : SAEMSettings
    between : callable
        Called as each is read; it raises where the reading is to end.

    Raises
    ------
    ValueError, TypeError
        If the family refuses one that is not to be skipped, or nothing is left.
    Exception
        What the source raises.
    """
    taken, known = Taken(), frozenset(state.positions)
    on_error, spans = settings.on_error, {}
    for position, observation in enumerate(read(family, observations)):
        between()
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
            require_readable(error)
            if on_error != "raise":
                taken.reasons[position] = f"refused: {named(error)}"
                taken.refused[position] = observation
                continue
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"observation {position} (counted from 0) was refused: {error}") from error
        taken.encoded[position] = encoded
        if state.parameters is None:
            taken.held[position] = item.observation
        if not state.chains:
            spans[position] = span(item.observation)
    places = list(spans)
    absurd = absurd_among(list(spans.values()), settings.refuse_beyond, largest(state.parameters))
    for index, why in absurd.items():
        position = places[index]
        if on_error == "raise":
            raise ValueError(f"observation {position} (counted from 0) was refused: {why}")
        taken.reasons[position] = f"refused: {named(why)}"
        taken.refused[position] = taken.encoded.pop(position)
        taken.held.pop(position, None)
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

"""Observations that workers read, while the driver has only their addresses.

Workers read an observation twice: first to check it, since its number in the run and its
plausibility depend on the observations before it, and then for its E-step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from pymc_mcoem.em.addresses import Address, Seen
from pymc_mcoem.em.run_state import Pending
from pymc_mcoem.em.stream import Unreadable
from pymc_mcoem.interrupts import require_readable, with_retries
from pymc_mcoem.runs.executor import WorkerLost
from pymc_mcoem.runs.outliers import LEAST, span
from pymc_mcoem.runs.workers import Order, portable

if TYPE_CHECKING:
    from pymc_mcoem.em.run_state import OnlineSettings, OnlineState
    from pymc_mcoem.runs.executor import Dispatcher

__all__ = ["looked_at", "next_batch", "read_by", "read_held"]

#: Number of observations that a worker reads in one call.
GROUP_SIZE = 8


def next_batch(state: OnlineState, settings: OnlineSettings) -> tuple[int, bool]:
    """Return how many observations a run takes next, and whether the driver needs their values.

    It needs the values for the start, and of the first ten, which are compared with predictions.
    """
    if state.parameters is None:
        return max(settings.n_start - len(state.pending), 1), True
    few = LEAST - max(map(len, (state.recent or {}).values()), default=0)
    if few > 0 and settings.refuse_beyond is not None:
        return few, True
    return max(settings.batch_size - len(state.pending), 1), False


def read_held(state: OnlineState, executor: Dispatcher) -> OnlineState:
    """Return a state with all addresses replaced by values.

    Raises
    ------
    Exception
        Any exception raised by reading.
    """
    if not state.holds_addresses:
        return state
    found = _in_place([item.observation for item in state.pending], executor, in_whole=True)
    pending = []
    for item, value in zip(state.pending, found, strict=True):
        if isinstance(value, Unreadable):
            raise value.error
        pending.append(replace(item, observation=Pending.of(value, item.position).observation))
    return replace(state, pending=tuple(pending))


def looked_at(
    records: Iterable[Any], executor: Dispatcher, wanted: Callable[[], tuple[int, bool]]
) -> Iterator[Any]:
    """Yield records, with addresses replaced by what workers read there.

    Parameters
    ----------
    records : iterable
        Read ahead, as many as `wanted` says.
    executor : Dispatcher
    wanted : callable
        Returns the number of records that the run takes next, and whether it needs their values.

    Yields
    ------
    object
        For an address, the observation if its values are needed and a `Seen` if not, or an
        `Unreadable`.

    Raises
    ------
    ExecutorError, MemoryError, OSError
        Failures that are not due to a record.
    """
    source = iter(records)
    for record in source:
        number, in_whole = wanted() if isinstance(record, Address) else (1, False)
        yield from _in_place([record, *islice(source, number - 1)], executor, in_whole)


def _in_place(records: Sequence[Any], executor: Dispatcher, in_whole: bool) -> list[Any]:
    """Return records, with addresses replaced by what workers read."""
    addresses = [each for each in records if isinstance(each, Address)]
    found = iter(read_by(executor, addresses, in_whole))
    return [next(found) if isinstance(each, Address) else each for each in records]


def read_by(executor: Dispatcher, addresses: Sequence[Address], in_whole: bool) -> list[Any]:
    """Return what workers read at addresses; see `looked_at`.

    Raises
    ------
    ExecutorError, MemoryError, OSError
        Failures that are not due to a record.
    """
    found: list[Any] = []
    group_size = GROUP_SIZE
    while len(found) < len(addresses):
        groups = (
            tuple(addresses[at : at + group_size])
            for at in range(len(found), len(addresses), group_size)
        )
        try:
            for some in executor.answers(Order(look, (each, in_whole)) for each in groups):
                found.extend(some)
        except WorkerLost as error:
            if group_size == 1:
                found.append(Unreadable(error))
            group_size = 1  # to find the record that failed
    return found


def look(checked_e_step: Any, addresses: Sequence[Address], in_whole: bool) -> list[Any]:
    """Read observations in a worker; see `looked_at`."""
    return [_looked(checked_e_step.family, each, in_whole) for each in addresses]


def _looked(family: Any, address: Address, in_whole: bool) -> Any:
    try:
        record = with_retries(address.read)
    except Exception as error:
        require_readable(error)
        return Unreadable(portable(error))
    if in_whole:
        return record
    try:
        family.encode(record)
        return Seen(address, span(Pending.of(record, 0).observation))
    except Exception as error:
        require_readable(error)
        return Seen(address, {}, portable(error))

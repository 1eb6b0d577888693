"""Reading a stream from some record on, past records that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.run_state import Pending
from pymc_mcoem.em.sources import Unreadable, in_memory, prepared, spread
from pymc_mcoem.interrupts import patiently, raise_if_interrupted, require_readable
from pymc_mcoem.runs.failed_records import PATIENCE
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labelling import Arrays

__all__ = ["PATIENCE", "Unreadable", "admit", "check_skip", "read"]


def admit(family: Family, observation: Any, position: int) -> tuple[Pending, Arrays]:
    """Return an observation to be held, and as it is encoded, if the family takes it.

    Raises
    ------
    Exception
        What `Family.encode` raises.
    """
    encoded = patiently(partial(family.encode, observation))
    # what was interrupted in mid-call may look whole
    raise_if_interrupted()
    if isinstance(observation, Mapping) and len(family.observation) == 1:
        (observation,) = observation.values()
    return Pending.of(observation, position), encoded


def check_skip(skip: Any) -> None:
    """Complain about what is no number of records.

    Raises
    ------
    ValueError
        If it is not a whole number from 0.

    Examples
    --------
    >>> check_skip(-1)
    Traceback (most recent call last):
        ...
    ValueError: skip: got -1; give the number of records to pass over, as em.position.
    """
    if not is_whole(skip) or skip < 0:
        raise ValueError(
            f"skip: got {skip!r}; give the number of records to pass over, as em.position."
        )


def read(family: Family, observations: Any, skip: int = 0) -> Iterator[Any]:
    """Yield the records of a source, an `Unreadable` for each that the source fails to give.

    Parameters
    ----------
    family : Family
    observations : array_like, mapping, or iterable
        As `Family.iterate` takes them.
    skip : int
        Records to pass over. Of arrays, sequences, and what has a ``from_position``, they are not
        read, but for the first, which says whether it is a stream of batches; if so, they are.

    Raises
    ------
    TypeError, ValueError
        If it is no source of observations.
    Exception
        What the source raises a hundred times in a row.
    KeyboardInterrupt, SystemExit, MemoryError, OSError
        What is no fault of a record; see `require_readable`.

    Notes
    -----
    After an exception a sequence goes on with its next record, and an iterator is asked for its
    next: a generator has none, and the stream ends there. Of sequences, what memory, a disk or a
    network has failed to give is asked for twice more first. Running out of memory, and a network
    that is gone, are no record's fault, and raised. A batch that cannot be read is one
    record, since nobody knows how many were in it.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    >>> len(list(read(mixture, np.zeros((5, 2, 2)), skip=3)))
    2
    """
    failures = 0
    for record in _records(family, observations, skip):
        failures = failures + 1 if isinstance(record, Unreadable) else 0
        if isinstance(record, Unreadable) and failures > PATIENCE:
            raise record.error
        yield record


def _records(family: Family, observations: Any, skip: int) -> Iterator[Any]:
    """Yield the records from `skip` on."""
    given = observations
    if isinstance(given, xr.DataArray):
        given = family.in_order(given).variable
    elif hasattr(given, "to_numpy"):
        given = given.to_numpy()
    if isinstance(given, (list, tuple, np.ndarray)):
        # what passes for a source by its kind and is none is refused here
        _refuse_what_is_none(family, observations)
    if hasattr(given, "shape") and hasattr(given, "ndim"):
        n_axes = family.model[family.observation[0]].get_value(borrow=True).ndim
        if given.ndim <= n_axes:
            return islice(_indexed(lambda _: in_memory(given), 0, 1), skip, None)
        if is_whole(given.shape[0]):
            return _indexed(lambda index: in_memory(given[index]), skip, given.shape[0])
    elif hasattr(given, "from_position"):
        return _from(family, lambda position: _of_passes(given, position), skip)
    elif not isinstance(given, (Mapping, str, bytes)):
        if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
            return _from(family, lambda at: _indexed(given.__getitem__, at, len(given)), skip)
        if isinstance(given, Iterable):
            return islice(spread(family, _asked(iter(given))), skip, None)
    return islice(family.iterate(observations), skip, None)


def _refuse_what_is_none(family: Family, observations: Any) -> None:
    """Let the family complain about a source as such, and not about its first record."""
    try:
        next(family.iterate(observations), None)
    except Exception as error:
        if str(error).startswith("observations:"):
            raise


def _from(family: Family, records: Callable[[int], Iterator[Any]], skip: int) -> Iterator[Any]:
    """Yield the observations from `skip` on of a source whose records can be had from any on."""
    if not skip:
        return spread(family, records(0))
    # A stream of batches counts observations, another its records. Which it is was said by the
    # first record that could be read, when it was begun.
    if _has_batches(family, records(0)):
        return islice(spread(family, records(0)), skip, None)
    return spread(family, records(skip), batches=False)


def _has_batches(family: Family, records: Iterator[Any]) -> bool:
    for given in islice(records, PATIENCE):
        if not isinstance(given, Unreadable):
            try:
                return prepared(family, given)[1]
            except Exception as error:
                require_readable(error)
    return False


def _indexed(get: Callable[[int], Any], begin: int, end: int) -> Iterator[Any]:
    """Yield the records of a sequence, an `Unreadable` for each that raises."""
    for index in range(begin, end):
        try:
            record = patiently(partial(get, index))
        except Exception as error:
            require_readable(error)
            record = Unreadable(error)
        yield record


def _asked(records: Iterator[Any]) -> Iterator[Any]:
    """Ask an iterator for its records, also after one that raises."""
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:
            require_readable(error)
            record = Unreadable(error)
        yield record


def _of_passes(passes: Any, position: int) -> Iterator[Any]:
    """Yield the records from `position` on, begun anew behind each that raises."""
    records = passes.from_position(position)

    def ask() -> Any:
        return next(records)

    def begin_anew() -> None:
        nonlocal records
        records = passes.from_position(position)

    while True:
        try:
            record = patiently(ask, begin_anew)
        except StopIteration:
            return
        except Exception as error:
            require_readable(error)
            record = Unreadable(error)
            records = passes.from_position(position + 1)
        yield record
        position += 1

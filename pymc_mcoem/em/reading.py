"""Reading a stream from some record on, past records that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import xarray as xr

from pymc_mcoem.numbers import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["Unreadable", "check_skip", "read"]

#: Records in a row that may fail to be read.
PATIENCE = 100


@dataclass(frozen=True)
class Unreadable:
    """Stands for a record that the source raised an exception for."""

    error: Exception


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
        Records to pass over. Of arrays, and of what has a ``from_position``, they are not read.

    Raises
    ------
    TypeError
        If it is no source of observations.
    Exception
        What the source raises a hundred times in a row, or once where nothing can be read behind.

    Notes
    -----
    After an exception a sequence goes on with its next record, and an iterator is asked for its
    next: a generator has none, and the stream ends there.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    >>> len(list(read(mixture, np.zeros((5, 2, 2)), skip=3)))
    2
    """
    position, failures = skip, 0
    records = _records(family, observations, skip)
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:
            failures += 1
            # what is no source at all says so before there is any record
            refused = position == skip and str(error).startswith("observations:")
            if failures > PATIENCE or refused or not _goes_on(observations):
                raise
            yield Unreadable(error)
            # an iterator stands behind the record that failed, a sequence is begun anew there
            behind = 0 if isinstance(observations, Iterator) else position + 1
            records = _records(family, observations, behind)
        else:
            failures = 0
            yield record
        position += 1


def _records(family: Family, observations: Any, position: int) -> Iterator[Any]:
    """Return the records from `position` on."""
    if hasattr(observations, "from_position"):
        return family.iterate(observations.from_position(position))
    if not position:
        return family.iterate(observations)
    if isinstance(observations, xr.DataArray):
        observations = family.in_order(observations).variable
    elif hasattr(observations, "to_numpy"):
        observations = observations.to_numpy()
    if family.is_batch(observations):
        rest = range(position, observations.shape[0])
        return family.iterate(observations[index] for index in rest)
    if _is_sequence(observations):
        return family.iterate(_rest(family, observations, position))
    return islice(family.iterate(observations), position, None)


def _rest(family: Family, observations: Any, position: int) -> Iterator[Any]:
    """Yield the records of a sequence from `position` on, or all of its batches' from there."""
    last = len(observations) - 1
    if position > last:
        # behind the end of records, but perhaps not of batches, of which there are fewer
        try:
            in_batches = last >= 0 and family.is_batch(observations[last])
        except Exception:
            in_batches = False
        if in_batches:
            yield from islice(family.iterate(observations), position, None)
        return
    record = observations[position]
    if family.is_batch(record):
        yield from islice(family.iterate(observations), position, None)
        return
    yield record
    for index in range(position + 1, last + 1):
        yield observations[index]


def _is_sequence(observations: Any) -> bool:
    return (
        hasattr(observations, "__len__")
        and hasattr(observations, "__getitem__")
        and not hasattr(observations, "ndim")
        and not isinstance(observations, Mapping)
    )


def _goes_on(observations: Any) -> bool:
    """Say whether there is a way past a record that cannot be read."""
    return (
        isinstance(observations, Iterator)
        or hasattr(observations, "from_position")
        or hasattr(observations, "ndim")
        or _is_sequence(observations)
    )

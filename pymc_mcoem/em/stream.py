"""Where observations come from: what a source is, and reading it one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import xarray as xr

from pymc_mcoem.interrupts import patiently, raise_if_interrupted, require_readable
from pymc_mcoem.runs.failed_records import MOST_IN_A_ROW
from pymc_mcoem.validation import is_whole

__all__ = [
    "Unreadable",
    "as_values",
    "check_skip",
    "count_observations",
    "in_memory",
    "read",
]


class Family(Protocol):
    """A family, as far as streams ask it what a source and a record are."""

    observation: tuple[str, ...]

    @property
    def model(self) -> Any:
        """The model of one observation."""
        ...

    def as_source(self, observations: Any, /) -> Any:
        """Return observations as they are to be read, or refuse what is ambiguous."""
        ...

    def in_order(self, observations: xr.DataArray, /) -> Any:
        """Return an observation with its dims in the order of the model."""
        ...

    def is_batch(self, record: Any, /) -> bool:
        """Return whether a record is a batch of observations."""
        ...


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
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    >>> len(list(read(mixture, np.zeros((5, 2, 2)), skip=3)))
    2
    >>> len(list(read(mixture, [np.zeros((5, 2, 2)), np.zeros((3, 2, 2))])))
    8
    """
    failures = 0
    for record in _source(family, observations).after(skip):
        failures = failures + 1 if isinstance(record, Unreadable) else 0
        if isinstance(record, Unreadable) and failures > MOST_IN_A_ROW:
            raise record.error
        yield record


def count_observations(family: Family, observations: Any) -> int | None:
    """Return how many observations there are to come, None where that cannot be known.

    Raises
    ------
    TypeError, ValueError
        If it is no source of observations.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    >>> count_observations(mixture, np.zeros((5, 2, 2))), count_observations(mixture, iter([]))
    (5, None)
    """
    return _source(family, observations).length


@dataclass(frozen=True)
class _Source:
    """What was given as observations.

    Attributes
    ----------
    length : int or None
        Observations to come, or batches of them; None where that cannot be known.
    after : callable
        Returns an iterator over the records behind so many.
    """

    length: int | None
    after: Callable[[int], Iterator[Any]]


def _source(family: Family, observations: Any) -> _Source:
    """Return what observations are: one, an array, passes, a sequence, or an iterable.

    Raises
    ------
    TypeError, ValueError
        If they are none of these.
    """
    given = family.as_source(observations)
    if isinstance(given, xr.DataArray):
        given = family.in_order(given).variable
    elif hasattr(given, "to_numpy"):
        # the index of a DataFrame is for columns, and of a Series for labels
        given = given.to_numpy()
    kind = type(given).__name__
    if isinstance(given, (Mapping, int, float)):
        return _Source(1, lambda skip: islice([given], skip, None))
    if hasattr(given, "shape") and hasattr(given, "ndim"):
        n_axes = family.model[family.observation[0]].get_value(borrow=True).ndim
        if given.ndim <= n_axes:
            whole = partial(_indexed, lambda _: in_memory(given), 0, 1)
            return _Source(1, lambda skip: islice(whole(), skip, None))
        length = given.shape[0]
        if not is_whole(length):
            raise ValueError(
                f"observations: got {kind} of shape {given.shape}, whose length is not known; "
                "call its compute_chunk_sizes() first."
            )
        return _Source(
            int(length), lambda skip: _indexed(lambda at: in_memory(given[at]), skip, int(length))
        )
    length = None
    # endless passes, and loaders of streams, have no length though their class has one
    with suppress(TypeError):
        length = len(given)
    if hasattr(given, "from_position"):
        return _Source(length, lambda skip: _after(family, partial(_of_passes, given), skip))
    if not isinstance(given, (str, bytes)):
        if length is not None and hasattr(given, "__getitem__"):
            records = partial(_indexed, given.__getitem__, end=length)
            return _Source(length, lambda skip: _after(family, records, skip))
        if isinstance(given, Iterable):
            return _Source(
                length, lambda skip: islice(_spread(family, _asked(iter(given))), skip, None)
            )
    raise TypeError(f"observations: got {kind}; pass an array, a DataArray, or an iterable.")


def _spread(family: Family, records: Iterable[Any], batches: bool | None = None) -> Iterator[Any]:
    """Yield records, each read once and in the model's order; batches spread out.

    Parameters
    ----------
    family : Family
    records : iterable
        Single observations or batches of them, or an `Unreadable` for one that could not be read.
    batches : bool, optional
        Whether the stream is one of batches. Not given: whether the first record that can be
        read is one.

    Yields
    ------
    array_like, mapping, or Unreadable
        An `Unreadable` for each record, or observation of a batch, whose reading raises.
    """
    for given in records:
        if isinstance(given, Unreadable):
            yield given
            continue
        try:
            record, is_batch = patiently(partial(_prepared, family, given))
            length = record.shape[0] if is_batch else 1
        except Exception as error:
            require_readable(error)
            yield Unreadable(error)
            continue
        if batches is None:
            batches = is_batch
        if not (batches and is_batch):
            yield record
            continue
        for index in range(length):
            try:
                single = patiently(partial(record.__getitem__, index))
            except Exception as error:
                require_readable(error)
                single = Unreadable(error)
            yield single


def _prepared(family: Family, record: Any) -> tuple[Any, bool]:
    """Return a record of an iterable in memory and the model's order, and whether it is a batch.

    Raises
    ------
    Exception
        What reading it raises.
    """
    if isinstance(record, xr.DataArray):
        # one with the wrong dims is left as it is: encode refuses it, and is heard
        with suppress(ValueError):
            record = family.in_order(record)
    record = in_memory(record)
    return record, family.is_batch(record)


def in_memory(record: Any) -> Any:
    """Return a record as NumPy or, with its dims, xarray has it in memory.

    What would be read anew at every look at it is read once. What cannot be read as an array is
    returned as it is, for the family to refuse.

    Examples
    --------
    >>> in_memory(xr.Variable("age", [1.0, 2.0]))
    array([1., 2.])
    """
    if isinstance(record, xr.Variable):
        return record.to_numpy()
    if hasattr(record, "__dask_graph__"):
        return record.compute()
    if hasattr(record, "__array__") and not isinstance(record, (np.ndarray, np.generic)):
        with suppress(RuntimeError, TypeError, ValueError):
            return np.asanyarray(record)
    return record


def as_values(name: str, value: Any) -> np.ma.MaskedArray:
    """Return the values of one observation in float64, masked where they were masked.

    Parameters
    ----------
    name : str
        What they are, for the message.
    value : array_like

    Raises
    ------
    TypeError
        If they are no real numbers.
    ValueError
        If they make no array, as rows of different lengths.

    Examples
    --------
    >>> as_values("observation", np.float32([1, 2])).dtype
    dtype('float64')
    >>> as_values("observation", [[1.0], [2.0, 3.0]])
    Traceback (most recent call last):
        ...
    ValueError: observation is a list that makes no array of numbers (...); give one array, ...
    """
    try:
        array = np.ma.asanyarray(value)
    except (MemoryError, OSError):
        # not the record's fault, but the reader's
        raise
    except Exception as error:
        raise_if_interrupted(error)
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"{name} is a {type(value).__name__} that makes no array of numbers ({error}); give "
            "one array, and of pairs, as of image and label, the first alone."
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}; convert it to real numbers first.")
    # what overflows becomes infinite, and is refused as that
    with np.errstate(over="ignore"):
        values: np.ma.MaskedArray = array.astype(np.float64)
    return values


def _after(family: Family, records: Callable[[int], Iterator[Any]], skip: int) -> Iterator[Any]:
    """Yield the observations from `skip` on of a source whose records can be had from any on."""
    if not skip:
        return _spread(family, records(0))
    # A stream of batches counts observations, another its records. Which it is was said by the
    # first record that could be read, when it was begun.
    if _has_batches(family, records(0)):
        return islice(_spread(family, records(0)), skip, None)
    return _spread(family, records(skip), batches=False)


def _has_batches(family: Family, records: Iterator[Any]) -> bool:
    for given in islice(records, MOST_IN_A_ROW):
        if not isinstance(given, Unreadable):
            try:
                return _prepared(family, given)[1]
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

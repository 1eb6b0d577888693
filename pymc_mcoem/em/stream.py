"""Sources of observations, and reading them one record at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import xarray as xr

from pymc_mcoem.em.addresses import addresses_in
from pymc_mcoem.interrupts import raise_if_interrupted, require_readable, with_retries
from pymc_mcoem.runs.failed_records import MOST_IN_A_ROW
from pymc_mcoem.validation import is_whole

__all__ = [
    "Unreadable",
    "as_values",
    "check_skip",
    "count_observations",
    "in_memory",
    "is_single",
    "read",
    "reader_of",
]


class _Family(Protocol):
    """The part of a family that streams use; `ModelObservations` has it."""

    observation: tuple[str, ...]

    @property
    def model(self) -> Any: ...
    def as_source(self, observations: Any, /) -> Any: ...
    def in_order(self, observations: xr.DataArray, /) -> Any: ...
    def is_batch(self, record: Any, /) -> bool: ...


@dataclass(frozen=True)
class Unreadable:
    """Placeholder for a record for which the source raised an exception."""

    error: Exception


def check_skip(skip: Any) -> None:
    """Check that `skip` is a number of records.

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


def read(
    family: _Family,
    observations: Any,
    skip: int = 0,
    look: Callable[[Iterator[Any]], Iterator[Any]] | None = None,
) -> Iterator[Any]:
    """Yield the records of a source, with an `Unreadable` for each that cannot be read.

    Parameters
    ----------
    observations : array_like, mapping, or iterable
        As `Family.iterate` takes them.
    skip : int
        Number of records to skip. In arrays, sequences, and objects with a ``from_position``, they
        are not read, except the first, which shows whether the records are batches; batches are
        read.
    look : callable, optional
        If given, observations of a Dask or Zarr array are not read here: `look` takes an `Address`
        for each, and yields the records; see `looked_at`.

    Raises
    ------
    TypeError, ValueError
        If `observations` is not a source of observations.
    Exception
        Any exception of the source that follows a hundred failures in a row.
    KeyboardInterrupt, SystemExit, MemoryError, OSError
        Failures that are not due to a record; see `require_readable`.

    Notes
    -----
    After an exception, reading goes on with the next record of a sequence or iterator; a generator
    has none, so its stream ends there. A record of a sequence that memory, a disk or a network
    failed to provide is first read twice more. Running out of memory and a lost network connection
    are not due to a record and are raised. A batch that cannot be read counts as one record, since
    its length is not known.

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
    records = _source(family, observations, by_address=look is not None).after(skip)
    for record in records if look is None else look(records):
        failures = failures + 1 if isinstance(record, Unreadable) else 0
        if isinstance(record, Unreadable) and failures > MOST_IN_A_ROW:
            raise record.error
        yield record


def count_observations(family: _Family, observations: Any) -> int | None:
    """Return the number of observations in a source; None if it is not known.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    >>> count_observations(mixture, np.zeros((5, 2, 2))), count_observations(mixture, iter([]))
    (5, None)
    """
    return _source(family, observations).length


def is_single(family: _Family, observations: Any) -> bool:
    """Return whether a source is one observation and not several.

    Returns
    -------
    bool
        Whether it is a mapping, a number, or an array with no more axes than an observation.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((2, 2), n_classes=1, n_landmarks=2)
    >>> is_single(mixture, np.zeros((2, 2))), is_single(mixture, np.zeros((1, 2, 2)))
    (True, False)
    """
    if isinstance(observations, (Mapping, int, float)):
        return True
    if not (hasattr(observations, "shape") and hasattr(observations, "ndim")):
        return False
    n_axes = family.model[family.observation[0]].get_value(borrow=True).ndim
    return bool(observations.ndim <= n_axes)


@dataclass(frozen=True)
class _Source:
    """A source of observations.

    Attributes
    ----------
    length : int or None
        Number of observations, or of batches; None if it is not known.
    after : callable
        Takes a number of records to skip and returns an iterator over the others.
    """

    length: int | None
    after: Callable[[int], Iterator[Any]]


def _source(family: _Family, observations: Any, by_address: bool = False) -> _Source:
    """Return the source for one observation, an array, passes, a sequence, or an iterable."""
    given = family.as_source(observations)
    if isinstance(given, xr.DataArray):
        given = family.in_order(given).variable
    elif hasattr(given, "to_numpy"):
        # indexing selects columns of a DataFrame, and labels of a Series
        given = given.to_numpy()
    kind = type(given).__name__
    if is_single(family, given):
        whole = partial(_indexed, lambda _: in_memory(given), 0, 1)
        return _Source(1, lambda skip: islice(whole(), skip, None))
    if hasattr(given, "shape") and hasattr(given, "ndim"):
        length = given.shape[0]
        if not is_whole(length):
            raise ValueError(
                f"observations: got {kind} of shape {given.shape}, whose length is not known; "
                "call its compute_chunk_sizes() first."
            )
        record = reader_of(given, by_address)
        return _Source(int(length), lambda skip: _indexed(record, skip, int(length)))
    if hasattr(given, "keys"):
        raise TypeError(
            f"observations: got {kind} with {sorted(map(str, given.keys()))}; pass one of these."
        )
    length = None
    # endless passes and loaders of streams have no length although their class defines one
    with suppress(TypeError):
        length = len(given)
    if hasattr(given, "from_position"):
        begin = given.from_position
        if by_address:
            begin = getattr(given, "addresses_from", begin)
        return _Source(length, lambda skip: _after(family, partial(_of_passes, begin), skip))
    if not isinstance(given, (str, bytes)):
        if length is not None and hasattr(given, "__getitem__"):
            records = partial(_indexed, given.__getitem__, end=length)
            return _Source(length, lambda skip: _after(family, records, skip))
        if isinstance(given, Iterable):
            return _Source(
                length, lambda skip: islice(_spread(family, _asked(iter(given))), skip, None)
            )
    raise TypeError(f"observations: got {kind}; pass an array, a DataArray, or an iterable.")


def reader_of(array: Any, by_address: bool) -> Callable[[int], Any]:
    """Return the function that reads the observation at an index of an array or a sequence.

    With `by_address`, it returns the `Address` instead if there is one.
    """
    if not by_address:
        return lambda index: in_memory(array[index])
    address = addresses_in(array.data if isinstance(array, xr.Variable) and array.chunks else array)
    return lambda index: address(index) or in_memory(array[index])


def _spread(family: _Family, records: Iterable[Any], batches: bool | None = None) -> Iterator[Any]:
    """Yield observations, each read once and in the model's order, splitting batches.

    Parameters
    ----------
    records : iterable
        Single observations or batches of them, or an `Unreadable` for one that could not be read.
    batches : bool, optional
        Whether the records are batches. By default, whether the first readable one is.

    Yields
    ------
    array_like, mapping, or Unreadable
        An `Unreadable` for each record, or observation of a batch, that cannot be read.
    """
    for given in records:
        if isinstance(given, Unreadable):
            yield given
            continue
        try:
            record, is_batch = with_retries(partial(_prepared, family, given))
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
                single = with_retries(partial(record.__getitem__, index))
            except Exception as error:
                require_readable(error)
                single = Unreadable(error)
            yield single


def _prepared(family: _Family, record: Any) -> tuple[Any, bool]:
    """Return a record in memory and in the model's order, and whether it is a batch."""
    if isinstance(record, xr.DataArray):
        # a record with the wrong dims stays as it is, for encode to refuse it
        with suppress(ValueError):
            record = family.in_order(record)
    record = in_memory(record)
    return record, family.is_batch(record)


def in_memory(record: Any) -> Any:
    """Return a record in memory, as a NumPy array or a DataArray.

    Lazy arrays are read once. An object that cannot be read as an array is returned unchanged,
    for the family to refuse.

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
        # not due to the record
        raise
    except Exception as error:
        raise_if_interrupted(error)
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"{name} is a {type(value).__name__} that makes no array of numbers ({error}); give "
            "one array, or only the first of a pair, as of image and label."
        ) from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}; convert it to real numbers first.")
    # overflow becomes infinite and is refused as such
    with np.errstate(over="ignore"):
        values: np.ma.MaskedArray = array.astype(np.float64)
    return values


def _after(family: _Family, records: Callable[[int], Iterator[Any]], skip: int) -> Iterator[Any]:
    """Yield the observations from `skip` on of a source that can be read from any record."""
    if not skip:
        return _spread(family, records(0))
    # `skip` counts observations in a stream of batches, and records otherwise. The first readable
    # record of the stream shows which it is.
    if _has_batches(family, records(0)):
        return islice(_spread(family, records(0)), skip, None)
    return _spread(family, records(skip), batches=False)


def _has_batches(family: _Family, records: Iterator[Any]) -> bool:
    for given in islice(records, MOST_IN_A_ROW):
        if not isinstance(given, Unreadable):
            try:
                return _prepared(family, given)[1]
            except Exception as error:
                require_readable(error)
    return False


def _indexed(get: Callable[[int], Any], begin: int, end: int) -> Iterator[Any]:
    """Yield the records of a sequence, with an `Unreadable` for each that raises."""
    for index in range(begin, end):
        try:
            record = with_retries(partial(get, index))
        except Exception as error:
            require_readable(error)
            record = Unreadable(error)
        yield record


def _asked(records: Iterator[Any]) -> Iterator[Any]:
    """Yield the records of an iterator, continuing after one that raises."""
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:
            require_readable(error)
            record = Unreadable(error)
        yield record


def _of_passes(begin: Callable[[int], Iterator[Any]], position: int) -> Iterator[Any]:
    """Yield the records of passes from `position` on, restarting after each that raises."""
    records = begin(position)

    def ask() -> Any:
        return next(records)

    def begin_anew() -> None:
        nonlocal records
        records = begin(position)

    while True:
        try:
            record = with_retries(ask, begin_anew)
        except StopIteration:
            return
        except Exception as error:
            require_readable(error)
            record = Unreadable(error)
            records = begin(position + 1)
        yield record
        position += 1

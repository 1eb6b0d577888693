"""Finite data as a stream: passes in seeded orders, read one record at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.stream import reader_of
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.validation import is_whole, require_whole

__all__ = ["Passes"]

#: Keeps the generators of orders distinct from those of a driver with the same seed, whose spawn
#: keys are single numbers.
ORDERS = 1


class Passes:
    """Passes over finite data, each in its own random order, read one record at a time.

    Parameters
    ----------
    observations : array_like, DataArray, or sequence
        Anything with a length and an index from 0: an array of shape ``(n, *grid)`` of NumPy,
        Dask or Zarr, a DataArray with the observations along its first dim, a DataFrame with one
        in each row, a list, a ``Dataset`` of PyTorch.
    n_passes : int, optional
        Number of passes; None for endless passes.
    replace : bool
        Whether records are drawn with replacement, as the paper draws its growth curves. A pass
        is then as many draws as there are observations. Otherwise each pass is a new permutation.
    random_seed : int or sequence of int, optional
        Seed of the orders; None takes one from the operating system, once. The attribute
        `random_seed` has it: give it again to continue the same passes in another process.

    Raises
    ------
    TypeError
        If the observations have no length or no index.
    ValueError
        If there are none, or `n_passes` is not a whole number from 1.

    Notes
    -----
    The order of pass p depends only on the seed and p: iterating again, or from another position,
    gives the same records. Memory holds the order of one pass, eight bytes per observation, and
    the record being read. Dask and Zarr read a whole chunk for one record, so data in random
    order are cheapest with chunks of one observation.

    Examples
    --------
    >>> passes = Passes(["a", "b", "c", "d"], n_passes=2, random_seed=1)
    >>> "".join(passes), "".join(passes), len(passes)
    ('adcbdabc', 'adcbdabc', 8)
    >>> "".join(passes.from_position(6))
    'bc'

    Endless draws with replacement:

    >>> from itertools import islice
    >>> endless = Passes(["a", "b", "c", "d"], n_passes=None, replace=True, random_seed=1)
    >>> "".join(islice(endless, 11))
    'dadcacdbddd'
    """

    def __init__(
        self,
        observations: Any,
        n_passes: int | None = 1,
        *,
        replace: bool = False,
        random_seed: int | Sequence[int] | None = None,
    ) -> None:
        if not isinstance(observations, xr.DataArray) and hasattr(observations, "to_numpy"):
            # indexing selects columns of a DataFrame, and labels of a Series
            observations = observations.to_numpy()
        self._n = _length(observations)
        if n_passes is not None and not (is_whole(n_passes) and n_passes >= 1):
            raise ValueError(
                f"n_passes: got {n_passes!r}; give a whole number from 1, or None for no end."
            )
        self.observations = observations
        self.n_passes = n_passes
        self.replace = bool(replace)
        self.random_seed = seed_entropy(random_seed)

    def __iter__(self) -> Iterator[Any]:
        """Yield the records of all passes."""
        return self.from_position(0)

    def __len__(self) -> int:
        """Return the number of records of all passes.

        Raises
        ------
        TypeError
            If the passes are endless.
        """
        if self.n_passes is None:
            raise TypeError("n_passes is None: these passes have no end and no length.")
        return self.n_passes * self._n

    def from_position(self, position: int) -> Iterator[Any]:
        """Return an iterator over the records from `position` on, without reading those before.

        Parameters
        ----------
        position : int
            Counted from 0 over all passes. The number of all records gives an empty iterator.

        Raises
        ------
        ValueError
            If `position` is not a whole number from 0, or is beyond the end.

        Examples
        --------
        >>> passes = Passes([10, 20, 30], n_passes=2, random_seed=1)
        >>> list(passes.from_position(4)) == list(passes)[4:]
        True
        """
        require_whole("position", position, 0)
        if self.n_passes is not None and position > len(self):
            raise ValueError(
                f"position: got {position}, and {self.n_passes} passes over {self._n} observations "
                f"have {len(self)} records; start at one of them, or ask for more passes."
            )
        return self._records(int(position), by_address=False)

    def addresses_from(self, position: int) -> Iterator[Any]:
        """Return the same as `from_position`, with addresses in place of what workers can read.

        `OnlineEM` with an executor uses these, so that its workers read the observations of a Dask
        array, and of a Zarr array that is not in memory.
        """
        return self._records(position, by_address=True)

    def _records(self, position: int, by_address: bool) -> Iterator[Any]:
        record = reader_of(self.observations, by_address)
        first, done = divmod(position, self._n)
        passes = count(first) if self.n_passes is None else range(first, self.n_passes)
        for number in passes:
            for index in self._order(number)[done:]:
                yield record(int(index))
            done = 0

    def _order(self, number: int) -> np.ndarray:
        """Return the order of a pass, counted from 0, shape (n,)."""
        seed = np.random.SeedSequence(self.random_seed, spawn_key=(ORDERS, number))
        rng = np.random.default_rng(seed)
        return rng.integers(self._n, size=self._n) if self.replace else rng.permutation(self._n)

    def __repr__(self) -> str:
        """Return the number of observations and how they are drawn."""
        often = "endless" if self.n_passes is None else f"n_passes={self.n_passes}"
        return f"Passes({self._n} observations, {often}, replace={self.replace})"


def _length(observations: Any) -> int:
    """Return the number of observations; refuse data without any or without an index."""
    kind = type(observations).__name__
    # Zarr arrays have a shape but no len
    shape = getattr(observations, "shape", None)
    sized = shape is not None or hasattr(observations, "__len__")
    indexed = sized and hasattr(observations, "__getitem__")
    if not indexed or isinstance(observations, (str, bytes, Mapping)):
        raise TypeError(
            f"observations: got {kind}; pass an array, or a sequence with a length and an index. "
            "Pass a stream that can be read only once to OnlineEM.partial_fit as it is."
        )
    n = len(observations) if shape is None else (*shape, None)[0]
    if not is_whole(n):
        # an array without axes, or a Dask array whose length has to be computed
        raise TypeError(
            f"observations: got {kind} of shape {shape}, whose length is not known; pass an array "
            "with the observations along its first axis, of Dask after compute_chunk_sizes()."
        )
    if n == 0:
        raise ValueError("observations: got none; pass at least one observation.")
    return int(n)

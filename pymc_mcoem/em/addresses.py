"""Addresses of observations of Dask and Zarr arrays, read in the process that needs them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from pymc_mcoem.interrupts import raise_if_interrupted

if TYPE_CHECKING:
    from pymc_mcoem.labeling import Arrays

__all__ = ["Address", "Seen", "addresses_in"]

#: Largest pickled block, in bytes, that counts as an address. A larger one contains the data.
LARGEST = 65_536


@dataclass(frozen=True)
class Address:
    """Where an observation of a Dask or Zarr array lies.

    Attributes
    ----------
    block : bytes
        The pickled Zarr array, or Dask array of one chunk's observations, which says how they are
        read.
    index : int
        The observation's index in it.
    """

    block: bytes = field(repr=False)
    index: int

    def read(self) -> Any:
        """Read the observation in this process and thread."""
        block = cloudpickle.loads(self.block)
        if is_zarr(block):
            # an array that is not there would be read as fill values, but opening it raises
            return sys.modules["zarr"].open_array(block.store_path, mode="r")[self.index]
        # in a worker Dask would use the cluster, whose workers would wait for each other
        return block[self.index].compute(scheduler="synchronous")


@dataclass(frozen=True)
class Seen:
    """Report on an observation that a worker read, without its values.

    Attributes
    ----------
    address : Address
    spanned : dict of str to ndarray
        Its ranges, as from `pymc_mcoem.runs.outliers.span`.
    refusal : Exception or None
        The exception with which the family refuses it.
    """

    address: Address
    spanned: Arrays
    refusal: Exception | None = None


def is_zarr(array: Any) -> bool:
    """Return whether an array is one of Zarr, from version 3 on."""
    return hasattr(array, "store_path")


def addresses_in(array: Any) -> Callable[[int], Address | None]:
    """Return the function that gives the address of an observation by its index.

    Parameters
    ----------
    array : dask.array.Array, zarr.Array, or other array
        Observations along its first axis.

    Returns
    -------
    callable
        It returns None for an observation that has no address: in an array of another kind, and in
        a chunk or store that cannot be pickled or contains the data.

    Examples
    --------
    >>> import dask.array as da
    >>> ones = da.ones((1_000_000, 28, 28), chunks=(1_000, 28, 28))
    >>> address = addresses_in(ones)(123_456)
    >>> address, address.read().shape
    (Address(index=456), (28, 28))
    >>> addresses_in(da.from_array(np.ones((1_000, 28, 28))))(0) is None
    True
    """
    if is_zarr(array):
        place = _pickled(array)
        return lambda index: None if place is None else Address(place, index)
    # xarray's objects in memory have such a graph too, but no chunks
    if not (hasattr(array, "__dask_graph__") and array.chunks):
        return lambda _: None
    ends = np.cumsum(array.chunks[0])
    last: tuple[int, bytes | None] = (-1, None)

    def address(index: int) -> Address | None:
        nonlocal last
        number = int(np.searchsorted(ends, index, side="right"))
        begin = int(ends[number]) - int(array.chunks[0][number])
        if number != last[0]:
            last = number, _pickled_block(array[begin : int(ends[number])])
        return None if last[1] is None else Address(last[1], index - begin)

    return address


def _pickled_block(block: Any) -> bytes | None:
    """Return a Dask array, pickled with no more than it needs, or None if it has no address."""
    from dask.base import optimize

    distributed = sys.modules.get("distributed")
    if distributed is not None and distributed.futures_of(block):
        return None  # it lies in a worker's memory, which only the client can read
    try:
        return _pickled(optimize(block)[0])
    except Exception as error:
        raise_if_interrupted(error)
        return None


class _Short(io.BytesIO):
    """A file that refuses to be longer than an address, so that large data are not copied."""

    def write(self, content: Any, /) -> int:
        if self.tell() + memoryview(content).nbytes > LARGEST:
            raise ValueError("it contains the data")
        return super().write(content)


def _pickled(lying: Any) -> bytes | None:
    """Return an array, pickled, or None if it has no address."""
    file = _Short()
    try:
        cloudpickle.dump(lying, file)
    except Exception as error:
        raise_if_interrupted(error)
        return None
    return file.getvalue()

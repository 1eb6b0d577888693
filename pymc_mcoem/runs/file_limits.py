"""Limits on the contents of a file, which are checked before it is read as a saved run.

A checksum detects damage but not malice. In HDF5 a small file can demand a lot: circular links or
links to other files, endlessly nested groups, arrays whose declared data do not exist, many names
for one long text. Saved runs have none of these.
"""

from __future__ import annotations

from math import prod
from typing import Any

import h5py
import numpy as np

__all__ = ["bounded_groups"]

#: Largest depth of groups.
DEPTH = 2
#: Largest number of groups. A file has five.
GROUPS = 1000
#: Largest number of axes of an HDF5 array; an attribute of that length names its dimensions.
AXES = 32
#: Mark of netCDF dimensions without labels, which have a size but no content and are not read.
NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
#: Number of bytes that refer to a text stored elsewhere in the file.
TEXT_APART = 16
NUMBER_TYPES = (h5py.h5t.TypeIntegerID, h5py.h5t.TypeFloatID)


def bounded_groups(file: h5py.File, size: int) -> list[str]:
    """Return the paths of the groups of a file, parents first, after checking its limits.

    Parameters
    ----------
    size : int
        Number of bytes of the file, which the sum of its parts may not exceed.
    """
    budget = _Budget(size)
    groups, waiting = [], [("/", 0)]
    known = {_place(file)}
    while waiting:
        path, depth = waiting.pop()
        group = file[path]
        groups.append(path)
        budget.spend_attributes(group, path)
        for name in group:
            inner = f"{path.rstrip('/')}/{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise _refused(inner, "is stored elsewhere")
            part = group[name]
            if _place(part) in known:
                raise _refused(inner, "has two names")
            known.add(_place(part))
            if isinstance(part, h5py.Group):
                if len(groups) + len(waiting) >= GROUPS:
                    raise _refused(inner, "exceeds the number of groups")
                if depth == DEPTH:
                    raise _refused(inner, "is nested too deeply")
                waiting.append((inner, depth + 1))
            elif isinstance(part, h5py.Dataset):
                budget.spend_attributes(part, inner)
                budget.spend_array(part, inner)
            else:
                raise _refused(inner, "is neither a group nor an array")
    return groups


class _Budget:
    """Number of bytes that the rest of a file may have."""

    def __init__(self, size: int) -> None:
        self.left = size

    def spend(self, size: int, where: str) -> None:
        self.left -= size
        if self.left < 0:
            raise _refused(where, "declares more than the whole file holds")

    def spend_attributes(self, part: h5py.Group | h5py.Dataset, where: str) -> None:
        for index in range(h5py.h5a.get_num_attrs(part.id)):
            attribute = h5py.h5a.open(part.id, index=index)
            kind, count = attribute.get_type(), prod(attribute.shape or ())
            name = attribute.name.decode(errors="replace")
            what = f"{name} of {where}"
            self.spend(count * kind.get_size(), what)
            if _is_text_apart(kind) or _is_references(kind):
                if count > AXES:
                    raise _refused(what, "has too many values for an attribute")
                self.spend(sum(map(_length, np.ravel(part.attrs[name]))), what)
            elif not (
                isinstance(kind, (*NUMBER_TYPES, h5py.h5t.TypeStringID)) or name == "REFERENCE_LIST"
            ):
                raise _refused(what, "has a type that no attribute of a run has")

    def spend_array(self, part: h5py.Dataset, where: str) -> None:
        if part.external or part.is_virtual:
            raise _refused(where, "is stored elsewhere")
        kind, count = part.id.get_type(), prod(part.shape or ())
        if not isinstance(kind, (*NUMBER_TYPES, h5py.h5t.TypeStringID)):
            raise _refused(where, "has a type that no array of a run has")
        # Arrays that can grow are filled up to the length of their dimension when they are read.
        # Only those of length 0 are written like that. Dimensions are checked here as well.
        grows = part.chunks is not None or part.maxshape != part.shape
        if part.shape is None or (grows and count):
            raise _refused(where, "is kept in pieces, compressed, or without an end")
        name = part.attrs.get("NAME", b"")
        if isinstance(name, bytes) and name.startswith(NO_VARIABLE):
            return
        size = count * (TEXT_APART if _is_text_apart(kind) else kind.get_size())
        self.spend(size, where)
        if part.id.get_storage_size() != size:
            raise _refused(where, "declares a size that it does not have")
        if _is_text_apart(kind):
            for index in np.ndindex(part.shape):
                self.spend(_length(part[index]), where)


def _place(part: Any) -> tuple[int, int]:
    info = h5py.h5o.get_info(part.id)
    return info.fileno, info.addr


def _is_text_apart(kind: Any) -> bool:
    """Return whether a type is that of texts stored elsewhere in the file."""
    return isinstance(kind, h5py.h5t.TypeStringID) and bool(kind.is_variable_str())


def _is_references(kind: Any) -> bool:
    """Return whether a type is that of the attribute with an array's dimensions."""
    return isinstance(kind, h5py.h5t.TypeVlenID) and isinstance(
        kind.get_super(), h5py.h5t.TypeReferenceID
    )


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else 0


def _refused(where: str, why: str) -> ValueError:
    return ValueError(f"{where!r} {why}; no saved run has such a part")

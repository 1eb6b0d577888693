"""Records that cannot be read or learned from, and sources and E-steps that have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class Unreadable:
    """A record that the source fails to give."""


def source_of(records):
    """An iterator that raises where a record cannot be read, and goes on."""

    class Source:
        def __init__(self):
            self.left = iter(records)

        def __iter__(self):
            return self

        def __next__(self):
            record = next(self.left)
            if isinstance(record, Unreadable):
                raise OSError("bad sector")
            return record

    return Source()


BAD = {
    "nan": (np.nan, "refused: ValueError: observation: value holds 1 values that are not finite"),
    "infinite": (np.inf, "refused: ValueError: observation: value holds 1 values"),
    "shape": (np.zeros(3), r"refused: ValueError: observation: value has shape \(3,\)"),
    "text": ("text", "refused: TypeError: observation: value has dtype"),
    "complex": (1j, "refused: TypeError: observation: value has dtype complex"),
    "nothing": (None, "refused: TypeError: observation: value has dtype object"),
    "masked": (np.ma.masked_array(1.0, mask=True), "refused: ValueError: .* masked"),
    "unreadable": (Unreadable(), "reading it failed: OSError: bad sector"),
    "not finite": (999.0, "learning it failed: FloatingPointError: statistics: square .* finite"),
    "singular": (888.0, "learning it failed: LinAlgError: singular"),
}


class Disk:
    """A sequence of which some records cannot be read."""

    def __init__(self, values, broken):
        self.values, self.broken, self.read = values, set(broken), []

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        self.read.append(index)
        if index >= len(self.values):
            raise IndexError(index)
        if index in self.broken:
            raise OSError(f"sector {index}")
        return self.values[index]


@dataclass(frozen=True)
class Spoilt:
    """An E-step whose statistics no observation can have, from an observation of all ones."""

    inner: object
    name: str
    value: float

    def compile(self, family):
        inner, spoilt = self.inner, self

        class Compiled:
            initial_state = staticmethod(inner.initial_state)

            def __call__(self, data, *arguments, **options):
                found = inner(data, *arguments, **options)
                if (data["observed_values"] == 1).all():
                    array = found.statistics[spoilt.name]
                    array[(1,) + (0,) * (array.ndim - 1)] = spoilt.value
                return found

        return Compiled()

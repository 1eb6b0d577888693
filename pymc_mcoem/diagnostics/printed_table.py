"""Results that print a table with a row for each class, and remarks."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, ClassVar

import pandas as pd

__all__ = ["PrintedTable", "formatted"]

#: Largest number of printed rows of the table.
_MAX_PRINTED = 40


class PrintedTable:
    """Base class of results that print a table and remarks, as text or in a notebook."""

    table: pd.DataFrame
    flags: tuple[str, ...]
    notes: tuple[str, ...]

    #: Format of each column of the table.
    _formats: ClassVar[Mapping[str, str]]

    @property
    def ok(self) -> bool:
        """Whether nothing was flagged."""
        return not self.flags

    def __repr__(self) -> str:
        table = [self._printed().to_string(), *self._rows_left()]
        return "\n".join([self._headline(), *self._in_order(table, self._remarks())])

    def _repr_html_(self) -> str:
        paragraph = "<p>{}</p>".format
        table = [self._printed().to_html(), *(paragraph(line) for line in self._rows_left())]
        remarks = [paragraph(escape(remark)) for remark in self._remarks()]
        headline = f"<p><b>{escape(self._headline())}</b></p>"
        return "\n".join([headline, *self._in_order(table, remarks)])

    def _headline(self) -> str:
        raise NotImplementedError

    def _n_chains(self) -> int:
        raise NotImplementedError

    def _in_order(self, table: list[str], remarks: list[str]) -> list[str]:
        """Put the remarks before the table of a plate, which may fill the screen."""
        is_plate = isinstance(self.table.index, pd.MultiIndex)
        return [*remarks, *table] if is_plate else [*table, *remarks]

    def _printed(self) -> pd.DataFrame:
        frame = self.table.head(_MAX_PRINTED)
        columns = {
            name: [formatted(value, self._formats[str(name)]) for value in frame[name]]
            for name in frame.columns
        }
        return pd.DataFrame(columns, index=frame.index)

    def _rows_left(self) -> list[str]:
        more = len(self.table) - _MAX_PRINTED
        return [f"... and {more} rows more: see the attribute table"] if more > 0 else []

    def _remarks(self) -> list[str]:
        notes = [f"Note: {note}." for note in self.notes]
        if not self.ok:
            return [*(f"Warning: {flag}." for flag in self.flags), *notes]
        n_chains = self._n_chains()
        which = "the chain" if n_chains == 1 else f"{n_chains} chains"
        # Nothing is known of a mode that no chain visited.
        return [f"No problem found in what {which} visited.", *notes]


def formatted(value: Any, pattern: str) -> str:
    """Return a value as text; a dash if it is missing."""
    return "-" if pd.isna(value) else pattern.format(value)

"""Records that are left out: how many in a row may be, and what is kept and told of each."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from pymc_mcoem.runs.atomic_files import remove_leftovers, replace_file

__all__ = [
    "MOST_IN_A_ROW",
    "ON_ERROR",
    "FailedRecord",
    "OnError",
    "check_on_error",
    "leave_out",
    "named",
    "said",
]

_log = logging.getLogger("pymc_mcoem")

#: Records in a row that may be left out until the error is raised all the same.
MOST_IN_A_ROW = 100
#: Letters of a reason that are kept, and of a record that is no numbers.
REASON, SHOWN = 300, 10_000
ON_ERROR = ("raise", "skip")


def said(error: BaseException) -> str:
    """Return the text of an exception, also of one that fails to give it."""
    try:
        return str(error)
    except Exception:
        return "it has no text"


def named(error: Exception) -> str:
    """Return an exception as one line, not too long, that every file can hold.

    Examples
    --------
    >>> named(OSError("bad sector"))
    'OSError: bad sector'
    """
    first = said(error).strip().partition("\n")[0]
    if len(first) > REASON:
        first = f"{first[:REASON]} …"
    plain = (
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in first
    )
    return f"{type(error).__name__}: {''.join(plain)}"


type OnError = Literal["raise", "skip"] | Callable[["FailedRecord"], object] | os.PathLike[str]


@dataclass(frozen=True)
class FailedRecord:
    """A record that a run goes on without.

    Attributes
    ----------
    position : int
        Which record of the stream it is, counted from 0.
    reason : str
        One line: what failed, and the exception.
    observation : object
        The record as it came, or as it was held; None if it could not be read.
    """

    position: int
    reason: str
    observation: Any = None


def check_on_error(on_error: Any) -> None:
    """Complain about what cannot be done with records.

    Raises
    ------
    ValueError, FileNotFoundError, NotADirectoryError
        If it is neither of the two words, nor a function, nor a folder that is or can be made.

    Examples
    --------
    >>> check_on_error("ignore")
    Traceback (most recent call last):
        ...
    ValueError: on_error: got 'ignore'; choose one of ('raise', 'skip'), or give a function of ...
    """
    if isinstance(on_error, os.PathLike):
        folder = Path(on_error)
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"on_error: {str(folder)!r} is no folder; name another.")
        if not folder.absolute().parent.is_dir():
            raise FileNotFoundError(
                f"on_error: the folder that {str(folder)!r} would be in does not exist; make it "
                "first."
            )
    elif on_error not in ON_ERROR and not callable(on_error):
        raise ValueError(
            f"on_error: got {on_error!r}; choose one of {ON_ERROR}, or give a function of a "
            "FailedRecord, or a folder as a pathlib.Path."
        )


class KeepsReasons(Protocol):
    """The history of a run, as far as it notes which records are missing."""

    skipped: Any

    def skip(self, position: int, reason: str) -> None:
        """Note that the record at `position` was not learned, and why."""
        ...


def leave_out(
    history: KeepsReasons, on_error: Any, records: Sequence[FailedRecord], *, tell: bool = True
) -> None:
    """Hand records over that are left out, keep why, and tell of the first one in the log.

    It comes before the run takes note that they are gone: where it fails, or is interrupted, they
    are come upon again, and handed over again.

    Parameters
    ----------
    history : KeepsReasons
        Of the run.
    on_error : str, callable or path-like
        As given to the driver.
    records : sequence of FailedRecord
    tell : bool
        Whether the log is to have it: not where an error is raised.

    Raises
    ------
    Exception
        What a function that they are handed to raises, or writing does.
    """
    for record in records:
        if isinstance(on_error, os.PathLike):
            _write(Path(on_error), record)
        elif callable(on_error):
            on_error(record)
    first = not history.skipped
    for record in records:
        history.skip(record.position, record.reason)
    if first and tell and records:
        _log.warning(
            "Record %d, counted from 0, is left out: %s Further ones are only counted, with their "
            "reasons in history.",
            records[0].position,
            records[0].reason,
        )


def _write(folder: Path, record: FailedRecord) -> None:
    """Write a record to a file of its own, named by its position, whole or not at all.

    What another run has left under that name stays: the record then has a number behind it.
    """
    content = io.BytesIO()
    given = record.observation
    parts = {} if given is None else {"observation": given}
    if isinstance(given, Mapping):
        parts = {f"observation:{name}": each for name, each in given.items()}
    arrays: dict[str, Any] = {name: _as_array(value) for name, value in parts.items()}
    np.savez(content, reason=record.reason, position=record.position, **arrays)
    folder.mkdir(exist_ok=True)
    for number in count():
        target = folder / f"{record.position:012d}{f'.{number}' if number else ''}.npz"
        if not target.exists():
            remove_leftovers(target)
            replace_file(target, [content.getvalue()], argument="on_error")
            return
        if target.read_bytes() == content.getvalue():
            return


def _as_array(value: Any) -> np.ndarray:
    """Return numbers as they are, masked ones as NaN, and anything else as it shows itself."""
    try:
        if isinstance(value, np.ma.MaskedArray):
            value = np.ma.filled(value.astype(np.float64), np.nan)
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array
        return np.array(repr(value)[:SHOWN])
    except Exception as error:
        return np.array(f"a {type(value).__name__} that cannot be shown: {named(error)}")

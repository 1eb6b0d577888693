"""Records that are skipped: how they are reported, stored and logged."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pymc_mcoem.runs.atomic_files import remove_leftovers, replace_file

__all__ = [
    "MOST_IN_A_ROW",
    "ON_ERROR",
    "FailedRecord",
    "OnError",
    "check_on_error",
    "named",
    "pass_on",
    "refusal",
    "said",
]

#: Number of records in a row that may be skipped; after that, the error is raised in any case.
MOST_IN_A_ROW = 100
#: Largest length of a reason, and of the text of a record that is not numeric.
REASON, SHOWN = 300, 10_000
ON_ERROR = ("raise", "skip")


def refusal(error: Exception, index: int, also: str = "") -> Exception:
    """Return the error that users see if the family refuses observation `index`."""
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"observation {index} (counted from 0{also}) was refused: {error}")


def said(error: BaseException) -> str:
    """Return the text of an exception, even if its ``str`` fails."""
    try:
        return str(error)
    except Exception:
        return "it has no text"


def named(error: Exception) -> str:
    """Return an exception as one short, printable line.

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
    """A record that a run skips.

    Attributes
    ----------
    position : int
        Position of the record in the stream, counted from 0.
    reason : str
        One line: what failed, and the exception.
    observation : object
        The record as given or as held; None if it could not be read.
    """

    position: int
    reason: str
    observation: Any = None


def check_on_error(on_error: Any) -> None:
    """Check the argument `on_error` of drivers.

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


def pass_on(record: FailedRecord, on_error: Any) -> None:
    """Pass a skipped record to the function or into the folder `on_error`, if it is one.

    This comes before the run drops the record. If it fails or is interrupted, the run reads the
    record again and passes it on again.
    """
    if isinstance(on_error, os.PathLike):
        _write(Path(on_error), record)
    elif callable(on_error):
        on_error(record)


def _write(folder: Path, record: FailedRecord) -> None:
    """Write a record atomically to its own file, named by its position.

    A file of another run with that name stays; a number is then appended to the name.
    """
    content = io.BytesIO()
    given = record.observation
    named = {} if given is None else {"observation": given}
    if isinstance(given, Mapping):
        named = {f"observation:{name}": each for name, each in given.items()}
    arrays: dict[str, Any] = {name: _as_array(value) for name, value in named.items()}
    np.savez(content, reason=record.reason, position=record.position, **arrays)
    check_on_error(folder)  # its parent folder may be gone since the run began
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
    """Return numbers unchanged, masked ones as NaN, and anything else as its ``repr``."""
    try:
        if isinstance(value, np.ma.MaskedArray):
            value = np.ma.filled(value.astype(np.float64), np.nan)
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            return array
        return np.array(repr(value)[:SHOWN])
    except Exception as error:
        return np.array(f"a {type(value).__name__} that cannot be shown: {named(error)}")

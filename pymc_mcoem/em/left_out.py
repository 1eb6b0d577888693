"""Records that are left out: how many in a row may be, and what is kept and told of each."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymc_mcoem.em.history import History

__all__ = ["PATIENCE", "leave_out", "named", "said"]

_log = logging.getLogger("pymc_mcoem")

#: Records in a row that may be left out until the error is raised all the same.
PATIENCE = 100
#: Letters of a reason that are kept.
REASON = 300


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


def leave_out(history: History, positions: Sequence[int], reason: str, *, tell: bool) -> None:
    """Keep why records are left out, and tell of the first one in the log.

    Parameters
    ----------
    history : History
        Of the run.
    positions : sequence of int
        Which records, counted from 0.
    reason : str
    tell : bool
        Whether the log is to have it: not where an error is raised.
    """
    first = not history.skipped
    for position in positions:
        history.skip(position, reason)
    if first and tell:
        _log.warning(
            "Record %d, counted from 0, is left out: %s Further ones are only counted, with their "
            "reasons in history.",
            positions[0],
            reason,
        )

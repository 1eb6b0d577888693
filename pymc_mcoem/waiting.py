"""A line that says what is being compiled while somebody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from rich.errors import LiveError
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["tell", "telling"]

_line: ContextVar[Progress | None] = ContextVar("pymc_mcoem_waiting", default=None)


@contextmanager
def telling(enabled: bool = True) -> Iterator[None]:
    """Show what `tell` says while the block runs, in one line that goes when it ends.

    In terminals and notebooks; elsewhere nothing is shown, as while another bar is.

    Parameters
    ----------
    enabled : bool

    Examples
    --------
    >>> with telling(enabled=False):
    ...     tell("the log-density")
    """
    line = Progress(
        SpinnerColumn(),
        TextColumn("Compiling {task.description}"),
        TimeElapsedColumn(),
        transient=True,
        disable=not enabled,
    )
    token = _line.set(line if enabled else None)
    try:
        yield
    finally:
        _line.reset(token)
        if line.live.is_started:
            line.stop()


def tell(what: str) -> None:
    """Say what is compiled from here on.

    Parameters
    ----------
    what : str
        As in "Compiling ...".
    """
    line = _line.get()
    if line is None or not (line.console.is_terminal or line.console.is_jupyter):
        return
    with suppress(LiveError):  # another bar is shown, and stands for this one
        line.start()
        if line.tasks:
            line.update(line.tasks[0].id, description=what)
        else:
            line.add_task(what, total=None)

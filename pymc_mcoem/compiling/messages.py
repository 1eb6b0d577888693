"""Progress line that says what is being compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from rich import get_console
from rich.console import Console
from rich.errors import LiveError
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["FirstCallTold", "compiling", "telling"]

_is_told: ContextVar[bool] = ContextVar("pymc_mcoem_waiting", default=False)


@contextmanager
def telling(enabled: bool = True) -> Iterator[None]:
    """Let `compiling` show its line while the block runs.

    Parameters
    ----------
    enabled : bool

    Examples
    --------
    >>> with telling(enabled=False), compiling("the log-density"):
    ...     pass
    """
    token = _is_told.set(enabled)
    try:
        yield
    finally:
        _is_told.reset(token)


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Show an animated line that says what is compiled, until the block ends.

    The line is shown in terminals and notebooks, where `telling` allows it. A notebook without
    ipywidgets cannot animate it, so the line is printed. Nothing is shown elsewhere.

    Parameters
    ----------
    what : str
        Text after "Compiling".
    """
    console = get_console()
    if not _is_told.get() or not (console.is_terminal or console.is_jupyter):
        yield
        return
    if console.is_jupyter and find_spec("ipywidgets") is None:
        Console(force_jupyter=False, force_terminal=False).print(f"Compiling {what}")
        yield
        return
    columns = SpinnerColumn(), TextColumn("Compiling {task.description}"), TimeElapsedColumn()
    line = Progress(*columns, console=console, transient=True)
    line.add_task(what, total=None)
    try:
        line.start()
    except LiveError:  # An older rich shows one bar at a time, and another one is shown.
        yield
        return
    try:
        yield
    finally:
        line.stop()


class FirstCallTold:
    """A function that is compiled when it is first called: that call shows `compiling`'s line.

    Parameters
    ----------
    function : callable
    what : str or None
        Text after "Compiling"; None for a function that is not compiled.
    """

    def __init__(self, function: Any, what: str | None) -> None:
        self.function, self._what = function, what

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        if self._what is None:
            return self.function(*arguments)
        with compiling(self._what):
            found = self.function(*arguments)
        self._what = None
        return found

"""Progress line that says what is compiled or otherwise waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Event, Thread
from time import monotonic
from typing import Any

from rich import get_console
from rich.console import Console
from rich.errors import LiveError
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["AnnouncedCompilation", "compiling", "telling", "waiting"]

#: Seconds between changes of a notebook's line.
SECONDS_BETWEEN = 1.0

_is_told: ContextVar[bool] = ContextVar("pymc_mcoem_waiting", default=False)
_line: ContextVar[_TerminalLine | _NotebookLine | None] = ContextVar(
    "pymc_mcoem_line", default=None
)


@contextmanager
def telling(enabled: bool = True) -> Iterator[None]:
    """Let `waiting` and `compiling` show their line while the block runs.

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
def waiting(text: str) -> Iterator[None]:
    """Show a moving line that says what is awaited, until the block ends.

    The line is shown in terminals and notebooks, where `telling` allows it. Within another such
    block it takes the place of that block's text.

    Parameters
    ----------
    text : str
    """
    console, outer = get_console(), _line.get()
    if not _is_told.get() or not (console.is_terminal or console.is_jupyter):
        yield
        return
    line = outer or (_NotebookLine() if console.is_jupyter else _TerminalLine(console))
    before = line.text
    line.show(text)
    token = _line.set(line)
    try:
        yield
    finally:
        _line.reset(token)
        line.show(before)


@contextmanager
def compiling(what: str) -> Iterator[None]:
    """Show `waiting`'s line, which says what is compiled."""
    with waiting(f"Compiling {what}"):
        yield


class _TerminalLine:
    """A line of a terminal with a spinner and the seconds so far, gone if its text is empty."""

    def __init__(self, console: Console) -> None:
        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", total=None)
        self.text = ""

    def show(self, text: str) -> None:
        if not text:
            self._progress.stop()
        else:
            self._progress.update(self._task, description=text)
            if not self.text:
                with suppress(LiveError):  # an older rich shows one bar at a time
                    self._progress.start()
        self.text = text


class _NotebookLine:
    """An output of a notebook cell with the seconds so far, empty if its text is.

    Rich would need ipywidgets to change what it has shown.
    """

    def __init__(self) -> None:
        self.text = ""
        self._is_over = Event()
        self._thread = Thread(target=self._move, daemon=True)
        self._handle: Any = None

    def show(self, text: str) -> None:
        from IPython import display

        self.text = text
        if not text:
            self._is_over.set()
            self._thread.join()
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
        elif self._handle is None:
            show: Any = display.display
            self._handle = show({"text/plain": text}, raw=True, display_id=True)
            self._thread.start()

    def _move(self) -> None:
        begun = monotonic()
        while not self._is_over.wait(SECONDS_BETWEEN):
            now = f"{self.text} {monotonic() - begun:.0f} s"
            self._handle.update({"text/plain": now}, raw=True)


class AnnouncedCompilation:
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

"""The progress bar of a run."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from rich import get_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.errors import LiveError
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from pymc_mcoem.em.family import CLASS_WEIGHT

if TYPE_CHECKING:
    from pymc_mcoem.em.run_state import ObservationRecord, RunPosition, StepReport

__all__ = ["CountProgress", "RunProgress", "sparkline"]

BLOCKS = "▁▂▃▄▅▆▇█"
#: Classes that a line of blocks has room for.
BLOCKS_SHOWN = 24
#: Share of the newest observation in the acceptance that is shown.
SMOOTHING = 0.1
#: Seconds after which a bar that still stands at nothing says why.
PATIENCE = 2.0
WAITING = (
    "The first one waits for code to be compiled: for some ten seconds the very first time, for "
    "two in later runs."
)


def sparkline(weights: np.ndarray) -> str:
    """Return class weights as blocks, or, of many classes, the largest and the smallest.

    Parameters
    ----------
    weights : ndarray of shape (n_classes,)
        Their heights are relative to the largest.

    Examples
    --------
    >>> sparkline(np.array([0.1, 0.5, 0.4]))
    '▂█▇'
    """
    largest = float(np.max(weights))
    if len(weights) > BLOCKS_SHOWN:
        return f"{largest:.3f} … {float(np.min(weights)):.3f}"
    if not largest > 0:
        return BLOCKS[0] * len(weights)
    heights = np.rint(np.asarray(weights) / largest * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[height] for height in np.clip(heights, 0, len(BLOCKS) - 1))


class RunProgress:
    """A bar that appears with the second observation, and says how the run stands.

    Parameters
    ----------
    enabled : bool
        Whether it is shown at all.
    total : int or None
        Observations that are to be learnt, where known.

    Notes
    -----
    Columns: observations seen, noise (its standard deviation, where the family has a
    ``noise_variance``), weights of the classes, acceptance of the moves within a class (smoothed
    over about ten observations), time passed and time left. Until the first observation is learnt a
    line below says what it waits for.
    """

    def __init__(self, enabled: bool, total: int | None) -> None:
        self.total = total
        self._enabled = enabled and (total is None or total > 1)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._learnt = 0
        self._acceptance = float("nan")

    def __enter__(self) -> Self:
        """Show the bar if there is more than one observation for certain."""
        if self.total is not None:
            self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()

    def seen(self, state: RunPosition, n_new: int) -> None:
        """Take note of the `n_new`-th observation of this call."""
        if n_new > 1:
            self._show()
        if self._bar is not None:
            self._bar.update(self._task, observations=str(state.n_seen))

    def learnt(self, report: StepReport[Any]) -> None:
        """Take note of a step."""
        for record in report.observations:
            self._count(record)
        self.stands(report.state)

    def visited(self, record: ObservationRecord) -> None:
        """Take note of an observation in the midst of a step of many."""
        self._count(record)
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._learnt, observations=str(record.number), **self._moves()
            )

    def _count(self, record: ObservationRecord) -> None:
        self._learnt += 1
        if np.isnan(self._acceptance):
            self._acceptance = record.acceptance
        elif not np.isnan(record.acceptance):
            self._acceptance += SMOOTHING * (record.acceptance - self._acceptance)

    def _moves(self) -> dict[str, Any]:
        return {} if np.isnan(self._acceptance) else {"acceptance": f"{self._acceptance:.2f}"}

    def stands(self, state: RunPosition) -> None:
        """Show where the run stands."""
        if self._bar is None:
            return
        told: dict[str, Any] = {"observations": str(state.n_seen)}
        if state.parameters is not None and "noise_variance" in state.parameters:
            noise = float(np.sqrt(np.mean(state.parameters["noise_variance"])))
            told["noise"] = f"{noise:.3g}"
        if state.statistics is not None:
            told["weights"] = sparkline(state.statistics[CLASS_WEIGHT])
        self._bar.update(self._task, completed=self._learnt, **told, **self._moves())

    def _show(self) -> None:
        if not self._enabled or self._bar is not None:
            return
        columns = [
            _field(name.lower(), name)
            for name in ("Observations", "Noise", "Weights", "Acceptance")
        ]
        self._bar, self._task = _started(
            columns, self.total, observations="0", noise="", weights="", acceptance=""
        )
        self._enabled = self._bar is not None


class CountProgress:
    """A bar like `RunProgress`'s for work that is counted and nothing else, as classifying.

    Parameters
    ----------
    enabled : bool
        Whether it is shown at all.
    total : int or None
        Observations to come, where known.
    heading : str
        Of the column with the count.

    Notes
    -----
    It appears with the second observation.

    Examples
    --------
    >>> with CountProgress(False, 2, "Classified") as bar:
    ...     bar.advance()
    """

    def __init__(self, enabled: bool, total: int | None, heading: str) -> None:
        self._enabled = enabled and total != 1
        self._total = total
        self._heading = heading
        self._count = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        """Show the bar if there is more than one observation for certain."""
        if self._total is not None:
            self._show()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count one more."""
        self._count += 1
        if self._count > 1:
            self._show()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._count, count=str(self._count))

    def _show(self) -> None:
        if self._enabled and self._bar is None:
            columns = [_field("count", self._heading)]
            self._bar, self._task = _started(columns, self._total, count=str(self._count))
            self._enabled = self._bar is not None


def _console() -> Console | None:
    """Return what to draw on: None, rich's own, but in a notebook without ipywidgets.

    There rich draws nothing and warns at every refresh; on a plain console the bar comes once, as
    it stands at the end.
    """
    if not get_console().is_jupyter:
        return None
    try:
        import_module("ipywidgets")
    except ImportError:
        return Console(force_jupyter=False, force_terminal=False)
    return None


def _field(name: str, heading: str) -> TextColumn:
    return TextColumn(f"{{task.fields[{name}]}}", table_column=Column(heading, no_wrap=True))


def _started(
    told: list[TextColumn], total: int | None, **fields: Any
) -> tuple[Progress | None, TaskID]:
    """Show a bar with the one look that all have; None where another bar is on the screen."""
    columns = [
        BarColumn(bar_width=20),
        *told,
        TimeElapsedColumn(table_column=Column("Elapsed", no_wrap=True)),
    ]
    if total is not None:
        columns.append(TimeRemainingColumn(table_column=Column("Left", no_wrap=True)))
    bar = _Headed(*columns, console=_console())
    task = bar.add_task("", total=total, **fields)
    try:
        bar.start()
    except LiveError:
        # Another bar is on the screen, and this version of rich shows one at a time.
        return None, task
    return bar, task


class _Headed(Progress):
    """A bar with headings, as PyMC's, and a word below it while nothing moves yet."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        shown = list(tasks)
        table = super().make_tasks_table(shown)
        table.box = SIMPLE_HEAD
        table.show_header = True
        if any(not task.completed and (task.elapsed or 0.0) > PATIENCE for task in shown):
            table.caption, table.caption_justify = WAITING, "left"
        return table

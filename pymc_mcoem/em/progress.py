"""Progress bars of runs and of classification."""

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
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from pymc_mcoem.em.family import CLASS_WEIGHT

if TYPE_CHECKING:
    from pymc_mcoem.em.run_state import ObservationRecord, RunState, StepReport

__all__ = ["CountProgress", "RunProgress", "sparkline"]

BLOCKS = "▁▂▃▄▅▆▇█"
#: Largest number of classes that are shown as blocks.
BLOCKS_SHOWN = 24
#: Weight of the newest observation in the smoothed acceptance rate.
SMOOTHING = 0.1
#: Seconds after which a bar without progress explains why.
EXPLAINED_AFTER = 2.0
WAITING = (
    "The first one waits for code to be compiled: for some ten seconds the very first time, for "
    "two in later runs."
)


def sparkline(weights: np.ndarray) -> str:
    """Return class weights as blocks or, for many classes, the largest and the smallest weight.

    Parameters
    ----------
    weights : ndarray of shape (n_classes,)
        Heights of blocks are relative to the largest.

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


class _ProgressBar:
    """A progress bar with headings that appears with the second observation.

    Parameters
    ----------
    enabled : bool
        Whether it is shown at all.
    total : int or None
        Number of observations, if known.
    headings : tuple of str
        Headings of the columns besides the elapsed and the remaining time.
    """

    def __init__(self, enabled: bool, total: int | None, headings: tuple[str, ...]) -> None:
        self.total = total
        self._headings = headings
        self._enabled = enabled and (total is None or total > 1)
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        """Show the bar if it is certain that there is more than one observation."""
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

    def _show(self) -> None:
        if not self._enabled or self._bar is not None:
            return
        columns: list[ProgressColumn] = [
            BarColumn(bar_width=20),
            *(
                TextColumn(f"{{task.fields[{name}]}}", table_column=_headed(name))
                for name in self._headings
            ),
            TimeElapsedColumn(table_column=_headed("Elapsed")),
        ]
        if self.total is not None:
            columns.append(TimeRemainingColumn(table_column=_headed("Left")))
        bar = _Headed(*columns, console=_console())
        fields: dict[str, Any] = dict.fromkeys(self._headings, "") | {self._headings[0]: "0"}
        self._task = bar.add_task("", total=self.total, **fields)
        try:
            bar.start()
        except LiveError:
            # Another bar is on the screen, and this version of rich shows only one.
            self._enabled = False
        else:
            self._bar = bar

    def _update(self, **fields: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, **fields)


class RunProgress(_ProgressBar):
    """Progress bar of a run: observations seen, noise, class weights and acceptance rate.

    Notes
    -----
    Noise is a standard deviation, shown for families with a ``noise_variance``. The acceptance
    rate of the moves within a class is smoothed over about ten observations. Until the first
    observation is learned, a line below the bar says what it waits for.
    """

    def __init__(self, enabled: bool, total: int | None) -> None:
        super().__init__(enabled, total, ("Observations", "Noise", "Weights", "Acceptance"))
        self._learned = 0
        self._acceptance = float("nan")

    def seen(self, state: RunState, n_new: int) -> None:
        """Show that the `n_new`-th observation of this call was seen."""
        if n_new > 1:
            self._show()
        self._update(Observations=str(state.n_seen))

    def learned(self, report: StepReport[Any]) -> None:
        """Show a step."""
        for record in report.observations:
            self._count(record)
        self.stands(report.state)

    def visited(self, record: ObservationRecord) -> None:
        """Show an observation of a step with many."""
        self._count(record)
        self._update(completed=self._learned, Observations=str(record.number), **self._moves())

    def stands(self, state: RunState) -> None:
        """Show the state of the run."""
        if self._bar is None:
            return
        shown = {"Observations": str(state.n_seen), **self._moves()}
        if state.parameters is not None and "noise_variance" in state.parameters:
            shown["Noise"] = f"{np.sqrt(np.mean(state.parameters['noise_variance'])):.3g}"
        if state.statistics is not None:
            shown["Weights"] = sparkline(state.statistics[CLASS_WEIGHT])
        self._update(completed=self._learned, **shown)

    def _count(self, record: ObservationRecord) -> None:
        self._learned += 1
        if np.isnan(self._acceptance):
            self._acceptance = record.acceptance
        elif not np.isnan(record.acceptance):
            self._acceptance += SMOOTHING * (record.acceptance - self._acceptance)

    def _moves(self) -> dict[str, str]:
        return {} if np.isnan(self._acceptance) else {"Acceptance": f"{self._acceptance:.2f}"}


class CountProgress(_ProgressBar):
    """Progress bar that shows only a count, under one heading, as for classification.

    Examples
    --------
    >>> with CountProgress(False, 2, "Classified") as bar:
    ...     bar.advance()
    """

    def __init__(self, enabled: bool, total: int | None, heading: str) -> None:
        super().__init__(enabled, total, (heading,))
        self._count = 0

    def advance(self) -> None:
        """Count one more."""
        self._count += 1
        if self._count > 1:
            self._show()
        self._update(completed=self._count, **{self._headings[0]: str(self._count)})


def _console() -> Console | None:
    """Return a plain console in a notebook without ipywidgets, otherwise None for rich's own.

    In such a notebook rich draws nothing and warns at every refresh. A plain console shows the bar
    once, at the end.
    """
    if not get_console().is_jupyter:
        return None
    try:
        import_module("ipywidgets")
    except ImportError:
        return Console(force_jupyter=False, force_terminal=False)
    return None


def _headed(heading: str) -> Column:
    return Column(heading, no_wrap=True)


class _Headed(Progress):
    """A bar with headings, like PyMC's, and a line below it while there is no progress."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        shown = list(tasks)
        table = super().make_tasks_table(shown)
        table.box = SIMPLE_HEAD
        table.show_header = True
        if any(not task.completed and (task.elapsed or 0.0) > EXPLAINED_AFTER for task in shown):
            table.caption, table.caption_justify = WAITING, "left"
        return table

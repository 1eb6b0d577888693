"""Columns that `CarlinChib` adds to PyMC's progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.progress import TextColumn
from rich.table import Column

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

__all__ = ["progress_columns", "progress_update"]


class SwitchesColumn(TextColumn):
    """Column with switches of the class index, or with seconds while processes compile.

    PyMC's clock stands still until a chain's first draw. With JAX each process compiles before
    that, and only this column changes.
    """

    def __init__(self, *, compiles: bool) -> None:
        super().__init__("{task.fields[switches]}", table_column=Column("Switches", ratio=1))
        self._compiles = compiles
        self._tasks: dict[int, Task] = {}
        self._begun: float | None = None

    def render(self, task: Task) -> Text:
        """Return the text of one chain's cell."""
        self._tasks[task.id] = task
        text = super().render(task)
        if any(other.started and not other.finished for other in self._tasks.values()):
            self._begun = None  # a chain draws, and its bar moves
        elif self._compiles and not task.started:
            now = task.get_time()
            self._begun = now if self._begun is None else self._begun
            text.plain = f"{now - self._begun:.0f} s"
        return text


def progress_columns(
    n_chains: int, *, compiles: bool
) -> tuple[list[TextColumn], dict[str, list[Any]]]:
    """Return the columns of PyMC's progress bar, and the values that they begin with.

    Parameters
    ----------
    n_chains : int
    compiles : bool
        Whether each process compiles before its first draw.
    """
    acceptance = Column("Acceptance", ratio=1)
    columns = [
        SwitchesColumn(compiles=compiles),
        TextColumn("{task.fields[acceptance]:0.2f}", table_column=acceptance),
    ]
    return columns, {"switches": [0] * n_chains, "acceptance": [0.0] * n_chains}


def progress_update(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chain's values of these columns from the statistics of its last draw."""
    return {"switches": stats["class_switches"], "acceptance": stats["class_acceptance"]}

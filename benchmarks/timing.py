"""Timing in turn, tables, and versions, for all benchmarks.

Ways of doing the same work take turns, A B A B, so that a busy machine slows all of them alike, and
medians are reported.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

__all__ = ["console", "in_turn", "make_table", "medians", "resident_mebibytes", "tell_versions"]

PACKAGES = ("pymc_mcoem", "pymc", "pytensor", "numba", "numpy", "arviz", "jax", "numpyro")

console = Console(highlight=False, width=150)


class Turns[Way: Hashable](NamedTuple):
    """Seconds of every round, and the result of the last one, of each way."""

    seconds: dict[Way, list[float]]
    results: dict[Way, Any]


def in_turn[Way: Hashable](
    ways: Mapping[Way, Callable[[], Any]], rounds: int, warm_up: bool = True
) -> Turns[Way]:
    """Call all ways one after the other, round after round.

    Parameters
    ----------
    ways : mapping of any name to callable
    rounds : int
        How often each way is timed.
    warm_up : bool
        Whether each way is called once before, which compiles it.
    """
    results = {way: call() for way, call in ways.items()} if warm_up else {}
    seconds: dict[Way, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            began = time.perf_counter()
            results[way] = call()
            seconds[way].append(time.perf_counter() - began)
    return Turns(seconds, results)


def medians[Way: Hashable](seconds: Mapping[Way, Iterable[float]]) -> dict[Way, float]:
    """Return the median of each way's figures."""
    return {way: statistics.median(each) for way, each in seconds.items()}


def make_table(
    headings: Iterable[str], rows: Iterable[Iterable[str]] = (), title: str = ""
) -> Table:
    """Return a table with a left-aligned first column, to print by ``console.print``."""
    table = Table(title=title or None)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    return table


def resident_mebibytes() -> float:
    """Return the memory of this process from the kernel's count of pages."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def tell_versions() -> None:
    """Print versions of Python and of the packages behind the figures, and the number of cores."""
    Console(highlight=False, soft_wrap=True).print(
        ", ".join(
            [
                f"Python {platform.python_version()}",
                *(f"{name} {_version(name)}" for name in PACKAGES),
                f"{os.cpu_count()} cores",
            ]
        )
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"

"""Options, versions, timing in turn, and tables, for all benchmarks.

Ways of doing the same work take turns, A B A B, so that a busy machine slows all of them alike, and
medians are reported.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import xarray as xr
from rich.console import Console
from rich.table import Table

__all__ = [
    "be_silent",
    "begin",
    "console",
    "in_turn",
    "measured",
    "medians",
    "resident_mebibytes",
    "seconds_of",
    "seconds_since_start",
    "tell_table",
    "tell_versions",
]

PACKAGES = ("pymc_mcoem", "pymc", "pytensor", "numba", "numpy", "arviz", "jax", "numpyro")

console = Console(highlight=False, width=150)


def begin(documentation: str, **options: Any) -> argparse.Namespace:
    """Read a script's options, print versions, and silence what would disturb its tables.

    Parameters
    ----------
    documentation : str
        What ``--help`` prints.
    **options
        Default of each option: a value of the option's type, False for a switch, or a list whose
        first value has the type of all values. With a sentence of help, a pair of default and help.
        Instead of a default, a dictionary of arguments for argparse.
    """
    parser = argparse.ArgumentParser(
        description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, option in options.items():
        default, words = option if isinstance(option, tuple) else (option, None)
        settings: dict[str, Any] = {"default": default, "help": words}
        if isinstance(default, dict):
            settings = {"help": words} | default
        elif default is False:
            settings["action"] = "store_true"
        elif isinstance(default, list):
            settings |= {"nargs": "+", "type": type(default[0])}
        else:
            settings["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    given = parser.parse_args()
    tell_versions()
    be_silent()
    return given


def be_silent() -> None:
    """Silence the log of this process, which would disturb tables."""
    for name in ("pymc_mcoem", "pymc"):
        logging.getLogger(name).setLevel(logging.ERROR)


def measured(file: Path, measure: Callable[[], xr.Dataset], again: bool) -> xr.Dataset:
    """Measure, save and return the result; with `again`, return the saved result instead."""
    if not again:
        file.parent.mkdir(parents=True, exist_ok=True)
        measure().to_netcdf(file, engine="h5netcdf")
    return xr.load_dataset(file, engine="h5netcdf")


class Turns[Way: Hashable](NamedTuple):
    """For each way, seconds of every round and the result of the last one."""

    seconds: dict[Way, list[float]]
    results: dict[Way, Any]


def in_turn[Way: Hashable](
    ways: Mapping[Way, Callable[[], Any]], rounds: int, warm_up: bool = True
) -> Turns[Way]:
    """Call all ways one after the other, round after round.

    With `warm_up` each way is called once before, which compiles it.
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


def seconds_of(
    call: Callable[[], Any], times: int = 20, clock: Callable[[], float] = time.process_time
) -> float:
    """Return the median time of a call, by default in processor seconds of this process."""
    taken = []
    for _ in range(times):
        began = clock()
        call()
        taken.append(clock() - began)
    return statistics.median(taken)


def tell_table(headings: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> None:
    """Print a table with a left-aligned first column."""
    table = Table(title=title or None)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def seconds_since_start() -> float:
    """Return the seconds since this process was started, from Linux's clock of processes."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return uptime - ticks / os.sysconf("SC_CLK_TCK")


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

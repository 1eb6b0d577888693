"""A stream of which a tenth is broken, and what it takes to read it."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import numpy as np

from tests.helpers.toy_families import mixture_stream


def records(seed: int, size: int):
    """Yield `size` good values, and a tenth as many records that are broken."""
    rng = np.random.default_rng(seed)
    values = mixture_stream(rng, size)
    broken = [np.inf, np.nan, np.zeros(4), "text", None, 1j, {"other": 1.0}]
    yield values[0]
    for value in values[1:]:
        if rng.random() < 0.1:
            yield broken[rng.integers(len(broken))]
        yield value


def measured(stream, log: str, skip: int):
    """Pass a stream on from a position, noting memory and open files every 5,000 records."""
    for number, record in enumerate(stream):
        if number < skip:
            continue
        if number % 5_000 == 0:
            with Path(log).open("a") as file:
                resident = int(Path("/proc/self/statm").read_text().split()[1])
                memory = resident * resource.getpagesize() / 2**20
                row = [os.getpid(), number, memory, len(os.listdir("/proc/self/fd"))]
                file.write(json.dumps(row) + "\n")
        yield record

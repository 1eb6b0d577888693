"""Which of many cases run by default: the others of a cross product wait for --runslow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def by_default(cases: Iterable[Any], chosen: Collection[Any]) -> list[Any]:
    """Return parameters of a test: those chosen as they are, and the others marked slow.

    A case is what a test is given of one parameter, or a tuple of what it is given of several.

    Raises
    ------
    ValueError
        If what is chosen is no case: then nothing would stand for the others.
    """
    cases = list(cases)
    missing = [each for each in chosen if each not in cases]
    if missing or not chosen:
        raise ValueError(f"chosen: {missing or 'nothing'} of {cases}; choose among the cases")
    return [
        case
        if case in chosen
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]

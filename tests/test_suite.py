"""The suite itself: what tests share lies in ``tests/helpers``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.representatives import by_default

TESTS = Path(__file__).resolve().parent
#: Imports of modules of the suite, also inside the scripts that tests run in processes.
IMPORTED = re.compile(r"^\s*(?:from|import)\s+tests(?:\.(\w+)|\s+import\s+(\w+))", re.MULTILINE)


def imported_elsewhere(text: str) -> set[str]:
    """Return the folders and files of the suite, but for its helpers, that a text imports from."""
    return {first or second for first, second in IMPORTED.findall(text)} - {"helpers"}


def test_no_test_file_imports_another():
    found = {
        str(path.relative_to(TESTS)): names
        for path in sorted(TESTS.rglob("*.py"))
        if (names := imported_elsewhere(path.read_text()))
    }
    assert not found, f"move what is shared into tests/helpers: {found}"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("from {}.em.test_online import Failing", {"em"}),
        ("    from {} import test_names", {"test_names"}),
        ("import {}.plots.checks as checks", {"plots"}),
        ("from {}.helpers.checks import agreement", set()),
        ("from {} import helpers", set()),
    ],
)
def test_an_import_from_a_test_file_is_found(line, named):
    assert imported_elsewhere(line.format("tests")) == named


def test_cases_that_are_not_chosen_are_slow():
    first, second = by_default([("a", 1), ("b", 2)], {("b", 2)})
    assert first.values == ("a", 1)
    assert [mark.name for mark in first.marks] == ["slow"]
    assert second == ("b", 2)


@pytest.mark.parametrize("chosen", [set(), {"c"}])
def test_some_case_stands_for_those_that_are_slow(chosen):
    with pytest.raises(ValueError, match="chosen: "):
        by_default(["a", "b"], chosen)

"""The documentation names everything that is public, and only tests and scripts that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pymc_mcoem
import pymc_mcoem.datasets
import pymc_mcoem.diagnostics
import pymc_mcoem.plots

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "api.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


EXTENDING = ("esteps", "moves", "pseudo_priors", "schedules")


@pytest.mark.parametrize("module", ["", "datasets", "diagnostics", "plots", *EXTENDING])
def test_the_reference_lists_every_public_name(module):
    found = pymc_mcoem if not module else getattr(pymc_mcoem, module)
    listed = set(re.findall(r"^   (?:\w+\.)*(\w+)$", REFERENCE.read_text(), flags=re.MULTILINE))
    missing = set(found.__all__) - listed - {"datasets", "diagnostics", *EXTENDING}
    assert not missing, f"list {sorted(missing)} in docs/api.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_tests_that_exist(page):
    for file, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text()):
        code = ROOT / "tests" / file
        assert code.exists(), f"{page.name} names tests/{file}, which does not exist"
        assert f"def {name}(" in code.read_text(), f"{page.name} names {name}, not in tests/{file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_scripts_that_exist(page):
    for script in re.findall(r"(?:benchmarks|examples)/\w+\.py", page.read_text()):
        assert (ROOT / script).exists(), f"{page.name} names {script}, which does not exist"

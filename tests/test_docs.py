"""The documentation names everything that is public."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pymc_mcoem
import pymc_mcoem.datasets
import pymc_mcoem.diagnostics
import pymc_mcoem.plots

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "api.md"


EXTENDING = ("esteps", "moves", "pseudo_priors", "schedules")


@pytest.mark.parametrize("module", ["", "datasets", "diagnostics", "plots", *EXTENDING])
def test_the_reference_lists_every_public_name(module):
    found = pymc_mcoem if not module else getattr(pymc_mcoem, module)
    listed = set(re.findall(r"^   (?:\w+\.)*(\w+)$", REFERENCE.read_text(), flags=re.MULTILINE))
    missing = set(found.__all__) - listed - {"datasets", *EXTENDING}
    assert not missing, f"list {sorted(missing)} in docs/api.md"

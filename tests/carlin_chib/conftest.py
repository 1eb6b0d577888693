"""The small families, compiled once a session."""

from __future__ import annotations

import pytest

from tests.helpers.compiled import Compiled, compiled
from tests.helpers.models import ScaledMixture, SkewedMixture


@pytest.fixture(scope="session")
def skewed() -> Compiled:
    return compiled(SkewedMixture)


@pytest.fixture(scope="session")
def scaled() -> Compiled:
    return compiled(ScaledMixture)


@pytest.fixture(scope="session", params=[SkewedMixture, ScaledMixture], ids=["skewed", "scaled"])
def case(request: pytest.FixtureRequest) -> Compiled:
    return compiled(request.param)

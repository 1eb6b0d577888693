"""What every test may use: its own generator, the data, one thread for linear algebra."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runslow", action="store_true", default=False, help="run the tests marked slow as well"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--runslow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --runslow"))


@pytest.fixture(autouse=True, scope="session")
def one_blas_thread() -> Iterator[None]:
    """Hold linear algebra to one thread: sums in another order have other last digits."""
    with threadpool_limits(limits=1):
        yield


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator seeded by the test's name, parameters included.

    Not by its file, so that a test keeps its numbers when it moves.
    """
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Return the folder with the real data, or skip the test.

    Where PYMC_MCOEM_DATA points, else ``shared/data`` beside the repository.
    """
    named = os.environ.get("PYMC_MCOEM_DATA")
    directory = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip(f"no data at {directory}: set PYMC_MCOEM_DATA to the folder that has them")
    return directory

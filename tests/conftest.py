"""What every test may use: its own generator, the data, one thread for linear algebra."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

# A hook of filelock, which PyTensor imports, is called at each id(): one second in twelve of making
# graphs. It only refuses to fork within a change of locks.
with pytest.MonkeyPatch.context() as patched:
    patched.setattr(sys, "addaudithook", lambda hook: None)
    import filelock  # noqa: F401

import pytensor

from tests.helpers.interpreted import interpreted
from tests.helpers.toy_families import NormalMixture, mixture_stream

REPOSITORY = Path(__file__).resolve().parents[1]

#: Modules whose examples call a few times only what takes numba half a minute to compile.
INTERPRETED = {"pymc_mcoem.datasets.simulators"}


#: What compiles C, by the name of PyTensor's setting.
COMPILER = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Compile no C: gcc takes a second for each of hundreds of operators that are called once.

    Nor note at every node of a graph who made it, which is one second in ten of making graphs.
    And let no two processes compile the same program of JAX, which takes most of its tests' time.
    """
    config.stash[COMPILER] = pytensor.config.cxx
    pytensor.config.cxx = ""
    pytensor.config.traceback__limit = 0
    # processes that tests start read it: programs of JAX are kept where PyTensor keeps its own
    for name, value in {
        "JAX_COMPILATION_CACHE_DIR": str(Path(pytensor.config.compiledir) / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }.items():
        os.environ.setdefault(name, value)


def pytest_collection_finish() -> None:
    """Look for garbage seldom, and not among what was imported: that too is one second in ten."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture
def c_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile C all the same, for tests of that back end."""
    with pytensor.config.change_flags(cxx=request.config.stash[COMPILER]):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runslow", action="store_true", default=False, help="run the tests marked slow as well"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.dtest.globs["__name__"] in INTERPRETED:
            item.runtest = interpreted()(item.runtest)
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


@pytest.fixture(autouse=True, scope="session")
def no_waiting() -> Iterator[None]:
    """Try again at once what a disk that tests play has failed to give."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pymc_mcoem.interrupts.WAITS", (0.0, 0.0))
        yield


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator seeded by the test's name, parameters included.

    Not by its file, so that a test keeps its numbers when it moves.
    """
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.fixture(scope="module")
def family() -> NormalMixture:
    """Return a mixture of normals, for files whose tests need no other family."""
    return NormalMixture()


@pytest.fixture
def stream(rng: np.random.Generator) -> np.ndarray:
    """Return 60 observations of that family."""
    return mixture_stream(rng, 60)


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Start two processes that import what they need themselves, once: that takes seconds."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as made:
        yield made


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


@pytest.fixture(scope="session")
def run_apart() -> Iterator[Callable[..., Any]]:
    """Call a function whose last argument is a back end, with JAX in a process of its own.

    JAX has threads, and where it was imported forking is not safe: other tests fork.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            if arguments[-1].lower() != "jax":
                return function(*arguments)
            if importlib.util.find_spec("jax") is None:
                pytest.skip("JAX is not installed")
            return other.submit(function, *arguments).result()

        yield call


@pytest.fixture
def without_compiler() -> Iterator[None]:
    """Compile without numba, for what is small and called a few times."""
    with interpreted():
        yield


@pytest.fixture(scope="module")
def module_without_compiler() -> Iterator[None]:
    """Compile without numba from here to the end of the file."""
    with interpreted():
        yield

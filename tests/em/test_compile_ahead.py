"""Two processes compile what a first call needs, and nothing of the second one is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytensor
import pytest

from pymc_mcoem import CarlinChibBurst, OnlineEM
from pymc_mcoem.em import compile_ahead as module
from pymc_mcoem.em.compile_ahead import InTwoParts, compile_ahead
from pymc_mcoem.em.crew import Crew
from pymc_mcoem.em.esteps.calls import Explainer
from pymc_mcoem.em.workers import Order
from tests.helpers.linear_normal import LinearNormal

DATA, THETA = {"value": np.arange(3.0)}, {"mean": np.ones(2)}


@dataclass(eq=False)
class Parts:
    """Leaves a file where the rest was compiled, and takes its time for the first part."""

    folder: Path
    seconds: float = 0.0
    error: BaseException | None = None
    mode: str | None = None

    @property
    def two_parts(self):
        return self

    def compile_first(self, data, parameters):
        deadline = time.monotonic() + self.seconds
        while time.monotonic() < deadline and not (self.folder / "begun").exists():
            time.sleep(0.02)
        if self.error is not None:
            raise self.error

    def compile_rest(self, data, parameters):
        (self.folder / "begun").write_text(str(os.getpid()))
        assert data["value"].tolist() == [0, 1, 2]
        assert parameters["mean"].tolist() == [1, 1]
        time.sleep(1.0)
        (self.folder / "done").write_text("")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "WORTH", 0.0)
    monkeypatch.setattr(module, "cpu_count", lambda: 2)


def call(parts, make=None):
    compile_ahead(make or partial(Parts, parts.folder), parts, DATA, THETA)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def threads():
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


# -- the second process --------------------------------------------------------------------------


def test_the_rest_is_compiled_by_another_process_and_waited_for(tmp_path, impatient):
    call(Parts(tmp_path, seconds=60))
    other = int((tmp_path / "begun").read_text())
    assert (tmp_path / "done").exists()
    assert other != os.getpid()
    assert not is_alive(other)
    assert threads() == []


def test_it_is_ended_where_waiting_is_not_worth_it(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(module, "WORTH", 1e6)
    call(Parts(tmp_path, seconds=60))
    assert not is_alive(int((tmp_path / "begun").read_text()))
    assert not (tmp_path / "done").exists()


def test_an_interrupt_ends_it_too(tmp_path, impatient):
    with pytest.raises(KeyboardInterrupt):
        call(Parts(tmp_path, seconds=60, error=KeyboardInterrupt()))
    assert not is_alive(int((tmp_path / "begun").read_text()))
    assert not (tmp_path / "done").exists()
    assert threads() == []


def test_it_is_not_started_for_what_is_loaded_in_no_time(tmp_path, impatient, monkeypatch):
    begun = []
    monkeypatch.setattr(module, "PATIENCE", 30.0)
    monkeypatch.setattr(module._Helper, "_start", lambda _: begun.append(1))
    call(Parts(tmp_path))
    assert begun == threads() == []


@pytest.mark.parametrize(
    "lacking", ["a second core", "a cache on disk", "a Python to start", "numba", "a first process"]
)
def test_it_is_not_started_where_it_could_not_help(tmp_path, impatient, monkeypatch, lacking):
    if lacking == "a second core":
        monkeypatch.setattr(module, "cpu_count", lambda: 1)
    if lacking == "a Python to start":
        monkeypatch.setattr(sys, "executable", None)
    if lacking == "a first process":  # but one of a pool
        monkeypatch.setattr(module.multiprocessing, "parent_process", lambda: 1)
    with pytensor.config.change_flags(numba__cache=lacking != "a cache on disk"):
        began = time.monotonic()
        call(Parts(tmp_path, seconds=60, mode="CVM" if lacking == "numba" else None))
    assert time.monotonic() - began < 30  # the first part is not even begun
    assert list(tmp_path.iterdir()) == []


def test_what_has_been_compiled_is_not_called_again(tmp_path, impatient):
    parts = Parts(tmp_path, seconds=60)
    call(parts)
    for file in tmp_path.iterdir():
        file.unlink()
    call(parts)
    assert list(tmp_path.iterdir()) == []


def test_what_was_interrupted_is_helped_again(tmp_path, impatient):
    parts = Parts(tmp_path, seconds=60, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        call(parts)
    (tmp_path / "begun").unlink()
    parts.error = None
    call(parts)
    assert (tmp_path / "done").exists()


def test_a_process_that_reads_nothing_holds_nothing_up(tmp_path, impatient, monkeypatch):
    """As where the executable is another program than Python; the pipe to it fills up."""
    monkeypatch.setattr(module, "_PROGRAM", "import time; time.sleep(600)")
    began = time.monotonic()
    large = {"value": np.zeros(10**6)}
    compile_ahead(partial(Parts, tmp_path), Parts(tmp_path, seconds=1.0), large, THETA)
    assert time.monotonic() - began < 60
    assert threads() == []


def test_what_cannot_be_hashed_is_helped_each_time(tmp_path, impatient):
    @dataclass
    class Unhashable(Parts):
        pass

    call(Unhashable(tmp_path, seconds=60))
    assert (tmp_path / "done").exists()


def test_no_more_threads_is_no_observations_fault(tmp_path, impatient, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    call(Parts(tmp_path, seconds=0.2))
    assert list(tmp_path.iterdir()) == []


def test_the_second_process_has_no_helpers_of_its_own(tmp_path, monkeypatch):
    """A module that is imported there may go on to learn; it ends the process instead."""
    left = []
    monkeypatch.setattr(module, "_is_helper", True)
    monkeypatch.setattr(os, "_exit", lambda code: left.append(code) or sys.exit(code))
    with pytest.raises(SystemExit):
        call(Parts(tmp_path))
    assert left == [1]


# -- what goes wrong is left to the call ---------------------------------------------------------


def test_an_error_of_the_first_part_is_left_to_the_call(tmp_path, impatient):
    call(Parts(tmp_path, seconds=60, error=ValueError("no such observation")))
    assert (tmp_path / "done").exists()


def test_what_cannot_be_sent_is_compiled_here(tmp_path, impatient):
    lock = threading.Lock()
    call(Parts(tmp_path, seconds=0.5), make=lambda: lock)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_second_process_is_left_to_the_call(tmp_path, impatient, capfd):
    call(Parts(tmp_path, seconds=0.5), make=partial(Parts, tmp_path / "no" / "such" / "folder"))
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


# -- who asks for it -----------------------------------------------------------------------------


def test_a_crew_asks_once_before_its_first_call(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("pymc_mcoem.em.crew.compile_ahead", lambda *each: asked.append(each))
    parts = Parts(tmp_path)
    crew = Crew(lambda: parts)
    for _ in range(2):
        assert list(crew.answers([Order(_second, (DATA, THETA, 7))] * 2)) == [7, 7]
    assert [(found, data, theta) for _, found, data, theta in asked] == [(parts, DATA, THETA)]


def _second(parts, data, parameters, number):
    return number


def test_only_bursts_are_in_two_parts():
    family = LinearNormal()
    explainer = Explainer.of(family, CarlinChibBurst())
    assert isinstance(explainer.two_parts, InTwoParts)
    assert Explainer(family, object()).two_parts is None


def test_numbers_are_the_same_with_and_without_it(impatient, monkeypatch):
    values = np.random.default_rng(1).normal(size=(6, 3))

    def learnt():
        em = OnlineEM(LinearNormal(), n_start=4, random_seed=1, progressbar=False)
        return em.partial_fit(values).parameters

    helped = learnt()
    monkeypatch.setattr(module, "cpu_count", lambda: 1)
    assert helped.identical(learnt())


@pytest.mark.slow
def test_after_it_there_is_nothing_left_to_compile(tmp_path):
    """In a fresh process with an empty cache the call itself adds nothing to what lies on disk."""
    script = """
import sys
import numpy as np, pytensor
from pymc_mcoem import CarlinChibBurst
from pymc_mcoem.em import compile_ahead as module
from pymc_mcoem.em.esteps.calls import Explainer
from functools import partial
from tests.helpers.linear_normal import LinearNormal

family, folder = LinearNormal(), pytensor.config.base_compiledir / "numba"
module.cpu_count = lambda: 2
module.PATIENCE = module.WORTH = 0.0
explainer = Explainer.of(family, CarlinChibBurst())
data, theta = family.case
before = len(list(folder.iterdir()))
module.compile_ahead(
    partial(Explainer.of, family, CarlinChibBurst()), explainer.two_parts, data, theta
)
ahead = len(list(folder.iterdir()))
e_step = explainer.e_step
e_step(data, theta, np.random.default_rng(1), e_step.initial_state(), draws=3, burn_in=2)
print(before, ahead, len(list(folder.iterdir())))
"""
    flags = f"base_compiledir={tmp_path}"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTENSOR_FLAGS": flags},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    before, ahead, after = map(int, run.stdout.split())
    assert before < ahead == after

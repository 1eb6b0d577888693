"""Runs that are killed, interrupted or stopped by a source, and go on to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs.atomic_files import read_whole, write_whole
from pymc_mcoem.runs.checkpoint import Checkpoint
from tests.helpers.properties import steady
from tests.helpers.representatives import by_default
from tests.helpers.saved_files import rewrite
from tests.helpers.template_runs import ITERATIONS, batch_templates, templates
from tests.helpers.toy_families import Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def listening():
    """Ctrl-C is heard, also where the tests were started in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def loaded(path):
    return OnlineEM.load(path, NormalMixture(), e_step=Noisy(), progressbar=False)


def test_a_run_is_saved_every_so_many_observations(family, stream, tmp_path):
    path, seen = tmp_path / "run.nc", []

    def watched():
        for number, value in enumerate(stream[:24], start=1):
            yield value
            # what the observation just learned left behind
            if number in (9, 10, 19, 20, 24):
                seen.append(loaded(path).n_seen if path.exists() else 0)

    em = driver(family, parameters=THETA)
    em.partial_fit(watched(), checkpoint=Checkpoint(path, observations=10))
    assert seen == [0, 10, 10, 20, 20]
    assert_same(loaded(path), em)
    # and the file before it is still there
    assert loaded(tmp_path / "run.1.nc").n_seen == 20
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.1.nc", "run.nc"]


def test_a_run_is_saved_every_so_many_seconds(family, stream, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pymc_mcoem.runs.checkpoint.monotonic", lambda: now[0])
    path, counts = tmp_path / "run.nc", []

    def slow():
        for value in stream[:9]:
            now[0] += 4.0
            yield value
            counts.append(loaded(path).n_seen if path.exists() else 0)

    checkpoint = Checkpoint(path, observations=None, seconds=10.0, keep=0)
    driver(family, parameters=THETA).partial_fit(slow(), checkpoint=checkpoint)
    assert counts == [0, 0, 3, 3, 3, 6, 6, 6, 9]
    assert [file.name for file in tmp_path.iterdir()] == ["run.nc"]


def test_older_files_move_down(tmp_path):
    path = tmp_path / "run.nc"
    checkpoint = Checkpoint(path, keep=2)
    for text in "abcd":
        checkpoint.rotate()
        write_whole(path, text.encode())
    assert [read_whole(checkpoint.older(n)) for n in (1, 2)] == [b"c", b"b"]
    assert len(list(tmp_path.iterdir())) == 3


def test_files_move_where_there_are_no_links(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    test_older_files_move_down(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"path": 3}, TypeError, "path: got 3; give the name of a file"),
        ({"path": "/no/such/folder/run.nc"}, FileNotFoundError, "folder of .* does not exist"),
        ({"path": "run.nc", "observations": 0}, ValueError, "observations: got 0"),
        ({"path": "run.nc", "keep": -1}, ValueError, "keep: got -1; give a whole number from 0"),
        ({"path": "run.nc", "seconds": 0.0}, ValueError, r"seconds: got 0\.0; give a positive"),
    ],
)
def test_what_is_no_checkpoint_is_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        Checkpoint(**arguments)


def test_skip_goes_on_in_a_stream_given_again(family, stream, tmp_path):
    whole = driver(family, n_start=12).partial_fit(stream)
    for kind in (np.asarray, list, iter, lambda values: xr.DataArray(values, dims="n")):
        em = driver(family, n_start=12)
        for stop in (5, 31, 60):
            em.partial_fit(kind(stream[:stop]), skip=em.position)
        assert_same(em, whole)
    assert (
        em.partial_fit(stream, skip=em.position).n_seen == 60
    )  # nothing is left, and that is well
    for wrong in (-1, 2.0, True, "3"):
        with pytest.raises(ValueError, match=r"skip: got .*as em\.position"):
            em.partial_fit(stream, skip=wrong)


def test_an_error_of_the_source_is_preceded_by_a_checkpoint(family, stream, tmp_path):
    path = tmp_path / "run.nc"

    def breaking():
        yield from stream[:17]
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        driver(family, n_start=7).partial_fit(breaking(), checkpoint=path)
    em = loaded(path)
    assert em.position == 17
    assert_same(
        em.partial_fit(stream, skip=em.position), driver(family, n_start=7).partial_fit(stream)
    )


def test_ctrl_c_ends_after_the_observation_at_work_and_saves(family, stream, tmp_path):
    path = tmp_path / "run.nc"

    def pressed():
        for number, value in enumerate(stream):
            if number == 13:
                signal.raise_signal(signal.SIGINT)
            yield value

    before = signal.getsignal(signal.SIGINT)
    em = driver(family, n_start=7)
    with pytest.raises(KeyboardInterrupt, match=r"between two observations; .*run.nc"):
        em.partial_fit(pressed(), checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is before
    assert em.n_seen == loaded(path).n_seen == 14
    went_on = loaded(path)
    went_on.partial_fit(stream, skip=went_on.position)
    assert_same(went_on, driver(family, n_start=7).partial_fit(stream))


def test_a_second_ctrl_c_does_not_wait(family, stream, tmp_path):
    path = tmp_path / "run.nc"

    def pressed():
        yield from stream[:13]
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        yield from stream[13:]

    em = driver(family, n_start=7)
    with pytest.raises(KeyboardInterrupt):
        em.partial_fit(pressed(), checkpoint=path)
    assert em.n_seen == loaded(path).n_seen == 13


def test_a_second_ctrl_c_while_the_first_one_saves(family, stream, tmp_path, monkeypatch):
    path, real, presses = tmp_path / "run.nc", os.fsync, []

    def pressed_again(descriptor):
        if em.n_seen == 41 and not presses:
            presses.append(2)
            signal.raise_signal(signal.SIGINT)
        return real(descriptor)

    def pressed():
        yield from stream[:40]
        signal.raise_signal(signal.SIGINT)
        yield from stream[40:]

    monkeypatch.setattr(os, "fsync", pressed_again)
    em = driver(family, parameters=THETA)
    with pytest.raises(KeyboardInterrupt):
        em.partial_fit(pressed(), checkpoint=Checkpoint(path, observations=30))
    assert presses
    assert em.n_seen == loaded(path).n_seen == 41
    assert {file.name for file in tmp_path.iterdir()} == {"run.nc", "run.1.nc"}


@pytest.mark.parametrize("at", [30, 41])
def test_the_end_of_the_program_while_a_run_is_saved_loses_nothing(
    family, stream, tmp_path, monkeypatch, at
):
    """As a handler of SIGTERM ends it that calls `sys.exit`: every so often, and at the end."""
    path, real, ended = tmp_path / "run.nc", os.fsync, []

    def ending(descriptor):
        if em.n_seen == at and not ended:
            ended.append(1)
            sys.exit(3)
        return real(descriptor)

    monkeypatch.setattr(os, "fsync", ending)
    em = driver(family, parameters=THETA)
    with pytest.raises(SystemExit, match="3"):
        em.partial_fit(stream[:41], checkpoint=Checkpoint(path, observations=30))
    assert em.n_seen == loaded(path).n_seen == at
    assert not any(file.name.startswith(".") for file in tmp_path.iterdir())


def test_ctrl_c_of_saem_waits_for_its_iteration(family, stream, tmp_path):
    path, options = tmp_path / "run.nc", {"progressbar": False}

    class Pressed(Noisy):
        def compile(self, family):
            inner, visits = super().compile(family), []

            class Compiled:
                initial_state = staticmethod(inner.initial_state)

                def __call__(self, *arguments, **named):
                    visits.append(1)
                    if len(visits) == 150:  # in the third iteration
                        signal.raise_signal(signal.SIGINT)
                    return inner(*arguments, **named)

            return Compiled()

    saem = SAEM(family, draws=5, random_seed=1, e_step=Pressed(), **options)
    with pytest.raises(KeyboardInterrupt, match=r"between two iterations; .*run.nc"):
        saem.fit(stream, 5, checkpoint=path)
    assert saem.n_iterations == 3
    went_on = SAEM.load(path, family, e_step=Noisy(), **options).fit(stream, 2)
    clean = SAEM(family, draws=5, random_seed=1, e_step=Noisy(), **options).fit(stream, 5)
    assert went_on.parameters.identical(clean.parameters)


def test_in_another_thread_ctrl_c_is_left_alone(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    em = driver(family, n_start=7)
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: em.partial_fit(stream, checkpoint=path))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert loaded(path).n_seen == 60


SCRIPT = """
import os, sys, time
import numpy as np
from pymc_mcoem.em import storage
from pymc_mcoem.runs.checkpoint import Checkpoint
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from tests.helpers.toy_families import Noisy, NormalMixture

kind, path, values = sys.argv[1], sys.argv[2], np.load(sys.argv[3])
# Writing takes its time, so that kills meet it half done.
written = os.fsync
storage.os.fsync = lambda file: (time.sleep(0.004), written(file))
family, options = NormalMixture(), {"progressbar": False, "e_step": Noisy()}


def slowly():
    for value in values:
        time.sleep(0.002)
        yield value


print("ready", flush=True)
if kind == "online":
    if os.path.exists(path):
        em = OnlineEM.load(path, family, **options)
    else:
        em = OnlineEM(family, n_start=11, batch_size=3, random_seed=1, **options)
    em.partial_fit(slowly(), skip=em.position, checkpoint=Checkpoint(path, observations=4))
else:
    if os.path.exists(path):
        saem = SAEM.load(path, family, **options)
    else:
        saem = SAEM(family, draws=5, batch_size=0.5, random_seed=1, **options)
    left = 40 - saem.n_iterations
    if left:
        saem.fit(values, left, checkpoint=Checkpoint(path, observations=30))
"""


def kill_until_done(script, arguments, rng, most, seconds=(0.05, 0.6)):
    """Run a script, killed again and again at random moments; return how often it was."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    kills = 0
    while True:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        with process.stdout:
            process.stdout.readline()
            if kills < most:
                time.sleep(rng.uniform(*seconds))
                process.kill()
            process.wait()
        if process.returncode == 0:
            return kills
        assert process.returncode == -signal.SIGKILL
        kills += 1


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("online", 1),
        pytest.param("online", 8, marks=pytest.mark.slow),
        pytest.param("saem", 8, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_moment_it_ends_with_the_same_bytes(kind, most, rng, tmp_path):
    values = mixture_stream(rng, 240 if kind == "online" and most > 1 else 60)
    np.save(tmp_path / "values.npy", values)
    path = tmp_path / "run.nc"
    kills = kill_until_done(SCRIPT, [kind, path, tmp_path / "values.npy"], rng, most=most)
    assert kills >= min(most, 3)
    if kind == "online":
        clean = driver(NormalMixture(), n_start=11, batch_size=3).partial_fit(values)
        assert_same(loaded(path), clean)
    else:
        options = {"progressbar": False, "e_step": Noisy()}
        clean = SAEM(NormalMixture(), draws=5, batch_size=0.5, random_seed=1, **options)
        clean.fit(values, 40)
        found = SAEM.load(path, NormalMixture(), **options)
        assert found.parameters.identical(clean.parameters)
        for group in ("steps", "observations"):
            xr.testing.assert_identical(
                found.history[group].to_dataset().drop_vars("seconds"),
                clean.history[group].to_dataset().drop_vars("seconds"),
            )


TEMPLATES = """
import os, sys
import numpy as np
from pymc_mcoem.runs.checkpoint import Checkpoint
from tests.helpers.template_runs import templates

path, images = sys.argv[1], np.load(sys.argv[2])
em = templates(path)
# what takes longest comes before the clock of the kills runs
em.run.executor.prepare()
print("ready", flush=True)
em.partial_fit(images, skip=em.position, checkpoint=Checkpoint(path, observations=4))
"""


@pytest.mark.slow
def test_a_mixture_of_templates_killed_at_any_moment_ends_with_the_same_bytes(rng, tmp_path):
    images = rng.normal(size=(60, 6, 6)) + rng.choice([0.0, 2.0], size=(60, 1, 1))
    images[[9, 33]] = np.inf
    images[5, 2:4] = np.nan
    np.save(tmp_path / "images.npy", images)
    path = tmp_path / "run.nc"
    arguments = [path, tmp_path / "images.npy"]
    kills = kill_until_done(TEMPLATES, arguments, rng, most=6, seconds=(0.1, 2.0))
    assert kills >= 3
    clean = templates(tmp_path / "none.nc").partial_fit(images)
    found = templates(path)
    assert_same(found, clean)
    assert found.history["skipped"].identical(clean.history["skipped"])
    for name in ("parameters", "statistics", "average", "e_step_state"):
        one, other = (getattr(em.run.state, name) for em in (found, clean))
        assert one.keys() == other.keys()
        for key in other:
            assert np.asarray(one[key]).tobytes() == np.asarray(other[key]).tobytes(), (name, key)


BATCHES_OF_TEMPLATES = """
import os, sys
import numpy as np
from pymc_mcoem.runs.checkpoint import Checkpoint
from tests.helpers.template_runs import ITERATIONS, batch_templates

path, images = sys.argv[1], np.load(sys.argv[2])
saem = batch_templates(path)
saem.run.executor.prepare()
print("ready", flush=True)
left = ITERATIONS - saem.n_iterations
if left:
    saem.fit(images, left, checkpoint=Checkpoint(path, observations=8))
"""


@pytest.mark.slow
def test_chains_of_templates_killed_at_any_moment_end_with_the_same_bytes(rng, tmp_path):
    images = rng.random((16, 6, 6))
    np.save(tmp_path / "images.npy", images)
    path = tmp_path / "run.nc"
    arguments = [path, tmp_path / "images.npy"]
    kills = kill_until_done(BATCHES_OF_TEMPLATES, arguments, rng, most=5, seconds=(0.1, 2.0))
    assert kills >= 3
    clean = batch_templates(tmp_path / "none.nc").fit(images, ITERATIONS)
    found = batch_templates(path)
    assert found.n_iterations == ITERATIONS
    for name in ("parameters", "statistics"):
        one, other = (getattr(saem.run.state, name) for saem in (found, clean))
        for key in other:
            assert np.asarray(one[key]).tobytes() == np.asarray(other[key]).tobytes(), (name, key)
    for one, other in zip(found.run.state.chains, clean.run.state.chains, strict=True):
        for key in other:
            assert np.asarray(one[key]).tobytes() == np.asarray(other[key]).tobytes(), key


class Killed(BaseException):
    """Stands for the end of the process: nothing that follows in the program is done."""


@steady(4)
@given(
    way=st.sampled_from(sorted(WAYS)),
    observations=st.integers(3, 9),
    keep=st.integers(0, 3),
    links=st.booleans(),
    crashes=st.lists(st.integers(1, 40), max_size=3),
)
def test_wherever_it_crashes_it_ends_with_the_same_bytes(
    family, stream, tmp_path_factory, way, observations, keep, links, crashes
):
    """Each crash comes before some operation on files, after which the process does no other."""
    folder = tmp_path_factory.mktemp("crashes")
    checkpoint = Checkpoint(folder / "run.nc", observations=observations, keep=keep)

    def run_until(crash):
        made = 0

        def counted(real):
            def call(*arguments, **named):
                nonlocal made
                made += 1
                if crash is not None and made >= crash:
                    raise Killed
                if real is os.link and not links:
                    raise OSError("no links here")
                return real(*arguments, **named)

            return call

        path = Path(checkpoint.path)
        em = loaded(path) if path.exists() else driver(family, **WAYS[way])
        with pytest.MonkeyPatch.context() as patched:
            for name in ("open", "write", "fsync", "replace", "link", "unlink"):
                patched.setattr(os, name, counted(getattr(os, name)))
            em.partial_fit(stream[:30], skip=em.position, checkpoint=checkpoint)
        return em

    for crash in crashes:
        try:
            run_until(crash)
        except Killed:
            files = [file.name for file in folder.iterdir() if not file.name.startswith(".")]
            assert len(files) <= keep + 1
    assert_same(run_until(None), driver(family, **WAYS[way]).partial_fit(stream[:30]))
    assert not any(file.name.startswith(".") for file in folder.iterdir())


def test_bad_records_one_after_another_do_not_hold_a_restarted_run_up(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    records = [*stream[:10], np.inf, np.inf, np.inf, *stream[10:]]
    em = driver(family, n_start=7)
    for _ in range(3):
        with pytest.raises(ValueError, match="was refused"):
            em.partial_fit(records, skip=em.position, checkpoint=path)
        em = loaded(path)
    em.partial_fit(records, skip=em.position, checkpoint=path)
    assert em.position == 63
    assert loaded(path).history["skipped"]["position"].values.tolist() == [10, 11, 12]


@pytest.mark.parametrize(
    ("way", "number"),
    by_default(
        product(WAYS, [0, 7, 30, 59]),
        {*product(WAYS, [30]), *product(["held start, mini-batches, average"], [0, 7, 59])},
    ),
)
def test_interrupted_at_any_observation_and_gone_on(family, stream, way, number):
    """The last one among them: nothing is left to read then, and what is held is learned."""

    class Pressed(Noisy):
        def compile(self, family):
            inner = super().compile(family)

            class Compiled:
                initial_state = staticmethod(inner.initial_state)
                left = number

                def __call__(self, *arguments, **options):
                    Compiled.left -= 1
                    if Compiled.left == -1:
                        raise KeyboardInterrupt
                    return inner(*arguments, **options)

            return Compiled()

    em = driver(family, e_step=Pressed(), **WAYS[way])
    try:
        em.partial_fit(stream)
    except KeyboardInterrupt:
        em.partial_fit(stream, skip=em.position)
    assert_same(em, driver(family, **WAYS[way]).partial_fit(stream))


def test_ctrl_c_after_the_last_observation_is_not_swallowed(family, stream, tmp_path):
    def pressed():
        yield from stream
        signal.raise_signal(signal.SIGINT)

    em = driver(family, n_start=7)
    with pytest.raises(KeyboardInterrupt):
        em.partial_fit(pressed(), checkpoint=tmp_path / "run.nc")
    assert loaded(tmp_path / "run.nc").n_seen == 60


def test_a_link_stays_a_link(family, stream, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "run.nc", tmp_path / "run.nc"
    link.symlink_to(target)
    em = driver(family, parameters=THETA)
    em.partial_fit(stream[:20], checkpoint=link)
    em.partial_fit(stream[:30], skip=20, checkpoint=link)
    em.save(link)
    assert link.is_symlink() and loaded(link).n_seen == loaded(target).n_seen == 30
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["run.nc"]


def test_what_is_no_file_is_never_replaced(family, stream, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe' is no file that can be replaced"):
        driver(family, parameters=THETA).save(pipe)
    with pytest.raises(OSError, match="pipe' is no file that can be replaced"):
        Checkpoint(pipe)
    assert pipe.is_fifo()
    # nor is what an older file would move to
    (tmp_path / "run.2.nc").mkdir()
    with pytest.raises(IsADirectoryError, match=r"run\.2\.nc' is a folder"):
        Checkpoint(tmp_path / "run.nc", keep=2)


def test_a_folder_is_no_checkpoint(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("there", ["run.nc", "run.1.nc"])
def test_a_new_run_replaces_no_file_of_another(family, stream, tmp_path, there):
    """A script that forgets to load would else lose days in two checkpoints."""
    path = tmp_path / "run.nc"
    driver(family).partial_fit(stream, checkpoint=Checkpoint(path, observations=20))
    (tmp_path / ({"run.nc", "run.1.nc"} - {there}).pop()).unlink()
    content = (tmp_path / there).read_bytes()
    read = []
    for run in (
        lambda: driver(family).partial_fit((read.append(y) or y for y in stream), checkpoint=path),
        lambda: SAEM(family, random_seed=1).fit(stream, 1, checkpoint=path),
    ):
        with pytest.raises(FileExistsError, match=rf"{there}' is there already.*`load`"):
            run()
    assert not read
    assert (tmp_path / there).read_bytes() == content
    # without older files there is nothing else in the way
    if there == "run.1.nc":
        driver(family).partial_fit(stream[:5], checkpoint=Checkpoint(path, keep=0))


def test_a_run_goes_on_in_its_own_files(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    begun = driver(family)
    begun.save(path)  # before anything was learned
    begun.partial_fit(stream[:10], checkpoint=path).partial_fit(stream[10:20], checkpoint=path)
    OnlineEM.load(path, family, e_step=Noisy()).partial_fit(stream[20:], checkpoint=path)
    assert loaded(path).n_seen == len(stream)
    driver(family).save(path)
    OnlineEM.load(path, family, e_step=Noisy()).partial_fit(stream[:3], checkpoint=path)
    batch = SAEM(family, e_step=Noisy(), random_seed=1, progressbar=False)
    batch.fit(stream, 1, checkpoint=tmp_path / "saem.nc")
    again = SAEM.load(tmp_path / "saem.nc", family, e_step=Noisy())
    again.fit(stream, 1, checkpoint=tmp_path / "saem.nc")


def test_a_folder_that_nothing_can_be_written_in_is_found_before_the_work(
    family, stream, tmp_path, monkeypatch
):
    allowed = os.access
    monkeypatch.setattr(
        "os.access", lambda path, mode: Path(path) != tmp_path and allowed(path, mode)
    )
    em = driver(family)
    with pytest.raises(PermissionError, match="nothing can be written in the folder"):
        em.partial_fit(stream, checkpoint=tmp_path / "run.nc")
    assert em.position == 0


SPOILT = {
    "cut short": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "a bit turned": lambda whole: whole[:900] + bytes([whole[900] ^ 4]) + whole[901:],
    "zeros": lambda whole: bytes(len(whole)),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_it(
    family, stream, tmp_path, caplog, how
):
    path = tmp_path / "run.nc"
    whole = driver(family, n_start=7).partial_fit(stream)
    em = driver(family, n_start=7)
    for stop in (10, 20, 30, 40):
        em.partial_fit(stream[:stop], skip=em.position, checkpoint=Checkpoint(path, keep=3))
    # the newest two are damaged
    for name in ("run.nc", "run.1.nc"):
        (tmp_path / name).write_bytes(SPOILT[how]((tmp_path / name).read_bytes()))
    found = loaded(path)
    assert found.n_seen == 20
    assert "run.nc' " in caplog.text
    assert "goes on from the checkpoint before it, '" in caplog.text
    assert "run.2.nc'" in caplog.text
    # the damaged one does not push the whole one out
    found.partial_fit(stream[:50], skip=found.position, checkpoint=Checkpoint(path, keep=2))
    assert [loaded(tmp_path / name).n_seen for name in ("run.nc", "run.2.nc")] == [50, 20]
    found.partial_fit(stream, skip=found.position, checkpoint=path)
    assert_same(found, whole)


def test_batch_runs_fall_back_too(family, stream, tmp_path, caplog):
    path, options = tmp_path / "run.nc", {"progressbar": False, "e_step": Noisy()}
    saem = SAEM(family, draws=5, random_seed=1, **options)
    saem.fit(stream, 1, checkpoint=path).fit(stream, 1, checkpoint=path)
    path.write_bytes(b"")
    found = SAEM.load(path, family, **options)
    assert found.n_iterations == 1 and "before it" in caplog.text


def test_other_damaged_files_are_refused(family, stream, tmp_path):
    """As one that was saved by hand, whatever lies beside it; a sound checkpoint of other things,
    and a checkpoint with nothing whole behind it."""
    path = tmp_path / "run.nc"
    em = driver(family, n_start=7).partial_fit(stream[:10])
    em.save(tmp_path / "run.1.nc")
    em.save(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"run\.nc' does not end as saved runs do"):
        loaded(path)
    (tmp_path / "run.1.nc").unlink()
    with pytest.raises(ValueError, match=r"run\.nc' does not end as saved runs do"):
        loaded(path)
    path.unlink()
    em.partial_fit(stream[:20], skip=10, checkpoint=path)
    em.partial_fit(stream[:30], skip=20, checkpoint=path)
    with pytest.raises(ValueError, match="is no saved run of SAEM"):
        SAEM.load(path, family, e_step=Noisy())
    rewrite(path, settings="{}")
    with pytest.raises(ValueError, match=r"run\.nc' is damaged: its settings"):
        loaded(path)
    (tmp_path / "run.1.nc").unlink()
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"run\.nc' does not end as saved runs do"):
        loaded(path)

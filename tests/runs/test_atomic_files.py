"""Disks that are full or fail, links that lie in the way, machines that lose their power."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.runs import atomic_files as whole_files
from pymc_mcoem.runs.atomic_files import DamagedFileError, older_name, read_whole, write_whole
from pymc_mcoem.runs.checkpoint import Checkpoint
from pymc_mcoem.runs.datatree_files import require_file_name
from pymc_mcoem.runs.file_lock import locked
from tests.helpers.faults import Faults, disk_error, failing, without_hdf5
from tests.helpers.power import watched
from tests.helpers.toy_families import Noisy, NormalMixture
from tests.helpers.toy_runs import THETA, assert_same, driver

ROOT = Path(__file__).resolve().parents[2]


def loaded(path):
    return OnlineEM.load(path, NormalMixture(), e_step=Noisy(), progressbar=False)


def files_in(folder):
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def test_a_file_is_its_content_and_a_seal(tmp_path, rng):
    path = tmp_path / "file"
    for content in (b"", b"x", rng.bytes(10_000)):
        write_whole(path, content)
        assert read_whole(path) == content
    whole = path.read_bytes()
    for spoilt in (b"", whole[:-1], whole[1:], whole + b" ", bytes([whole[0] ^ 1]) + whole[1:]):
        path.write_bytes(spoilt)
        with pytest.raises(DamagedFileError, match="file' "):
            read_whole(path)


def test_a_disk_that_takes_a_part_at_a_time_gets_all(tmp_path, monkeypatch, rng):
    real, content = os.write, rng.bytes(3_000)
    monkeypatch.setattr(os, "write", lambda file, part: real(file, part[: rng.integers(1, 500)]))
    write_whole(tmp_path / "file", content)
    assert read_whole(tmp_path / "file") == content


class Failing:
    """A file whose `at`-th call fails; calls are counted from its opening."""

    def __init__(self, file, faults):
        self._file, self._faults = file, faults

    def __getattr__(self, name):
        if name in ("seek", "read", "fileno") and self._faults.meets(name):
            raise disk_error(errno.EIO)
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def test_whatever_call_fails_while_a_file_is_read_it_stays(family, stream, tmp_path, monkeypatch):
    """That it cannot be read is no damage, for which an older file would be taken."""
    path = tmp_path / "run.nc"
    em = driver(family).partial_fit(stream[:10])
    em.partial_fit(stream[:20], skip=10, checkpoint=Checkpoint(path, observations=5))
    old, at, failed = files_in(tmp_path), 0, True
    assert len(old) == 2
    while failed:
        at, failed = at + 1, False
        faults = Faults(at)

        def opening(*arguments, faults=faults):
            if faults.meets("open"):
                raise disk_error(errno.EIO)
            return Failing(open(*arguments), faults)

        with monkeypatch.context() as patched:
            patched.setattr(whole_files, "open", opening, raising=False)
            try:
                assert loaded(path).n_seen == 20
            except OSError as error:
                failed = True
                assert error.errno == errno.EIO
        assert files_in(tmp_path) == old
    assert at > 5
    # nor is a checkpoint lost to a file that cannot be read as it moves down
    real = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda self: real(self) if self != path else opening_fails()
    )
    with pytest.raises(OSError, match=r"run\.nc' was not written: Input/output error"):
        em.partial_fit(stream[:25], skip=20, checkpoint=path)
    monkeypatch.undo()
    assert files_in(tmp_path) == old and em.position == 25
    em.partial_fit(stream, skip=25, checkpoint=path)
    assert_same(loaded(path), driver(family).partial_fit(stream))


def opening_fails():
    raise disk_error(errno.EIO)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (errno.ENOSPC, True),
        ("memory", False),
        pytest.param(errno.ENOSPC, False, marks=pytest.mark.slow),
        pytest.param(errno.EIO, False, marks=pytest.mark.slow),
        pytest.param(errno.EIO, True, marks=pytest.mark.slow),
        pytest.param("memory", True, marks=pytest.mark.slow),
    ],
)
def test_whatever_call_fails_while_a_run_is_saved_it_goes_on(
    family, stream, tmp_path, monkeypatch, error, lasting
):
    path = tmp_path / "run.nc"
    em = driver(family, n_start=7).partial_fit(stream[:20])
    em.save(path)
    old = files_in(tmp_path)
    em.partial_fit(stream[20:30])
    error = MemoryError() if error == "memory" else error
    # what cannot be taken away again is left behind
    calls = ("open", "write", "fsync", "close", "replace")
    at, failed = 0, True
    while failed:
        at, failed = at + 1, False
        with failing(monkeypatch, at, error, calls=calls, lasting=lasting) as faults:
            try:
                em.save(path)
            except OSError as refusal:
                failed = True
                assert refusal.errno == error
                assert "run.nc' was not written: " in str(refusal)
            except MemoryError:
                failed = True
        # until the last call, which has the new name on the disk, the old file is there
        renamed = "replace" in faults.made[: at - 1]
        assert set(files_in(tmp_path)) == {"run.nc"}
        assert renamed or files_in(tmp_path) == old
        assert read_whole(path)
    assert at >= 8
    assert_same(loaded(path), em)
    assert_same(em.partial_fit(stream[30:]), driver(family, n_start=7).partial_fit(stream))


@pytest.mark.parametrize(
    ("error", "links", "step"),
    [
        (errno.EIO, True, 6),
        pytest.param(errno.EIO, True, 1, marks=pytest.mark.slow),
        pytest.param(errno.EIO, False, 1, marks=pytest.mark.slow),
        pytest.param(errno.ENOSPC, True, 1, marks=pytest.mark.slow),
        pytest.param(errno.ENOSPC, False, 1, marks=pytest.mark.slow),
    ],
)
def test_whatever_call_fails_at_a_checkpoint_nothing_is_lost(
    family, stream, tmp_path, monkeypatch, rng, error, links, step
):
    """The lock's calls among them; files, and the run in memory, stay such that one goes on."""
    if step == 1:
        without_hdf5(monkeypatch)
    whole = driver(family, n_start=7).partial_fit(stream[:40])
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links")))
    begun = tmp_path / "begun"
    begun.mkdir()
    em = driver(family, n_start=7).partial_fit(stream[:20], checkpoint=begun / "run.nc")
    em.partial_fit(stream[:30], skip=20, checkpoint=begun / "run.nc")
    at = -rng.integers(step)
    while True:
        at += step
        folder = Path(shutil.copytree(begun, tmp_path / str(at)))
        path = folder / "run.nc"
        em = loaded(path)
        with failing(monkeypatch, at, error) as faults:
            try:
                em.partial_fit(stream[:40], skip=30, checkpoint=Checkpoint(path, observations=10))
            except OSError as refusal:
                # the older file has a lock as well
                assert "run.nc" in str(refusal) or "run.1.nc" in str(refusal)
                assert ("room" in str(refusal)) == (error == errno.ENOSPC), refusal
        assert loaded(path).n_seen in (30, 40)
        assert loaded(older_name(path, 1)).n_seen in (20, 30)
        # gone on with in memory, or from the file, which also clears what was left
        em.partial_fit(stream[:40], skip=em.position, checkpoint=path)
        assert_same(em, whole)
        assert set(files_in(folder)) == {"run.nc", "run.1.nc"}
        found = loaded(path)
        assert_same(found.partial_fit(stream[:40], skip=found.position), whole)
        if len(faults.made) < at:
            break
    assert at > 15


def test_a_batch_run_goes_on_when_its_checkpoint_fails(family, stream, tmp_path, monkeypatch):
    path, options = tmp_path / "run.nc", {"progressbar": False, "e_step": Noisy()}
    saem = SAEM(family, draws=5, random_seed=1, **options)
    with (
        failing(monkeypatch, 1, errno.ENOSPC, calls=("write",), lasting=True),
        pytest.raises(OSError, match=r"run\.nc' was not written: there is no room for its \d"),
    ):
        saem.fit(stream, 3, checkpoint=path)
    assert saem.n_iterations == 2 and not list(tmp_path.iterdir())
    saem.fit(stream, 1, checkpoint=path)
    clean = SAEM(family, draws=5, random_seed=1, **options).fit(stream, 3)
    assert saem.parameters.identical(clean.parameters)
    assert SAEM.load(path, family, **options).parameters.identical(clean.parameters)


def filled(em, path, stream):
    """The run cannot be saved where it is, says what it needs, and loses nothing."""
    old = files_in(path.parent)
    position = em.position
    with pytest.raises(OSError, match=r"run\.nc' was not written: there is no room for its") as no:
        em.partial_fit(stream, skip=em.position, checkpoint=Checkpoint(path, observations=5))
    assert no.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert em.position == position + 5
    assert files_in(path.parent) == old


def test_files_that_may_not_grow(family, stream, tmp_path):
    """A limit on the size of files fails as a full disk does, in the system's own write."""
    resource = pytest.importorskip("resource", reason="this system limits no file sizes")
    path = tmp_path / "run.nc"
    em = driver(family).partial_fit(stream[:20], checkpoint=path)
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 1, 4096, size // 2, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            filled(em, path, stream)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    em.partial_fit(stream, skip=em.position, checkpoint=path)
    assert_same(loaded(path), driver(family).partial_fit(stream))


def test_a_small_file_system_that_is_full(family, stream, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    em = driver(family).partial_fit(stream[:20])
    em.save(tmp_path / "run.nc")
    size = int(1.6 * (tmp_path / "run.nc").stat().st_size)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here ({error})")
    try:
        path = small / "run.nc"
        em.save(path)
        filled(em, path, stream)
        (small / "other").write_bytes(b"")
        filled(em, path, stream)
        # the one that is there keeps its room; without it there is enough
        path.unlink()
        em.partial_fit(stream, skip=em.position, checkpoint=path)
        assert_same(loaded(path), driver(family).partial_fit(stream))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_links_under_names_beside_a_checkpoint_are_not_followed(
    family, stream, tmp_path, monkeypatch
):
    """Whoever foresees a name may have laid a link there; those of old versions among them."""
    path, treasure = tmp_path / "run.nc", tmp_path / "treasure"
    treasure.write_bytes(b"precious")
    em = driver(family, n_start=7)
    for name in ("..run.nc.new.partial", ".run.nc.new", ".run.nc.older", ".run.nc.partial"):
        (tmp_path / name).symlink_to(treasure)
    em.partial_fit(stream[:20], checkpoint=path).partial_fit(stream[20:30], checkpoint=path)
    em.save(path)
    assert treasure.read_bytes() == b"precious"
    # the name that is drawn, where it could be foreseen
    monkeypatch.setattr(whole_files.secrets, "token_hex", lambda _: "drawn")
    drawn = whole_files.temporary_beside(path)
    drawn.symlink_to(treasure)
    with pytest.raises(OSError, match=r"run\.nc' was not written: File exists"):
        em.save(path)
    assert treasure.read_bytes() == b"precious"
    lock = tmp_path / ".run.nc.lock"
    lock.symlink_to(treasure)
    with pytest.raises(OSError, match=r"\.run\.nc\.lock', which keeps other runs from"):
        em.partial_fit(stream[30:], checkpoint=path)
    assert treasure.read_bytes() == b"precious" and em.position == 30


def test_a_link_in_place_of_a_lock_is_refused_where_opening_follows_links(tmp_path, monkeypatch):
    monkeypatch.setattr("pymc_mcoem.runs.file_lock.FLAGS", os.O_RDWR | os.O_CREAT)
    (tmp_path / "treasure").write_bytes(b"precious")
    (tmp_path / "lock").symlink_to(tmp_path / "treasure")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)), locked(tmp_path / "lock"):
        pass
    assert (tmp_path / "treasure").read_bytes() == b"precious"


def test_names_that_are_too_long_are_refused_before_the_work(family, stream, tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") if hasattr(os, "pathconf") else 255
    em = driver(family)
    path = tmp_path / ("x" * (longest - 10) + ".nc")
    for act in (lambda: em.save(path), lambda: em.partial_fit(stream, checkpoint=path)):
        with pytest.raises(OSError, match="is too long a name: while it is written it has 26"):
            act()
    assert em.position == 0 and not list(tmp_path.iterdir())
    assert require_file_name(tmp_path / ("x" * (longest - 29) + ".nc"))


def test_a_second_run_on_a_checkpoint_is_refused_when_it_starts(family, stream, tmp_path):
    path, reads = tmp_path / "run.nc", []
    driver(family, n_start=7).partial_fit(stream[:20], checkpoint=path)

    def records():
        for number, value in enumerate(stream):
            if number == 25:
                others = (
                    lambda: loaded(path).partial_fit(map(reads.append, stream), checkpoint=path),
                    lambda: driver(family).partial_fit(stream, checkpoint=path),
                    lambda: SAEM(family, random_seed=1).fit(stream, 1, checkpoint=path),
                )
                for other in others:
                    with pytest.raises(BlockingIOError, match=r"run\.nc' is in use by another run"):
                        other()
                # in the same folder there is room for others
                driver(family).partial_fit(stream[:3], checkpoint=tmp_path / "other.nc")
                # and a run that is saved by hand takes part in nothing
                driver(family).save(tmp_path / "third.nc")
            yield value

    em = loaded(path)
    em.partial_fit(records(), skip=20, checkpoint=path)
    assert not reads
    assert_same(em, driver(family, n_start=7).partial_fit(stream))
    # it ends with the call
    loaded(path).partial_fit([0.5], checkpoint=path)
    assert not any(name.endswith(".lock") for name in files_in(tmp_path))


def test_of_many_threads_one_has_a_lock(tmp_path):
    inside, refused, most = [], [], []
    begin = threading.Barrier(8)

    def contend():
        begin.wait()
        for _ in range(200):
            try:
                with locked(tmp_path / "lock"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except BlockingIOError:
                refused.append(1)

    threads = [threading.Thread(target=contend) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1} and len(most) + len(refused) == 1600
    assert not list(tmp_path.iterdir())


HOLDER = """
import os, sys, time
from pathlib import Path
from pymc_mcoem.runs.file_lock import locked
with locked(Path(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(60)  # a worker that outlives its driver
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_lock_ends_with_its_process_whatever_its_workers_do(tmp_path):
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    holder = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match="another process holds it"), locked(lock):
            pass
        holder.kill()
        holder.wait()
        os.killpg(holder.pid, 0)  # the worker is there
        assert lock.exists()
        with locked(lock):
            pass
        assert not lock.exists()
    finally:
        os.killpg(holder.pid, 9)
        holder.stdout.close()
        holder.wait()


def test_a_file_system_without_locks_is_told_of(family, stream, tmp_path, monkeypatch, caplog):
    fcntl = pytest.importorskip("fcntl")

    def refused(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "lockf", refused)
    driver(family).partial_fit(stream[:5], checkpoint=tmp_path / "run.nc")
    assert "this file system has no locks (no locks available)" in caplog.text
    assert set(files_in(tmp_path)) == {"run.nc"}


def losses(family, stream, tmp_path, monkeypatch, rng, *, synced, links=True, times=6):
    """Lose the power after each call of a run with checkpoints, and yield what is left of it.

    Beside the folder, how many observations had been saved when the power went.
    """
    live = tmp_path / "live"
    live.mkdir()
    path, saved = live / "run.nc", []
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("no links")))
    with watched(monkeypatch, live, synced=synced) as (_, states):
        em = driver(family, n_start=7)
        for stop in (5, 10, 15, 20):
            em.partial_fit(stream[:stop], skip=em.position, checkpoint=Checkpoint(path, keep=2))
            saved.append((len(states), stop))
    for number, state in enumerate(states, start=1):
        sure = max((stop for after, stop in saved if after <= number), default=0)
        for time in range(times):
            folder = tmp_path / f"{number}-{time}"
            folder.mkdir()
            state.without_power(folder, rng)
            yield folder, sure


@pytest.mark.parametrize("links", [True, False])
def test_what_was_saved_outlasts_a_loss_of_power(family, stream, tmp_path, monkeypatch, rng, links):
    known: dict[bytes, int] = {}
    n_lost = n_found = 0
    for folder, sure in losses(
        family, stream, tmp_path, monkeypatch, rng, synced=True, links=links
    ):
        whole = {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}
        for path in whole.values():
            content = read_whole(path)
            if content not in known:
                known[content] = loaded(path).n_seen
        if "run.nc" in whole:
            n_found += 1
            assert known[read_whole(whole["run.nc"])] >= sure
        else:
            n_lost += 1
            assert not sure and not whole
    assert set(known.values()) == {5, 10, 15, 20}
    assert n_lost and n_found > 5 * n_lost
    # it is gone on with from there, and what was left half done goes
    path = folder / "run.nc"
    em = loaded(path)
    em.partial_fit(stream, skip=em.position, checkpoint=path)
    assert_same(em, driver(family, n_start=7).partial_fit(stream))
    assert not any(name.startswith(".") for name in files_in(folder))


def test_without_syncing_a_loss_of_power_would_be_seen(family, stream, tmp_path, monkeypatch, rng):
    """That is, the test above can fail."""
    missing = damaged = 0
    for folder, sure in losses(family, stream, tmp_path, monkeypatch, rng, synced=False, times=2):
        path = folder / "run.nc"
        missing += bool(sure) and not path.exists()
        try:
            if path.exists():
                read_whole(path)
        except DamagedFileError:
            damaged += 1
    assert missing > 10 and damaged > 10


def test_a_run_whose_file_is_an_older_one_of_another_is_refused(family, stream, tmp_path):
    def records():
        for number, value in enumerate(stream):
            if number == 5:
                with pytest.raises(BlockingIOError, match=r"run\.1\.nc' is in use by another run"):
                    driver(family).partial_fit(stream[:3], checkpoint=tmp_path / "run.1.nc")
            yield value

    em = driver(family).partial_fit(records(), checkpoint=tmp_path / "run.nc")
    assert em.n_seen == len(stream)


def test_a_number_that_is_missing_among_older_files_is_passed(family, stream, tmp_path):
    """As a process leaves it that is killed as it moves them down."""
    path = tmp_path / "run.nc"
    em = driver(family)
    for stop in (10, 20, 30):
        em.partial_fit(stream[:stop], skip=em.position, checkpoint=Checkpoint(path, keep=2))
    os.replace(older_name(path, 1), older_name(path, 2))
    path.write_bytes(path.read_bytes()[:-1])
    assert loaded(path).n_seen == 20


def test_what_another_run_is_writing_stays(tmp_path):
    own, other = (tmp_path / f".{name}.{'0a' * 8}.partial" for name in ("run", "run.run.nc"))
    for path in (own, other):
        path.touch()
    whole_files.remove_leftovers(tmp_path / "run")
    assert sorted(files_in(tmp_path)) == [other.name]


@pytest.mark.parametrize("fails", [errno.ENOSPC, errno.EIO])
def test_a_folder_of_records_is_written_as_safely(family, stream, tmp_path, monkeypatch, fails):
    folder = tmp_path / "left_out"
    em = driver(family, on_error=folder)
    with failing(monkeypatch, 2, fails), pytest.raises(OSError, match=r"on_error: .*0+\.npz' was"):
        em.partial_fit([float("inf")])
    assert not files_in(folder) and em.position == 0
    with failing(monkeypatch) as counted:
        em.partial_fit([float("inf"), *stream])
    assert counted.made.count("fsync") == 2  # the file's and the folder's
    content = (folder / "000000000000.npz").read_bytes()
    driver(family, on_error=folder).partial_fit([-float("inf")])
    assert sorted(files_in(folder)) == ["000000000000.1.npz", "000000000000.npz"]
    assert (folder / "000000000000.npz").read_bytes() == content


def test_a_second_thread_saves_one_state(family, stream, tmp_path, monkeypatch):
    """As it is written the run goes on, and the file holds where it stood."""
    em = driver(family, parameters=THETA).partial_fit(stream[:20])
    real = em.run.history.to_datatree

    def slowly(*arguments):
        monkeypatch.undo()
        em.partial_fit(stream[20:])
        return real(*arguments)

    monkeypatch.setattr(em.run.history, "to_datatree", slowly)
    em.save(tmp_path / "run.nc")
    found = loaded(tmp_path / "run.nc")
    assert (em.n_seen, found.n_seen) == (len(stream), 20)
    assert found.history["observations"].sizes["observation"] == 20
    assert_same(found.partial_fit(stream[20:]), em)

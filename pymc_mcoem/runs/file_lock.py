"""A file lock that one call holds, and that ends with its process in any case.

These are POSIX record locks, not `flock` locks as in the `filelock` package: forked workers
inherit `flock` locks and would hold them as long as they outlive a killed driver. Record locks are
not inherited, but do not exclude calls in one process from each other; a table does that.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["locked"]

_log = logging.getLogger("pymc_mcoem")

#: Locks held by calls in this process, by process id: a forked child holds none of its parent's.
_held: dict[tuple[int, str], object] = {}
BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file at `path` within a context, and remove it afterward.

    Parameters
    ----------
    path : Path
        Path of the lock file. A link there is not followed.

    Raises
    ------
    BlockingIOError
        If another process, or another call in this one, holds it.
    OSError
        If the file cannot be opened.

    Notes
    -----
    If a file system has no locks, the log says so, and only calls in one process exclude each
    other.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with locked(Path(folder, "lock")):
    ...         print(os.listdir(folder))
    ...     print(os.listdir(folder))
    ['lock']
    []
    """
    key, token = (os.getpid(), os.path.realpath(path)), object()
    if _held.setdefault(key, token) is not token:
        raise BlockingIOError(errno.EAGAIN, "another call in this process holds it", str(path))
    try:
        descriptor = _acquired(path)
        try:
            yield
        finally:
            # Unlink the file while the lock is held: another process that has it open then finds it
            # gone and makes a new one.
            for end in (os.unlink, lambda _: os.close(descriptor)):
                with suppress(OSError):
                    end(path)
            if sys.platform == "win32":  # where open files cannot be unlinked
                with suppress(OSError):
                    os.unlink(path)
    finally:
        del _held[key]


def _acquired(path: Path) -> int:
    """Return the descriptor of the locked file."""
    while True:
        if os.path.islink(path):  # some systems have no flag against following it
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        descriptor = os.open(path, FLAGS, 0o600)
        try:
            _lock(descriptor, path)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return descriptor
        except FileNotFoundError:
            pass  # its holder has just removed it
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in BUSY:
            raise BlockingIOError(errno.EAGAIN, "another process holds it", str(path)) from error
        _log.warning(
            "%s: this file system has no locks (%s): nothing keeps another process from the same "
            "checkpoint.",
            path,
            error.strerror,
        )

"""A lock that one call holds, and that ends with its process however that ends.

POSIX record locks, not `flock` as the `filelock` package takes it: workers that are forked inherit
what `flock` locks, and would hold it for as long as they outlive a driver that was killed. Record
locks are not inherited. What they lack, that calls in one process exclude each other, is a table.
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

#: What calls in this process hold; a child that was forked has another number, and holds nothing.
_held: dict[tuple[int, str], object] = {}
BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that is the file at `path`, and take that away afterwards.

    Parameters
    ----------
    path : Path
        Of the lock itself. A link there is not followed.

    Raises
    ------
    BlockingIOError
        If another process, or another call in this one, holds it.
    OSError
        If the file cannot be opened.

    Notes
    -----
    Where a file system has no locks the log says so, and only calls in one process are kept apart.

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
            # First the name, while it is held: whoever has it open finds it gone and makes another.
            for end in (os.unlink, lambda _: os.close(descriptor)):
                with suppress(OSError):
                    end(path)
            if sys.platform == "win32":  # where nothing that is open is unlinked
                with suppress(OSError):
                    os.unlink(path)
    finally:
        del _held[key]


def _acquired(path: Path) -> int:
    """Return the locked file."""
    while True:
        descriptor = os.open(path, FLAGS, 0o600)
        try:
            _lock(descriptor, path)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return descriptor
        except FileNotFoundError:
            pass  # its holder has taken it away in this moment
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

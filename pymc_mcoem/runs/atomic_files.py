"""Atomic files with a checksum: they are written completely or not at all.

The content of a file is in memory before the first byte is written, so that a full or failing disk
affects only plain calls of the operating system. The last bytes of a file are its seal, a checksum
of everything before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = [
    "DamagedFileError",
    "leftover_locks",
    "lock_of",
    "older_name",
    "older_names",
    "read_whole",
    "remove_leftovers",
    "replace_file",
    "temporary_beside",
    "unsealed",
    "write_new",
    "write_whole",
]

SEAL = b"\npymc_mcoem sha256 "
#: Number of bytes of the mark above and of the hexadecimal digest.
SEAL_LENGTH = len(SEAL) + 64
#: Number of bytes that are written at a time.
CHUNK = 1 << 22
#: Flags that never follow a link and never open an existing file.
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
NEW |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))


class DamagedFileError(ValueError):
    """A file is not as it was written, or is not one that a run can continue from."""


def older_name(path: Path, number: int) -> Path:
    """Return the name of the `number`-th file before the newest, which is at `path`.

    Examples
    --------
    >>> older_name(Path("run.nc"), 1).name
    'run.1.nc'
    """
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def older_names(path: Path) -> list[Path]:
    """Return the existing files before the newest, the most recent first.

    A number may be missing if a process was killed while it renamed them.
    """
    numbered = re.compile(rf"{re.escape(path.stem)}\.([1-9]\d*){re.escape(path.suffix)}")
    found = map(numbered.fullmatch, _names_beside(path))
    in_use = sorted(int(match[1]) for match in found if match is not None)
    return [older_name(path, number) for number in in_use]


def lock_of(path: Path) -> Path:
    """Return the name of the lock file of a checkpoint's file."""
    return path.with_name(f".{path.name}.lock")


def leftover_locks(path: Path, beyond: int) -> list[Path]:
    """Return the existing locks of older files with numbers above `beyond`."""
    numbered = re.compile(rf"\.{re.escape(path.stem)}\.(\d+){re.escape(path.suffix)}\.lock")
    found = map(numbered.fullmatch, _names_beside(path))
    return [path.with_name(each[0]) for each in found if each and int(each[1]) > beyond]


def _names_beside(path: Path) -> list[str]:
    with suppress(OSError):  # a folder may be writable but not readable
        return os.listdir(path.absolute().parent)
    return []


def temporary_beside(path: Path) -> Path:
    """Return a name in the folder of `path` that is unused and cannot be guessed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def remove_leftovers(path: Path) -> None:
    """Remove temporary files beside `path` of processes that were killed while writing."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial")
    for name in _names_beside(path):
        if ours.fullmatch(name):
            with suppress(OSError):
                os.unlink(path.with_name(name))


def write_new(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a new file, and flush it to the disk.

    Raises
    ------
    FileExistsError
        If the name is taken, also by a broken link.
    OSError
        If the file cannot be written.
    """
    descriptor = os.open(path, NEW, 0o666)
    try:
        for part in chunks:
            left = memoryview(part)
            while left:
                left = left[os.write(descriptor, left[:CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes, before: Callable[[], None] | None = None) -> None:
    """Write a sealed file, which atomically replaces an existing one.

    Parameters
    ----------
    before : callable, optional
        Called when the new file is complete on the disk and the old one is still in place.

    Raises
    ------
    OSError
        If the file cannot be written. No partial file is left, and the old file is unchanged.
    """
    seal = SEAL + hashlib.sha256(content).hexdigest().encode()
    replace_file(path, (content, seal), before)


def replace_file(
    path: Path,
    chunks: Sequence[bytes],
    before: Callable[[], None] | None = None,
    argument: str = "path",
) -> None:
    """Write a file as `write_whole` does, without a seal; errors name `argument`."""
    beside = temporary_beside(path)
    try:
        try:
            write_new(beside, chunks)
            if before is not None:
                before()
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        _sync_folder(path.absolute().parent)
    except OSError as error:
        size = sum(map(len, chunks))
        why = (
            f"there is no room for its {size:,} bytes, which are written before the old file is "
            "removed; make room"
            if error.errno in FULL
            else f"{error.strerror or error}; check the disk"
        )
        raise OSError(
            error.errno,
            f"{argument}: {str(path)!r} was not written: {why}, or name a file elsewhere. The run "
            "goes on from where it stands.",
        ) from error


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk too, if the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return  # the folder is writable but cannot be opened
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do this by themselves and refuse the call.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def read_whole(path: Path) -> bytes:
    """Return the content that `write_whole` wrote."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - SEAL_LENGTH, 0))
        if file.read(len(SEAL)) != SEAL:
            raise DamagedFileError(
                f"path: {str(path)!r} does not end as saved runs do: it is none, or of another "
                "version, or was cut short."
            )
        if size > _memory():
            raise DamagedFileError(
                f"path: {str(path)!r} has {size:,} bytes, more than this machine has memory."
            )
        file.seek(0)
        content = unsealed(file.read())
    if content is None:
        raise DamagedFileError(
            f"path: {str(path)!r} is damaged: its content is not what was written (its checksum "
            "differs). Take an older file, as a Checkpoint keeps beside it."
        )
    return content


def unsealed(sealed: bytes) -> bytes | None:
    """Return the content before the seal; None if the seal is wrong or missing."""
    content = sealed[:-SEAL_LENGTH]
    seal = SEAL + hashlib.sha256(content).hexdigest().encode()
    return content if sealed[-SEAL_LENGTH:] == seal else None


def _memory() -> float:
    """Return the bytes of memory of this machine; infinity if they are not known."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")

"""Checkpoints: saving a run as it goes on, and keeping older files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from pymc_mcoem.runs.atomic_files import (
    FULL,
    leftover_locks,
    lock_of,
    older_name,
    remove_leftovers,
    temporary_beside,
    unsealed,
    write_new,
    write_whole,
)
from pymc_mcoem.runs.datatree_files import require_file_name
from pymc_mcoem.runs.file_lock import locked
from pymc_mcoem.validation import is_number, require_whole

__all__ = ["Checkpoint", "Checkpointing", "claimed"]


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a run is saved as it goes on.

    Parameters
    ----------
    path : path-like
        The file, as `OnlineEM.save` writes it. It is always complete, even if the process is
        killed while writing.
    observations : int, optional
        Number of observations after which the run is saved again.
    seconds : float, optional
        Seconds after which the run is saved again, with the next observation.
    keep : int
        Number of older files to keep: ``run.nc`` is then the newest, ``run.1.nc`` the one before,
        and so on. If the newest is damaged, `OnlineEM.load` falls back to these.

    Raises
    ------
    ValueError, TypeError
        If a number is out of its range or `path` is not a path.

    Notes
    -----
    The run is saved once more when a call ends for any reason. Saving takes as long as writing
    the statistics and the history, 0.3 to 0.5 seconds for images of 256 pixels under four
    classes; with the default of 100 observations about a hundredth of the run time.

    Examples
    --------
    >>> Checkpoint("run.nc", observations=500).older(1).name
    'run.1.nc'
    """

    path: str | os.PathLike[str]
    observations: int | None = 100
    seconds: float | None = None
    keep: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        # resolve a link to its target, so that it stays a link
        object.__setattr__(self, "path", require_file_name(self.path))
        if self.observations is not None:
            require_whole("observations", self.observations, 1)
        require_whole("keep", self.keep, 0)
        if self.seconds is not None and not (is_number(self.seconds) and self.seconds > 0):
            raise ValueError(f"seconds: got {self.seconds!r}; give a positive number, or None.")
        for number in range(1, self.keep + 1):
            require_file_name(self.older(number))

    @classmethod
    def of(cls, given: Any) -> Checkpoint | None:
        """Return a checkpoint or None; `given` may also be a path alone."""
        return given if given is None or isinstance(given, Checkpoint) else cls(given)

    def older(self, number: int) -> Path:
        """Return the name of the `number`-th file before the newest."""
        return older_name(Path(self.path), number)

    @property
    def files(self) -> list[Path]:
        """Names of the newest file and the older ones."""
        return [Path(self.path), *(self.older(number) for number in range(1, self.keep + 1))]

    def require_unused(self, own: Iterable[Path] = ()) -> None:
        """Refuse files of other runs, for a run that has learned nothing yet.

        Parameters
        ----------
        own : iterable of Path
            Files that this run was saved to or loaded from.

        Raises
        ------
        FileExistsError
            If one of the files exists and none of them is the run's own.
        """
        there = [name for name in self.files if name.exists()]
        if there and not {name.resolve() for name in self.files} & {name.resolve() for name in own}:
            raise FileExistsError(
                f"checkpoint: {str(there[0])!r} is there already, and this run is new: it would "
                "replace what another has learned. Go on with that one by `load`, name another "
                "file, or remove this one."
            )

    def rotate(self) -> None:
        """Make room for a new file: the newest becomes the first of the older ones.

        The newest file is in place at every moment. A damaged one does not replace an older one.
        """
        newest = Path(self.path)
        if not self.keep or not newest.exists():
            return
        content = newest.read_bytes()
        if unsealed(content) is None:
            return
        for number in range(self.keep, 1, -1):
            if self.older(number - 1).exists():
                os.replace(self.older(number - 1), self.older(number))
        beside = temporary_beside(newest)
        try:
            try:
                os.link(newest, beside)
            except OSError:  # a file system without links
                write_new(beside, [content])
            os.replace(beside, self.older(1))
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def claimed(checkpoint: Checkpoint | None, own: Iterable[Path] | None) -> Iterator[None]:
    """Lock the files of a checkpoint for one call.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: nothing is locked.
    own : iterable of Path, or None
        Files that the run was saved to or loaded from, if it has learned nothing yet and must not
        replace other files. None if it has learned.

    Raises
    ------
    BlockingIOError
        If another call, in this process or another, has locked them.
    FileExistsError
        See `Checkpoint.require_unused`.
    """
    if checkpoint is None:
        yield
        return
    with ExitStack() as stack:
        for file in checkpoint.files:
            lock = lock_of(file)
            try:
                stack.enter_context(locked(lock))
            except BlockingIOError as error:
                raise BlockingIOError(
                    error.errno,
                    f"checkpoint: {str(file)!r} is in use by another run "
                    f"({error.strerror}): each would replace what the other has learned. Wait for "
                    "its end, or name another file.",
                ) from error
            except OSError as error:
                remedy = "make room" if error.errno in FULL else "check the disk"
                if os.path.lexists(lock):
                    remedy = "remove the file of that name"
                raise OSError(
                    error.errno,
                    f"checkpoint: {str(lock)!r}, which keeps other runs from {file.name!r}, "
                    f"cannot be made ({error.strerror}); {remedy}, or name another file.",
                ) from error
        if own is not None:
            checkpoint.require_unused(own)
        newest = Path(checkpoint.path)
        remove_leftovers(newest)
        # locks left by a process that kept more files and was killed
        for lock in leftover_locks(newest, beyond=checkpoint.keep):
            with suppress(OSError), locked(lock):
                pass
        yield


class Checkpointing:
    """Context manager that saves checkpoints during one call of a driver.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: nothing is saved.
    content : callable
        Returns the bytes of a file with the saved run.
    state : callable
        Returns the run's state, the same object as long as nothing has changed.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        content: Callable[[], bytes],
        state: Callable[[], Any],
    ) -> None:
        self._checkpoint = checkpoint
        self._content = content
        self._state = state
        self._saved = state()
        self._last = monotonic()
        self._due = 0
        self._failed = False

    def __enter__(self) -> Self:
        """Return this context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Save unsaved progress, however the call ends."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        if self._state() is not self._saved and not self._failed:
            try:
                self._write()
            except Exception:
                raise
            except BaseException:
                # A second Ctrl-C, or `sys.exit` in the handler of a signal, interrupted the saving.
                self._write()
                raise
        if isinstance(error, KeyboardInterrupt) and error.args and not self._failed:
            error.args = (
                f"{error.args[0]}; the run is saved in {os.fspath(checkpoint.path)!r}",
                *error.args[1:],
            )

    def took(self, n_observations: int = 1) -> None:
        """Count observations, and save if it is time."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        self._due += n_observations
        enough = checkpoint.observations is not None and self._due >= checkpoint.observations
        late = checkpoint.seconds is not None and monotonic() - self._last >= checkpoint.seconds
        if enough or late:
            self._write()

    def _write(self) -> None:
        assert self._checkpoint is not None
        state = self._state()
        # If saving fails, it is not tried again when the call ends; after Ctrl-C or the end of the
        # program it is.
        try:
            write_whole(
                Path(self._checkpoint.path), self._content(), before=self._checkpoint.rotate
            )
        except Exception:
            self._failed = True
            raise
        self._saved, self._last, self._due = state, monotonic(), 0

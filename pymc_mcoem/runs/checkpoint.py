"""Saving a run while it goes on: how often, and what is kept of older files."""

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
    leftover_locks,
    lock_of,
    older_name,
    remove_leftovers,
    temporary_beside,
    write_new,
    write_whole,
)
from pymc_mcoem.runs.datatree_files import require_file_name
from pymc_mcoem.runs.file_lock import locked
from pymc_mcoem.validation import is_number, is_whole

__all__ = ["Checkpoint", "Checkpointing", "claimed"]


@dataclass(frozen=True)
class Checkpoint:
    """Where a run is saved while it goes on, and how often.

    Parameters
    ----------
    path : path-like
        The file, as `OnlineEM.save` writes it. It is there whole or not at all, also if the process
        is killed while writing.
    observations : int, optional
        Observations after which it is saved again.
    seconds : float, optional
        Seconds after which it is saved again, with the next observation.
    keep : int
        Older files to keep beside it: ``run.nc`` is then the newest, ``run.1.nc`` the one before,
        and so on. Where the newest turns out damaged, `OnlineEM.load` falls back to these.

    Raises
    ------
    ValueError, TypeError
        If a number is out of its range or the path is none.

    Notes
    -----
    A call that ends, in whatever way, saves once more. Saving takes as long as writing the
    statistics and the history does, 0.3 to 0.5 seconds for images of 256 pixels under four
    classes: with the default of 100 observations about a hundredth of the time.

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
        # of a link the file that it leads to, so that it stays one
        object.__setattr__(self, "path", require_file_name(self.path))
        for name, least in (("observations", 1), ("keep", 0)):
            value = getattr(self, name)
            if value is None and name == "observations":
                continue
            if not is_whole(value) or value < least:
                raise ValueError(f"{name}: got {value!r}; give a whole number from {least}.")
        if self.seconds is not None and not (is_number(self.seconds) and self.seconds > 0):
            raise ValueError(f"seconds: got {self.seconds!r}; give a positive number, or None.")
        for number in range(1, self.keep + 1):
            require_file_name(self.older(number))

    @classmethod
    def of(cls, given: Any) -> Checkpoint | None:
        """Return a checkpoint, of which a path alone may be given, or None."""
        return given if given is None or isinstance(given, Checkpoint) else cls(given)

    def older(self, number: int) -> Path:
        """Return the name of the `number`-th file before the newest."""
        return older_name(Path(self.path), number)

    @property
    def files(self) -> list[Path]:
        """The newest and the older ones."""
        return [Path(self.path), *(self.older(number) for number in range(1, self.keep + 1))]

    def require_unused(self, own: Iterable[Path] = ()) -> None:
        """Refuse files of other runs, which a run that has learned nothing yet would replace.

        Parameters
        ----------
        own : iterable of Path
            Files that this run was saved to or loaded from.

        Raises
        ------
        FileExistsError
            If one of the files is there and none of them is the run's own.
        """
        there = [name for name in self.files if name.exists()]
        if there and not {name.resolve() for name in self.files} & {name.resolve() for name in own}:
            raise FileExistsError(
                f"checkpoint: {str(there[0])!r} is there already, and this run is new: it would "
                "replace what another has learnt. Go on with that one by `load`, name another "
                "file, or remove this one."
            )

    def rotate(self) -> None:
        """Make room for a new file: the newest becomes the first of the older ones.

        The newest is in its place at every moment.
        """
        newest = Path(self.path)
        if not self.keep or not newest.exists():
            return
        for number in range(self.keep, 1, -1):
            if self.older(number - 1).exists():
                os.replace(self.older(number - 1), self.older(number))
        beside = temporary_beside(newest)
        try:
            try:
                os.link(newest, beside)
            except OSError:  # a file system without links
                write_new(beside, [newest.read_bytes()])
            os.replace(beside, self.older(1))
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def claimed(checkpoint: Checkpoint | None, own: Iterable[Path] | None) -> Iterator[None]:
    """Have the files of a checkpoint for one call alone.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: there is nothing to have.
    own : iterable of Path, or None
        Of a run that has learned nothing yet, the files that it was saved to or loaded from: others
        it would replace. None of one that has.

    Raises
    ------
    BlockingIOError
        If another call has them, in this process or another.
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
                    f"checkpoint: {str(file)!r} is another run's as long as that goes on "
                    f"({error.strerror}): each would replace what the other has learnt. Wait for "
                    "its end, or name another file.",
                ) from error
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"checkpoint: {str(lock)!r}, which keeps other runs from {file.name!r}, "
                    f"cannot be made ({error.strerror}); take away what has that name, or name "
                    "another file.",
                ) from error
        if own is not None:
            checkpoint.require_unused(own)
        newest = Path(checkpoint.path)
        remove_leftovers(newest)
        # of a process that kept more files, and was killed
        for lock in leftover_locks(newest, beyond=checkpoint.keep):
            with suppress(OSError), locked(lock):
                pass
        yield


class Checkpointing:
    """What one call of a driver does about checkpoints, as a context.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: nothing is done.
    content : callable
        Returns the bytes of a file that the run is saved in.
    state : callable
        Returns where the run stands: the same object as long as nothing has changed.
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
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Save what was not saved, however the call ends."""
        checkpoint = self._checkpoint
        if checkpoint is None:
            return
        if self._state() is not self._saved and not self._failed:
            try:
                self._write()
            except KeyboardInterrupt:
                # a second Ctrl-C met the saving that the first one had asked for
                self._write()
                raise
        if isinstance(error, KeyboardInterrupt) and error.args and not self._failed:
            error.args = (
                f"{error.args[0]}; the run is saved in {os.fspath(checkpoint.path)!r}",
                *error.args[1:],
            )

    def took(self, n_observations: int = 1) -> None:
        """Take note that observations were taken in, and save if it is time."""
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
        # What fails is not tried again as the call ends; what Ctrl-C ends is.
        try:
            write_whole(
                Path(self._checkpoint.path), self._content(), before=self._checkpoint.rotate
            )
        except KeyboardInterrupt:
            raise
        except BaseException:
            self._failed = True
            raise
        self._saved, self._last, self._due = state, monotonic(), 0

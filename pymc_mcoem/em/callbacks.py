"""Functions of users that a driver calls after each of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

from pymc_mcoem.em.run_state import ObservationRecord

__all__ = ["Callback", "Update", "call_all", "check_callbacks"]


@dataclass(frozen=True, eq=False)
class Update(Sequence[ObservationRecord]):
    """Argument of callbacks after a step: the driver, and the records of the step's observations.

    It is the sequence of these records. Each has ``number`` (of learned observations or of visits,
    from 1), ``class_weight`` of shape ``(n_classes,)``, ``log_evidence``, ``acceptance`` and
    ``seconds``. A step of `SAEM` is an iteration, with a record for each observation visited.

    Attributes
    ----------
    driver : OnlineEM or SAEM
        Its state is that after the step. Callbacks may use `learned_parameters`, ``save`` and
        everything else that does not learn; learning within a callback is refused.
    records : tuple of ObservationRecord

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_mcoem import OnlineEM, TemplateMixture
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> def enough(update):
    ...     if update.driver.n_learned == 3:
    ...         raise StopIteration
    >>> em = OnlineEM(mixture, n_start=2, callbacks=[enough], random_seed=1, progressbar=False)
    >>> em.partial_fit(np.random.default_rng(1).normal(size=(9, 3, 3))).n_seen
    3
    """

    driver: Any
    records: tuple[ObservationRecord, ...]

    def __len__(self) -> int:
        """Return the number of observations of the step."""
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> ObservationRecord: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ObservationRecord, ...]: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return the record of one observation, or of some."""
        return self.records[index]


type Callback = Callable[[Update], object]


def check_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return callbacks as a tuple, after a check that they can be called.

    Examples
    --------
    >>> check_callbacks(print)
    Traceback (most recent call last):
        ...
    TypeError: callbacks: got <built-in function print>; give a list of functions, as [print].
    """
    if callable(callbacks):
        shown = getattr(callbacks, "__name__", f"{type(callbacks).__name__}(...)")
        raise TypeError(f"callbacks: got {callbacks!r}; give a list of functions, as [{shown}].")
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks: got {callbacks!r}; give a list of functions of an update.")
    found = tuple(callbacks)
    for each in found:
        if isinstance(each, type):
            raise TypeError(
                f"callbacks: got the class {each.__name__}; create an "
                f"instance, as {each.__name__}()."
            )
        if not callable(each):
            raise TypeError(f"callbacks: got {each!r} among them; give functions of an update.")
    return found


def call_all(callbacks: Iterable[Callback], update: Update) -> bool:
    """Call all callbacks in order, and return whether one of them ends the driver's call.

    A callback that raises StopIteration does; later ones are still called. Any other exception is
    raised at once.
    """
    ends = False
    for callback in callbacks:
        try:
            callback(update)
        except StopIteration:
            ends = True
    return ends

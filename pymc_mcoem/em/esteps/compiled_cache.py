"""Cache of compiled E-steps, kept with their family so that nothing is compiled twice."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytensor

from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.threads import one_call_at_a_time

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pymc_mcoem.em.family import Family

__all__ = ["CAPACITY", "compiled_for"]

#: Number of compiled E-steps that a family keeps, the last ones used.
CAPACITY = 8


class Settings[Compiled](Protocol):
    """Settings that can be compiled for a family: an E-step, or another rule for observations."""

    def compile(self, family: Any) -> Compiled:
        """Compile for `family`."""
        ...


def compiled_for[Compiled](family: Family, settings: Settings[Compiled]) -> Compiled:
    """Return settings compiled for a family, the same object on every call.

    θ and the observation are inputs of the compiled object, which keeps no state between calls, so
    that several runs can share it. Settings that can change are compiled anew each time; only
    frozen dataclasses of unchanging values are cached.

    Parameters
    ----------
    family : Family
        If its model, statistics, declared parameters or another attribute of `Family` has changed,
        the settings are compiled anew.
    settings : EStep or other settings
        An object with a method ``compile(family)``.

    Examples
    --------
    >>> from pymc_mcoem import TemplateMixture
    >>> from pymc_mcoem.esteps import FixedLatents
    >>> mixture = TemplateMixture.for_images((4, 4), n_classes=2, n_landmarks=2)
    >>> first = compiled_for(mixture, FixedLatents())
    >>> compiled_for(mixture, FixedLatents()) is first
    True
    >>> compiled_for(mixture.with_classes(2), FixedLatents()) is first
    False
    """
    with one_call_at_a_time():
        key = _key(family, settings)
        cache: OrderedDict[Hashable, Any] = family._compiled
        if key is None or key not in cache:
            with strict_arithmetic(), family.as_declared():
                compiled = settings.compile(family)
            if key is None:
                return compiled
            cache[key] = compiled, _attributes(family)
        cache.move_to_end(key)
        while len(cache) > CAPACITY:
            cache.popitem(last=False)
        found: Compiled = cache[key][0]
        return found


def _key(family: Family, settings: Any) -> Hashable | None:
    """Return a key of what the compiled object depends on; None if that can change unnoticed."""
    if not _is_unchanging(settings):
        return None
    config = pytensor.config
    declared = family.declared_parameters()
    return (
        settings,
        config.mode,
        config.linker,
        config.floatX,
        family.model.check_bounds,
        tuple(value.tobytes() for value in declared.values()),
        tuple(
            each.tobytes() if isinstance(each, np.ndarray) else id(each)
            for each in _attributes(family)
        ),
    )


def _is_unchanging(value: Any) -> bool:
    """Return whether a value cannot change and is determined by equality."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, Enum, np.generic)):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_unchanging, value))
    # look at the class itself, because a derived class may differ
    declared = vars(type(value)).get("__dataclass_params__")
    if declared is None or not (declared.frozen and declared.eq):
        return False
    return all(
        part.compare and part.hash is not False and _is_unchanging(getattr(value, part.name))
        for part in fields(value)
    )


def _attributes(family: Family) -> tuple[Any, ...]:
    """Return what a family is made of. The cache holds them so that their ids stay valid."""
    model = family.model
    return (
        *model.named_vars.values(),
        *model.potentials,
        *family.latents,
        *family.statistics.values(),
        family.class_index,
        *(getattr(family.geometry, hint.name) for hint in fields(family.geometry)),
    )

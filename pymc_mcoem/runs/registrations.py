"""PyMC's registrations for a model's custom distributions, for sending the model to workers.

``pm.CustomDist`` makes a class for each distribution and registers its log-density, its size and
its starting point in tables of the process. A pickled model contains the class but not the
registrations, so another process could not compile the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pymc_mcoem.compiling.pymc_tables import TABLES

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["Registration", "find_registrations", "register_again"]

#: A table's name, a class, and the function registered for it.
type Registration = tuple[str, type, Callable[..., Any]]


def find_registrations(model: pm.Model) -> list[Registration]:
    """Return the registrations for classes that only the model's variables have.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x")
    >>> find_registrations(model)
    []
    >>> with model:
    ...     y = pm.CustomDist("y", logp=lambda value: -(value**2))
    >>> [(table, kind.__name__) for table, kind, _ in find_registrations(model)][:1]
    [('_logprob', 'CustomDist_y')]
    """
    kinds = dict.fromkeys(type(variable.owner.op) for variable in model.basic_RVs)
    return [
        (name, kind, table.registry[kind])
        for kind in kinds
        if not _is_imported(kind)
        for name, table in TABLES.items()
        if kind in table.registry
    ]


def register_again(registrations: list[Registration]) -> None:
    """Register another process's registrations in this one; existing ones stay."""
    for name, kind, function in registrations:
        if kind not in TABLES[name].registry:
            TABLES[name].register(kind)(function)


def _is_imported(kind: type) -> bool:
    """Return whether importing the class's module gives the class."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind

"""Description of a family in a saved run, and the check that a loaded run gets the same family."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pymc_mcoem.em.esteps.compiled_cache import compiled_for
from pymc_mcoem.em.fingerprint import Fingerprint

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["describe_family", "differences", "require_same_family"]

#: Phrases for differences in error messages, where the difference is not one of shapes.
_DIFFERENCES = {
    "made with": "{} of the family is",
    "variables": "variable {} is",
    "numbers": "{} at one and the same point is",
}


def describe_family(family: Family) -> dict[str, Any]:
    """Return the name of a family's class and the shapes that a run depends on."""
    model = family.model

    def shapes(names: Iterable[str]) -> dict[str, list[int]]:
        return {name: list(model[name].get_value(borrow=True).shape) for name in names}

    return {
        "class": type(family).__qualname__,
        "number of classes": family.n_classes,
        "parameters": shapes(family.parameter_names),
        "observation": shapes(family.observation),
        "statistics": {
            name: list(family.statistics[name].type.shape) for name in sorted(family.statistics)
        },
        "variables": {
            variable.name: type(variable.owner.op).__name__ for variable in model.basic_RVs
        },
        "made with": family.describe(),
        "numbers": compiled_for(family, Fingerprint()),
    }


def differences(
    saved: Mapping[str, Any],
    present: Mapping[str, Any],
    where: tuple[str, str] = ("in the file", "here"),
) -> list[str]:
    """Return a sentence for each difference between two descriptions of families."""
    found = []
    there, here = where
    for name in sorted({*saved, *present}):
        before, now = saved.get(name), present.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            says = _DIFFERENCES.get(name, f"{name} {{}} has shape")
            found += [
                f"{says.format(key)} {before.get(key)} {there}, {now.get(key)} {here}"
                for key in sorted({*before, *now})
                if not _same(before.get(key), now.get(key))
                # a number that could not be evaluated, as after an interrupt, is not compared
                and not (name == "numbers" and None in (before.get(key), now.get(key)))
            ]
        elif before != now:
            found.append(f"{name} is {before} {there}, {now} {here}")
    return found


def _same(before: Any, now: Any) -> bool:
    """Return whether two values are the same, up to differences between library versions."""
    if isinstance(before, float) and isinstance(now, float):
        return math.isclose(before, now, rel_tol=1e-6, abs_tol=1e-9)
    return bool(before == now)


def require_same_family(path: str | os.PathLike[str], found: Sequence[str]) -> None:
    """Refuse a family that differs from the one that the run was saved with."""
    if found:
        raise ValueError(
            f"family: the run in {os.fspath(path)!r} is of another family: {'; '.join(found)}. "
            "Give a family made in the same way; to continue with another, make a new driver with "
            "the run's parameters as parameters=."
        )

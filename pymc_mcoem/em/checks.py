"""Checks that a family is complete and that an E-step returned valid statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytensor.tensor as pt

from pymc_mcoem.em.family import CLASS_WEIGHT, Family

__all__ = ["check_family", "check_layout", "check_shapes", "check_start", "check_statistics"]


def check_family(family: Family) -> None:
    """Check that a family is complete. Drivers call this once.

    Examples
    --------
    >>> check_family(Family())
    Traceback (most recent call last):
        ...
    TypeError: family: Family has no model; set it, as the documentation of `Family` says.
    """
    kind = type(family).__name__
    if isinstance(family, type) or not hasattr(family, "maximize"):
        got = f"the class {family.__name__}" if isinstance(family, type) else f"a {kind}"
        raise TypeError(
            f"family: got {got}; give a mixture, as TemplateMixture.for_images((16, 16), "
            "n_classes=4), or a Family of your own."
        )
    for name in ("model", "class_index", "observation", "statistics"):
        if not hasattr(family, name):
            raise TypeError(
                f"family: {kind} has no {name}; set it, as the documentation of `Family` says."
            )
    if type(family).maximize is Family.maximize:
        raise TypeError(
            f"family: {kind} has no maximize; define maximize(statistics, *, effective_size)."
        )
    if isinstance(family.observation, str):
        raise TypeError(
            f"observation: {kind} has the text {family.observation!r}; give a tuple of names, "
            f"({family.observation!r},)."
        )
    data = {variable.name for variable in family.model.data_vars}
    unknown = [name for name in family.observation if name not in data]
    if unknown or not family.observation:
        raise ValueError(
            f"observation: {kind} names {tuple(family.observation)}; name pm.Data of the model, "
            f"which has {sorted(data)}."
        )
    if not any(variable is family.class_index for variable in family.model.free_RVs):
        raise ValueError(
            f"class_index: {kind} gives {family.class_index}, which is no free variable of the "
            "model; give its Categorical."
        )
    if CLASS_WEIGHT in family.statistics:
        raise ValueError(
            f"statistics: {kind} gives {CLASS_WEIGHT!r}, which is reserved and always included; "
            "leave it out."
        )
    for name in family.parameter_names:
        dtype = family.model[name].get_value(borrow=True).dtype
        if dtype.kind != "f":
            raise TypeError(
                f"parameters: {name} of {kind} has dtype {dtype}; declare its pm.Data with floats."
            )


def check_statistics(family: Family, statistics: Mapping[str, np.ndarray]) -> None:
    """Check the statistics that an E-step returned for one observation.

    Raises
    ------
    ValueError
        If a name is missing or unknown, or a shape is wrong: the first axis is the class, the
        others, where known, are those of the family's statistic.
    TypeError
        If values are not real numbers.
    FloatingPointError
        If a value is not finite.
    ValueError
        If no observation can have such statistics; see `Family.check_statistics`.
    """
    check_layout(family, statistics)
    family.check_statistics(statistics)


def check_start(family: Family, start: str) -> None:
    """Check that a family knows a way to start.

    Examples
    --------
    >>> check_start(Family(), "exemplars")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: start: got 'exemplars', which Family does not know; choose one of ('kmeans', ...
    """
    if start not in family.start_names:
        raise ValueError(
            f"start: got {start!r}, which {type(family).__name__} does not know; choose one of "
            f"{family.start_names}."
        )


def check_layout(family: Family, statistics: Mapping[str, np.ndarray]) -> None:
    """Check that statistics are finite and have the names and shapes of the family."""
    expected = {CLASS_WEIGHT, *family.statistics}
    if set(statistics) != expected:
        raise ValueError(
            f"statistics: the E-step returned {sorted(statistics)}; the family has "
            f"{sorted(expected)}."
        )
    for name, value in statistics.items():
        shape, kind = np.shape(value), np.asarray(value).dtype
        own = () if name == CLASS_WEIGHT else _declared_shape(family, name, shape[1:])
        _check_shape(name, shape, (family.n_classes, *own))
        if kind.kind not in "fiub":
            raise TypeError(
                f"statistics: {name} from the E-step has dtype {kind}; give real numbers."
            )
        if not np.isfinite(value).all():
            raise FloatingPointError(
                f"statistics: {name} from the E-step holds values that are not finite; the "
                "observation is not learned."
            )


def check_shapes(
    statistics: Mapping[str, np.ndarray], running: Mapping[str, np.ndarray] | None
) -> None:
    """Check that statistics have the same shapes as those of earlier observations, if any."""
    for name, value in (running or {}).items() if statistics else ():
        _check_shape(name, np.shape(statistics[name]), np.shape(value))


def _declared_shape(family: Family, name: str, found: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a family's statistic, with lengths it leaves open taken from `found`."""
    declared: tuple[int | None, ...] = pt.as_tensor_variable(family.statistics[name]).type.shape
    if len(declared) != len(found):
        return tuple(-1 if length is None else length for length in declared)
    return tuple(
        length if known is None else known for known, length in zip(declared, found, strict=True)
    )


def _check_shape(name: str, shape: tuple[int, ...], known: tuple[int, ...]) -> None:
    if shape != known:
        raise ValueError(
            f"statistics: {name} from the E-step has shape {shape}, expected {known}; the "
            "first axis is the class."
        )

"""Whether a family has all that a driver needs, said before anything is learnt."""

from __future__ import annotations

from pymc_mcoem.em.family import CLASS_WEIGHT, Family

__all__ = ["check_family"]


def check_family(family: Family) -> None:
    """Check that a family is complete; drivers call it once.

    Parameters
    ----------
    family : Family
        The family.

    Raises
    ------
    TypeError
        If something that a family must define is missing or of the wrong kind.
    ValueError
        If a name is unknown or reserved.

    Examples
    --------
    >>> check_family(Family())
    Traceback (most recent call last):
        ...
    TypeError: family: Family has no model; set it, as the documentation of `Family` says.
    """
    kind = type(family).__name__
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
            f"statistics: {kind} gives {CLASS_WEIGHT!r}, which is reserved and always there; "
            "leave it out."
        )
    for name in family.parameter_names:
        dtype = family.model[name].get_value(borrow=True).dtype
        if dtype.kind != "f":
            raise TypeError(
                f"parameters: {name} of {kind} has dtype {dtype}; declare its pm.Data with floats."
            )

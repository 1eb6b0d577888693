"""Numbers that distinguish families with the same names and shapes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace

from pymc_mcoem.interrupts import require_own_fault

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family

__all__ = ["Fingerprint"]


@dataclass(frozen=True)
class Fingerprint:
    """The log-density of a family and its statistics at one fixed point.

    Parameters are filled with 1 over the length of their last axis, so that weights sum to one;
    square matrices are made positive definite. Observations and latents are a cosine. The values
    in the model are not used.

    Notes
    -----
    The graph is evaluated once, node by node, which takes about a second.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> family = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> sorted(Fingerprint().compile(family))[:2]
    ['deformation_outer', 'log-density']
    """

    def compile(self, family: Family) -> dict[str, float | None]:
        """Return numbers by name; None where they cannot be computed at this point."""
        names = ["log-density", *sorted(family.statistics)]
        try:
            found = _evaluated(family, names)
        except Exception as error:
            require_own_fault(error)  # a transient failure says nothing about the family
            # For example if this point violates a constraint on a parameter. The run is saved
            # all the same.
            return dict.fromkeys(names)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = [float(np.sum(value * (1.0 + _cosine(np.shape(value))))) for value in found]
        return {
            name: value if math.isfinite(value) else None
            for name, value in zip(names, sums, strict=True)
        }


def _evaluated(family: Family, names: list[str]) -> list[np.ndarray]:
    """Return the log-density and the statistics at the point, each of its own shape."""
    model = family.model
    data: dict[Any, Any] = {}
    for variable in model.data_vars:
        held = variable.get_value(borrow=True)
        if variable.name in family.parameter_names:
            filled = _plain(held.shape)
        elif variable.name in family.observation:
            filled = _cosine(held.shape)
        else:
            continue
        data[variable] = pt.constant(filled.astype(held.dtype), dtype=held.dtype)
    point = model.initial_point(random_seed=0)
    values = []
    for variable in model.value_vars:
        held = np.asarray(point[variable.name])
        # the class index is set to the last class
        last = np.full(held.shape, family.n_classes - 1)
        values.append((_cosine(held.shape) if held.dtype.kind == "f" else last).astype(held.dtype))
    statistics = [pt.as_tensor_variable(family.statistics[name]) for name in names[1:]]
    outputs = model.replace_rvs_by_values([model.logp(), *statistics])
    evaluate = pm.pytensorf.compile(
        model.value_vars,
        clone_replace(outputs, data),
        mode=Mode(linker="py", optimizer=None),
        on_unused_input="ignore",
    )
    found: list[np.ndarray] = evaluate(*values)
    return found


def _plain(shape: tuple[int, ...]) -> np.ndarray:
    """Return a parameter of this shape: positive, rows sum to one, matrices positive definite."""
    even = np.full(shape, 1.0 / (shape[-1] if shape else 1))
    is_matrix = len(shape) > 1 and shape[-1] == shape[-2]
    return 0.5 * (even + np.eye(shape[-1])) if is_matrix else even


def _cosine(shape: tuple[int, ...]) -> np.ndarray:
    """Return distinct values between 0.1 and 0.9."""
    size = int(np.prod(shape, dtype=int))
    return (0.5 + 0.4 * np.cos(np.arange(size, dtype=np.float64))).reshape(shape)

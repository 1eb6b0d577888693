"""Class probabilities averaged over copies of an image that are shifted by a pixel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pymc_mcoem.em.esteps.base import CompiledClassWeights

__all__ = ["ShiftedCopies", "shifted_copies"]

type Arrays = Mapping[str, np.ndarray]

#: Axis and direction of each shift.
SHIFTS = ((0, 1), (0, -1), (1, 1), (1, -1))


@dataclass(frozen=True)
class ShiftedCopies:
    """Average class probabilities over an image and its copies that are shifted by a pixel.

    Parameters
    ----------
    rule : CompiledClassWeights
        Computes the class probabilities of each copy.

    Examples
    --------
    >>> from pymc_mcoem.classification.scores import compile_class_weights
    >>> from pymc_mcoem.em.esteps.fixed_latents import FixedLatents
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> rule = ShiftedCopies(compile_class_weights(mixture, FixedLatents()))
    >>> data, theta = mixture.encode(np.ones((3, 3))), mixture.model_parameters()
    >>> rng = np.random.default_rng(1)
    >>> rule.class_probability(data, theta, rng, draws=1, tune=0).round(3)
    array([0.5, 0.5])
    """

    rule: CompiledClassWeights

    @classmethod
    def compile(cls, make_rule: Callable[[], CompiledClassWeights]) -> ShiftedCopies:
        """Return the average for the rule that `make_rule` compiles."""
        return cls(make_rule())

    def class_probability(
        self,
        data: Arrays,
        parameters: Arrays,
        rng: np.random.Generator,
        *,
        draws: int,
        tune: int,
    ) -> np.ndarray:
        """Return class probabilities, ``(n_classes,)``; see `CompiledClassWeights`."""
        found = [
            self.rule.class_probability(copy, parameters, rng, draws=draws, tune=tune)
            for copy in shifted_copies(data)
        ]
        return np.asarray(np.mean(found, axis=0))


def shifted_copies(data: Arrays) -> Iterator[Arrays]:
    """Yield an encoded image, and its copies one pixel down, up, right and left.

    Pixels that come in at an edge are missing. A copy without any observed pixel is left out.

    Parameters
    ----------
    data : mapping of str to ndarray
        As `TemplateMixture.encode` returns it: ``observed_values`` and ``observed_mask``, both of
        shape (rows, columns) or (rows, columns, n_channels).

    Examples
    --------
    >>> image = {"observed_values": np.array([[0, 0], [0, 5]]), "observed_mask": np.ones((2, 2))}
    >>> [copy["observed_values"].tolist() for copy in shifted_copies(image)][::2]
    [[[0, 0], [0, 5]], [[0, 5], [0, 0]], [[0, 0], [5, 0]]]
    """
    yield data
    for axis, step in SHIFTS:
        copy = {name: _shifted(values, axis, step) for name, values in data.items()}
        if copy["observed_mask"].any():
            yield copy


def _shifted(values: np.ndarray, axis: int, step: int) -> np.ndarray:
    """Return `values` one place further along `axis`, with zeros where none comes in."""
    found = np.roll(values, step, axis)
    entering = np.moveaxis(found, axis, 0)
    entering[0 if step > 0 else -1] = 0
    return found

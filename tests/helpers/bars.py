"""Shapes of two strokes each, such as letters, as templates of an image mixture."""

from __future__ import annotations

import numpy as np

#: Strokes from a point to another, (row, column), of an L, a T and a 7 on [-1, 1]².
STROKES = (
    (((-0.6, -0.3), (0.6, -0.3)), ((0.6, -0.3), (0.6, 0.4))),
    (((-0.5, -0.5), (-0.5, 0.5)), ((-0.5, 0.0), (0.6, 0.0))),
    (((-0.6, -0.4), (-0.6, 0.4)), ((-0.6, 0.4), (0.6, -0.2))),
)


def bar_images(shape, n_classes=3, width=0.16):
    """Return images of the first shapes, ``(n_classes, *shape)``, in gray values of 0 to 1."""
    rows, columns = np.meshgrid(*(np.linspace(-1, 1, side) for side in shape), indexing="ij")
    points = np.stack([rows, columns], axis=-1)

    def stroke(begin, end):
        way = np.subtract(end, begin)
        along = np.clip((points - begin) @ way / (way @ way), 0, 1)
        return np.exp(-np.square(points - begin - along[..., None] * way).sum(-1) / 2 / width**2)

    return np.stack([np.maximum(*(stroke(*each) for each in STROKES[k])) for k in range(n_classes)])


def with_templates(mixture, images, *, noise_variance=0.01, deformation_variance=5e-4):
    """Return parameters of a mixture whose templates are these images, (n_classes, *grid)."""
    parameters = mixture.parameters.copy(deep=True)
    flat = np.reshape(images, (len(images), -1))
    found = np.linalg.lstsq(mixture.mean_design(), flat.T, rcond=1e-3)[0]
    parameters["templates"].values[:] = found.T
    parameters["noise_variance"].values[...] = noise_variance
    parameters["deformation_variance"].values[...] = deformation_variance
    return parameters

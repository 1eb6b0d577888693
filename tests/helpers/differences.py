"""Derivatives by differences."""

from __future__ import annotations

import numpy as np


def second_differences(function, at, step):
    """Central differences of fourth order along pairs of axes."""
    size = at.size
    result = np.empty((size, size))
    axes = step * np.eye(size)
    center = function(at)

    def second_derivative(direction):
        near = function(at + direction) + function(at - direction) - 2 * center
        far = function(at + 2 * direction) + function(at - 2 * direction) - 2 * center
        return (16 * near - far) / (12 * step**2)

    for i in range(size):
        result[i, i] = second_derivative(axes[i])
    for i in range(size):
        for j in range(i):
            both = second_derivative(axes[i] + axes[j])
            result[i, j] = result[j, i] = (both - result[i, i] - result[j, j]) / 2
    return result

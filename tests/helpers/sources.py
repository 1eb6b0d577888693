"""A family of curves in closed form, and data as other libraries hand them over."""

from __future__ import annotations

import numpy as np
import pymc as pm

from pymc_mcoem.em.family import Family

N_POINTS = 3


class Levels(Family):
    """Curves of three points from two normals around unknown curves, weights known."""

    observation = ("curve",)

    def __init__(self):
        with pm.Model(coords={"age": np.arange(N_POINTS)}) as self.model:
            levels = pm.Data("levels", np.outer([-1.0, 1.0], np.ones(N_POINTS)))
            curve = pm.Data("curve", np.zeros(N_POINTS), dims="age")
            self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
            pm.Normal("y", levels[self.class_index], 1.0, observed=curve)
        self.statistics = {"curve": curve}

    def maximize(self, statistics, *, effective_size):
        return {"levels": statistics["curve"] / statistics["class_weight"][:, None]}

    def exact(self, data, parameters):
        distance = ((data["curve"] - parameters["levels"]) ** 2).sum(axis=1)
        odds = np.exp(-0.5 * (distance - distance.min()))
        weight = odds / odds.sum()
        return {"class_weight": weight, "curve": weight[:, None] * data["curve"]}


class Tensor:
    """What the package sees of a tensor of PyTorch, whose __array__ knows no ``copy``."""

    def __init__(self, array):
        self._array = np.asarray(array)

    @property
    def shape(self):
        return tuple(self._array.shape)

    @property
    def ndim(self):
        return self._array.ndim

    def __len__(self):
        return len(self._array)

    def __getitem__(self, index):
        return Tensor(self._array[index])

    def __array__(self, dtype=None):
        return self._array if dtype is None else self._array.astype(dtype)


class Dataset:
    """A map-style data set of PyTorch: a length, an index, and no __iter__; counts its reads."""

    def __init__(self, records):
        self.records = records
        self.n_read = 0

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        if not 0 <= index < len(self):
            raise IndexError(index)
        self.n_read += 1
        return Tensor(self.records[index])


class Loader:
    """An iterable over batches, as a DataLoader of PyTorch; its length is that in batches."""

    def __init__(self, dataset, batch_size):
        self.dataset = dataset
        self.batch_size = batch_size

    def __len__(self):
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self):
        for first in range(0, len(self.dataset), self.batch_size):
            numbers = range(first, min(first + self.batch_size, len(self.dataset)))
            yield Tensor(np.stack([np.asarray(self.dataset[index]) for index in numbers]))


class Stored:
    """An array that lies elsewhere and counts what is read."""

    def __init__(self, array):
        self._array = array
        self.shape, self.ndim = array.shape, array.ndim
        self.n_read = 0

    def __len__(self):
        return self.shape[0]

    def __getitem__(self, index):
        self.n_read += 1
        return self._array[index]

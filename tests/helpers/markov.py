"""Markov chains of categories whose moments are known exactly."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pymc_mcoem.density.class_index import index_key


class MarkovChain:
    """A transition matrix, its stationary distribution and what averages over it vary by."""

    def __init__(self, matrix):
        self.matrix = np.asarray(matrix, dtype=float)
        self.n_classes = len(self.matrix)
        values, vectors = np.linalg.eig(self.matrix.T)
        leading = np.real(vectors[:, np.argmax(np.real(values))])
        self.share = leading / leading.sum()

    @classmethod
    def dar(cls, phi, share):
        """Return the chain that stays with probability phi and else draws anew."""
        share = np.asarray(share, dtype=float)
        return cls(phi * np.eye(len(share)) + (1 - phi) * share)

    def autocorrelation(self, n_lags):
        """Return the autocorrelation of each class's indicator, (n_lags, n_classes)."""
        power, found = np.eye(self.n_classes), []
        for _ in range(n_lags):
            found.append((np.diag(power) - self.share) / (1 - self.share))
            power = power @ self.matrix
        return np.array(found)

    def effective_share(self):
        """Return effective draws per draw of each class's indicator, by summing lags."""
        return 1 / (2 * self.autocorrelation(5000).sum(axis=0) - 1)

    def mcse(self, n):
        return np.sqrt(self.share * (1 - self.share) / (n * self.effective_share()))

    def draw(self, rng, n_chains, n_draws):
        """Draw stationary chains, (n_chains, n_draws)."""
        cumulative = self.matrix.cumsum(axis=1)
        codes = np.empty((n_chains, n_draws), dtype=np.int64)
        codes[:, 0] = rng.choice(self.n_classes, p=self.share, size=n_chains)
        uniform = rng.random((n_chains, n_draws))
        for t in range(1, n_draws):
            passed = uniform[:, t, None] > cumulative[codes[:, t - 1]]
            codes[:, t] = np.minimum(passed.sum(axis=1), self.n_classes - 1)
        return codes


TWO_STATES = MarkovChain([[0.9, 0.1], [0.2, 0.8]])
SAME_AUTOCORRELATION = MarkovChain.dar(0.5, [0.5, 0.3, 0.2])
# The worked example of R's MCMCprecision: nothing is reversible, some jumps never happen.
CYCLIC = MarkovChain([[0.1, 0.5, 0.4], [0.0, 0.5, 0.5], [0.9, 0.1, 0.0]])


def as_array(codes, name="class_index"):
    """Label (n_chains, n_draws), with a plate's axis before the last where there is one."""
    dims = ("chain", "draw", "row")[: np.ndim(codes)]
    return xr.DataArray(codes, dims=dims, name=name)


def as_tree(codes, log_weight=None, **latents):
    """Return what pm.sample returns of such chains."""
    index = as_array(codes)
    coords = {dim: np.arange(index.sizes[dim]) for dim in ("chain", "draw")}
    posterior = {"class_index": index}
    for name, values in latents.items():
        dims = ("chain", "draw", *(f"{name}_dim_{i}" for i in range(np.ndim(values) - 2)))
        posterior[name] = xr.DataArray(values, dims=dims)
    groups = {"posterior": xr.Dataset(posterior, coords=coords)}
    if log_weight is not None:
        stats = {
            "class_of": (("chain", "draw"), np.full(index.shape[:2], index_key(index.name))),
            "class_log_weight": (("chain", "draw", "class_log_weight_dim_0"), log_weight),
        }
        groups["sample_stats"] = xr.Dataset(stats, coords=coords)
    return xr.DataTree.from_dict(groups)

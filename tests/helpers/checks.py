"""Checks of a kernel that say how far it is from right, in standard errors.

Each returns numbers and asserts nothing, so that the true kernel can be shown to pass and the
broken ones to fail by the very same function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr
from scipy.special import logsumexp

from pymc_mcoem.carlin_chib.pseudo_priors.base import PseudoPriors
from pymc_mcoem.em.burst import Burst
from tests.helpers.models import N_CLASSES, OracleFamily
from tests.helpers.quadrature import Quadrature
from tests.helpers.reference_kernel import GivenNoise

#: A right kernel is further off once in 1.7 million comparisons; fewer than a thousand are made.
LIMIT = 5.0

#: A kernel of many chains: (generator, classes (n,), positions (n, d)) to the same, moved.
Kernel = Callable[[np.random.Generator, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Agreement:
    """How far averages are from what they should be.

    Attributes
    ----------
    largest_z : float
        Largest deviation in standard errors.
    effective_sample_size : float
        Smallest over the functions compared.
    """

    largest_z: float
    effective_sample_size: float


def features(class_index: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Return functions of (I, X) that tell distributions apart: class by class, all moments to two.

    Parameters
    ----------
    class_index : ndarray of shape (n,)
    position : ndarray of shape (n, d)

    Returns
    -------
    ndarray of shape (n, n_features)
        δ_{I,j} times 1, x_a, x_a x_b and, bounded and of another shape, sin 3 x_a.
    """
    d = position.shape[1]
    pairs = [position[:, a] * position[:, b] for a in range(d) for b in range(a, d)]
    functions = np.stack([np.ones(len(position)), *position.T, *pairs, *np.sin(3 * position.T)])
    member = class_index[None] == np.arange(N_CLASSES)[:, None]
    return (member[:, None] * functions[None]).reshape(-1, len(position)).T


def agreement(values: np.ndarray, expected: np.ndarray) -> Agreement:
    """Compare the means of independent rows ``(n, m)`` with expectations ``(m,)``."""
    # A function that never varies is right, or infinitely wrong.
    error = np.maximum(values.std(axis=0, ddof=1) / np.sqrt(len(values)), 1e-12)
    return Agreement(float(np.abs((values.mean(axis=0) - expected) / error).max()), len(values))


def largest_share_error(
    exact: Mapping[str, np.ndarray], posterior: xr.Dataset, n_batches: int = 40
) -> float:
    """Return the largest error of a chain's share of a class, in standard errors.

    `exact` has probabilities of shape (n_classes,) by the name of the index.
    """
    worst = 0.0
    for name, probabilities in exact.items():
        # the errors of rare classes are not normal
        judged = (probabilities > 0.02) & (probabilities < 0.98)
        if not judged.any():
            continue
        for chain in posterior[name].values:
            member = (chain[:, None] == np.flatnonzero(judged)).astype(float)
            batches = member.reshape(n_batches, -1, judged.sum()).mean(axis=1)
            worst = max(worst, agreement(batches, probabilities[judged]).largest_z)
    return worst


def chain_agreement(
    class_index: np.ndarray, position: np.ndarray, quadrature: Quadrature, n_batches: int = 50
) -> Agreement:
    """Compare one chain's averages of `features` with the exact ones, by batch means.

    Parameters
    ----------
    class_index : ndarray of shape (n_draws,)
    position : ndarray of shape (n_draws, d)
    quadrature : Quadrature
    n_batches : int
        Batches must be long beside the chain's memory.
    """
    values = features(class_index, position)
    length = len(values) // n_batches
    batches = values[: length * n_batches].reshape(n_batches, length, -1).mean(axis=1)
    found = agreement(batches, quadrature.expectation(features))
    ratio = values.var(axis=0) / np.maximum(batches.var(axis=0, ddof=1), 1e-300)
    return Agreement(found.largest_z, float(ratio.min() * n_batches))


def invariance(
    kernel: Kernel,
    family: OracleFamily,
    quadrature: Quadrature,
    rng: np.random.Generator,
    n: int,
) -> Agreement:
    """Start `n` chains at exact posterior draws, move them, and compare with the posterior."""
    class_index, position = kernel(rng, *family.draw_posterior(rng, n))
    return agreement(features(class_index, position), quadrature.expectation(features))


def largest_departure(
    burst: Burst,
    data: dict[str, np.ndarray],
    pseudo_priors: PseudoPriors,
    start: tuple[int, np.ndarray],
    noise: np.ndarray,
    gains: np.ndarray,
    tune: int,
) -> float:
    """Return by how much kept sweeps differ from those of the kernel that tuning ended with.

    Every kept sweep is made once more on its own, from the state that it started at and with
    the same noise, by the kernel with the step sizes at the end of tuning.

    Parameters
    ----------
    noise : ndarray of shape (n_sweeps, noise_size)
    gains : ndarray of shape (n_sweeps,)
    """

    def run(part: slice, start: tuple[int, np.ndarray], log_step: np.ndarray, gain: np.ndarray):
        return burst(GivenNoise(noise[part]), start, log_step, pseudo_priors, gain, data)

    whole = run(slice(None), start, burst.initial_log_step, gains)
    begun = slice(0, tune)
    log_step = run(begun, start, burst.initial_log_step, gains[begun]).log_step
    worst = 0.0
    for t in range(tune, len(gains)):
        state = (whole.class_index[t - 1], whole.position[t - 1])
        alone = run(slice(t, t + 1), state, log_step, np.zeros(1))
        worst = max(worst, float(np.abs(alone.position[0] - whole.position[t]).max()))
    return worst


def class_draw_asymmetry(
    log_weight: Callable[[int, np.ndarray], np.ndarray],
    log_drawing: Callable[[int, np.ndarray], np.ndarray],
    log_density: Callable[[np.ndarray, np.ndarray], np.ndarray],
    auxiliaries: np.ndarray,
) -> float:
    """Return the largest breach of detailed balance of refresh and class draw together.

    Given U_1, …, U_K the flow from (i, U_i) to (j, U_j) is

        π(i, U_i) Π_{l≠i} κ_l(U_l) · w_j / Σ_l w_l,

    and has to be the same from (j, U_j) to (i, U_i): no sampling is needed to see it.

    Parameters
    ----------
    log_weight : callable
        Of the present class i and all U ``(n_classes, d)``: the logarithms ``(n_classes,)`` of
        the weights that the kernel draws the next class from.
    log_drawing : callable
        Of the same: log κ_l(U_l) ``(n_classes,)`` of the densities that the kernel draws from.
    log_density : callable
        The target's.
    auxiliaries : ndarray of shape (n, n_classes, d)
    """
    classes = np.arange(N_CLASSES)
    worst = 0.0
    for u in auxiliaries:
        flow = np.empty((N_CLASSES, N_CLASSES))
        for i in classes:
            others = classes != i
            weight = log_weight(int(i), u)
            flow[i] = (
                log_density(i, u[i])
                + log_drawing(int(i), u)[others].sum()
                + weight
                - logsumexp(weight)
            )
        worst = max(worst, float(np.abs(flow - flow.T).max()))
    return worst

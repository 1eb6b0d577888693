"""Long bursts for one observation, as chains that ArviZ can diagnose."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from scipy.special import log_softmax

from pymc_mcoem.carlin_chib.step_statistics import INDEX, LOG_WEIGHT
from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.density.model_scale import ModelScale
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.class_fits import family_density
from pymc_mcoem.em.esteps.worker_calls import CheckedEStep, joined, keep_draws
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.interrupts import as_interrupts
from pymc_mcoem.labeling import dataset_of
from pymc_mcoem.runs.codec import PACKAGE
from pymc_mcoem.runs.executor import Dispatcher
from pymc_mcoem.runs.order_groups import answers_in_groups
from pymc_mcoem.runs.settings import package_version, seed_entropy
from pymc_mcoem.runs.workers import Order, Workers
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.carlin_chib import PosteriorChain
    from pymc_mcoem.em.family import Family

__all__ = ["sample_burst"]

_log = logging.getLogger("pymc_mcoem")


def sample_burst(
    family: Family,
    observation: Any,
    parameters: Mapping[str, Any] | xr.Dataset | None = None,
    *,
    e_step: CarlinChibBurst | None = None,
    draws: int = 1_000,
    tune: int = 500,
    chains: int = 4,
    executor: Executor | int | Workers | None = None,
    random_seed: int | Sequence[int] | None = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Sample the class and the latents of one observation, and return the draws.

    The target and the kernel are those of ``pm.sample(step=CarlinChib())`` on the model of the
    observation. A chain is one compiled loop, which runs in one process. With JAX and no executor,
    one call makes all chains.

    Parameters
    ----------
    family : Family
    observation : array_like
        One observation, as `Family.encode` takes it.
    parameters : Dataset or mapping of str to array_like, optional
        θ. Default: the values in the family's model.
    e_step : CarlinChibBurst, optional
        The kernel. Default: that of `OnlineEM`.
    draws : int
        Number of draws of each chain.
    tune : int
        Number of sweeps before the draws, in which step sizes adapt.
    chains : int
    executor : concurrent.futures.Executor or int, optional
        Executor that runs the chains, as for `OnlineEM`; a worker runs a whole chain. The draws
        are bitwise identical for any executor.
    random_seed : int or sequence of int, optional
        Each chain has its own generator, made from the seed and the chain's number. None takes a
        seed from the operating system, which the result's attribute ``random_seed`` records.
    progressbar : bool
        Whether a progress bar counts the chains as they end.

    Returns
    -------
    DataTree
        ``posterior``: the class index and every latent on its own scale, ``(chain, draw, ...)``;
        ``sample_stats``: ``class_log_weight`` ``(chain, draw, n_classes)``, the logarithms of the
        probabilities that the index was drawn from, ``class_acceptance``, and ``class_of``, by
        which summaries find the class index; ``constant_data``: θ and the observation.

    Raises
    ------
    TypeError
        If `e_step` is not a `CarlinChibBurst`, `executor` neither an executor nor a number, θ
        neither a mapping nor a Dataset, or the observation not numeric.
    ValueError
        If a number or the seed is out of its range, if the family has no latents, or if it
        refuses the observation or θ.
    FloatingPointError
        If the density is not finite for any class.
    RuntimeError
        If workers are lost again and again, or cannot compile the kernel.

    Notes
    -----
    Labels ``alg:MCMC`` and ``estep_SAOEM``. Pseudo-priors are fitted once for each chain and,
    unlike in `CarlinChib`, not checked against its draws: look at how often the class switches.
    Memory: a few times the draws, ``chains * (tune + draws) * (n_latents + n_classes)`` numbers.
    An interrupt ends the workers; the finished chains are returned, as by `pm.sample`, and the
    log says how many.

    Examples
    --------
    >>> from pymc_mcoem import TemplateMixture, class_index_summary
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> image = np.ones((3, 3))
    >>> found = sample_burst(mixture, image, chains=2, random_seed=1, progressbar=False)
    >>> dict(found["posterior"].sizes)
    {'chain': 2, 'draw': 1000, 'deformation_coordinate': 14}
    >>> class_index_summary(found).table["share"].sum().item()
    1.0
    """
    chosen = CarlinChibBurst() if e_step is None else e_step
    if not isinstance(chosen, CarlinChibBurst):
        raise TypeError(f"e_step: got a {type(chosen).__name__}; give a CarlinChibBurst.")
    for name, value, least in (("draws", draws, 1), ("tune", tune, 0), ("chains", chains, 1)):
        require_whole(name, value, least)
    theta = family.check_parameters(family.model_parameters() if parameters is None else parameters)
    data = family.encode(observation)
    entropy = seed_entropy(random_seed)
    seeds = np.random.SeedSequence(entropy).spawn(chains)
    # Made first, so that an error comes before hours of sampling.
    to_model = ModelScale(family_density(family))
    # no statistics are needed here, so the auxiliaries are not needed either
    dispatcher = Dispatcher(
        partial(CheckedEStep.of, family, replace(chosen, rao_blackwell=False)), executor
    )
    with telling(progressbar):
        dispatcher.prepare()
    orders = (
        Order(keep_draws, (data, theta, np.random.default_rng(seed), draws, tune)) for seed in seeds
    )
    # each call to a worker makes one whole chain
    group_size = 1 if dispatcher.is_remote else min(chosen.group_size, chains)
    found: list[PosteriorChain] = []
    try:
        with (
            dispatcher.closing(),
            CountProgress(progressbar, chains, "Chains") as progress,
            as_interrupts(),
            one_blas_thread(),
        ):
            for each in answers_in_groups(dispatcher, orders, group_size, joined):
                found.append(each)
                progress.advance()
    except KeyboardInterrupt:
        if not found:
            raise
        _log.warning("sample_burst: interrupted; %d of %d chains are done.", len(found), chains)
    _tell_troubles(found)
    attributes = {"tuning_steps": tune, "random_seed": json.dumps(entropy)}
    return _labeled(family, to_model, {**theta, **data}, found, attributes)


def _tell_troubles(found: Sequence[PosteriorChain]) -> None:
    """Log which chains may be poor, and why."""
    n_classes = found[0].log_weight.shape[1]
    for trouble, count in sum((Counter(each.troubles) for each in found), Counter()).items():
        _log.warning(
            "sample_burst: %s in %d of %d pseudo-priors; chains stay exact, but these classes may "
            "be visited too seldom.",
            trouble,
            count,
            len(found) * n_classes,
        )
    stuck = [number for number, each in enumerate(found) if not each.acceptance.any()]
    if stuck:
        _log.warning(
            "sample_burst: chains %s did not move within their class; give more tune, or another "
            "within_class.",
            ", ".join(map(str, stuck)),
        )


def _labeled(
    family: Family,
    to_model: ModelScale,
    values: Mapping[str, np.ndarray],
    found: Sequence[PosteriorChain],
    attributes: Mapping[str, Any],
) -> xr.DataTree:
    """Return chains as a DataTree with the model's names, dims and coords."""
    index = np.stack([each.class_index for each in found])
    position = np.concatenate([each.position for each in found])
    latents = to_model(index.ravel(), position, values)
    posterior = {str(family.class_index.name): index} | {
        name: value.reshape(*index.shape, *value.shape[1:]) for name, value in latents.items()
    }
    statistics = {
        INDEX: np.full(index.shape, index_key(str(family.class_index.name))),
        LOG_WEIGHT: log_softmax(np.stack([each.log_weight for each in found]), axis=-1),
        "class_acceptance": np.stack([each.acceptance for each in found]),
    }
    coords = dict(zip(("chain", "draw"), map(np.arange, index.shape), strict=True))
    sampled: dict[str, Any] = {
        "before": tuple(coords),
        "dims": {LOG_WEIGHT: (family.class_dim,)},
        "coords": coords,
    }
    groups = {
        "posterior": dataset_of(family.model, posterior, **sampled),
        "sample_stats": dataset_of(family.model, statistics, **sampled),
        "constant_data": dataset_of(family.model, values),
    }
    recorded = {
        "inference_library": PACKAGE,
        "inference_library_version": package_version(),
        **attributes,
    }
    return xr.DataTree.from_dict(
        {name: group.assign_attrs(recorded) for name, group in groups.items()}
    )

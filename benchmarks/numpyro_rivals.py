"""Run NumPyro's samplers of mixed models on PyMC's log-density of a model in JAX."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import arviz
import numpy as np
import pymc as pm
import xarray as xr

__all__ = ["NUMPYRO_SAMPLERS", "sample_by_numpyro"]

#: With the updates of the index in each trajectory: one by default, for which MixedHMC gives a coin
#: of probability 0.83 a share of 0.004 in 20,000 draws, and twenty in its documentation's example.
_N_UPDATES = {"MixedHMC": None, "MixedHMC, 20 updates": 20}

#: Empty where NumPyro is not installed.
NUMPYRO_SAMPLERS = ("DiscreteHMCGibbs", *_N_UPDATES) if find_spec("numpyro") else ()


def sample_by_numpyro(
    kernel: str, model: pm.Model, indices: Sequence[str], chains: int, seed: int
) -> xr.DataTree | None:
    """Return 1,000 draws of the indices after 1,000, with the seconds in ``sampling_time``.

    Compilation is in the seconds, as it is in those of ``pm.sample``. The model is declared to
    NumPyro as flat variables and one factor, PyMC's log-density. Return None if the model has
    discrete variables beside the indices.
    """
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import HMC, MCMC, NUTS, DiscreteHMCGibbs, MixedHMC, init_to_value
    from pymc.sampling.jax import get_jaxified_graph

    start = model.initial_point()
    counts: dict[str, int] = {}
    for name in indices:
        parameters = model[name].owner.inputs[-1]
        is_categorical = model[name].owner.op.name == "categorical"
        counts[name] = int(parameters.shape[-1].eval()) if is_categorical else 2
    continuous = [name for name in start if name not in counts]
    if any(not np.issubdtype(np.asarray(start[name]).dtype, np.floating) for name in continuous):
        return None
    began = time.perf_counter()
    log_density = get_jaxified_graph(model.value_vars, [model.logp()])

    def declared() -> None:
        values = []
        for value in model.value_vars:
            if value.name in counts:
                flat = dist.Categorical(logits=jnp.zeros(counts[value.name]))
            else:
                shape = np.shape(start[value.name])
                flat = dist.ImproperUniform(dist.constraints.real, (), shape)
            values.append(numpyro.sample(value.name, flat))
        numpyro.factor("log_density", log_density(*values)[0])

    init = init_to_value(values={name: jnp.asarray(start[name]) for name in continuous})
    inner: Any
    if kernel == "DiscreteHMCGibbs":
        inner = DiscreteHMCGibbs(NUTS(declared, init_strategy=init), modified=True)
    else:
        hmc = HMC(declared, init_strategy=init, trajectory_length=1.2)
        inner = MixedHMC(hmc, num_discrete_updates=_N_UPDATES[kernel])
    mcmc = MCMC(inner, num_warmup=1_000, num_samples=1_000, num_chains=chains, progress_bar=False)
    mcmc.run(jax.random.PRNGKey(seed))
    draws = mcmc.get_samples(group_by_chain=True)
    found = {name: np.asarray(draws[name]) for name in indices}
    data = arviz.from_dict({"posterior": found})
    data["posterior"].attrs["sampling_time"] = time.perf_counter() - began
    return data

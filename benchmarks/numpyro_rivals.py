"""Run NumPyro's samplers of mixed models on PyMC's log-density of a model in JAX.

As a script, this samples the coin of `published_models.py`, written as a NumPyro model, which needs
nothing of this package. The probability of the fair coin is 0.831.

    python benchmarks/numpyro_rivals.py
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import arviz
import numpy as np
import pymc as pm
import xarray as xr
from timing import begin, console

__all__ = ["NUMPYRO_SAMPLERS", "sample_by_numpyro"]

#: With the updates of the index in each trajectory: one by default, for which MixedHMC gives a coin
#: of probability 0.83 a share of 0.006 in 20,000 draws, and twenty in its documentation's example.
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


def main() -> None:
    """Sample a coin of fifty heads in a hundred tosses, with a flat or a fair prior."""
    given = begin(__doc__, draws=20_000)
    if not NUMPYRO_SAMPLERS:
        console.print("NumPyro is not installed: pip install numpyro")
        return
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import HMC, MCMC, NUTS, DiscreteHMCGibbs, MixedHMC

    heads = jnp.repeat(jnp.array([1, 0]), 50)

    def coin() -> None:
        k = numpyro.sample("k", dist.Categorical(probs=jnp.array([0.5, 0.5])))
        flat = numpyro.sample("flat", dist.Beta(1, 1))
        fair = numpyro.sample("fair", dist.Beta(30, 30))
        numpyro.sample("heads", dist.Bernoulli(jnp.where(k == 0, flat, fair)), obs=heads)

    kernels: dict[str, Any] = {"DiscreteHMCGibbs": DiscreteHMCGibbs(NUTS(coin), modified=True)}
    for name, n_updates in _N_UPDATES.items():
        kernels[name] = MixedHMC(HMC(coin, trajectory_length=1.2), num_discrete_updates=n_updates)
    for name, kernel in kernels.items():
        mcmc = MCMC(
            kernel,
            num_warmup=1_000,
            num_samples=given.draws,
            num_chains=4,
            chain_method="sequential",
            progress_bar=False,
        )
        mcmc.run(jax.random.PRNGKey(1))
        shares = np.asarray(mcmc.get_samples(group_by_chain=True)["k"]).mean(axis=1)
        console.print(f"{name}: {shares.mean():.4f}, chain by chain {shares.round(4)}")


if __name__ == "__main__":
    main()

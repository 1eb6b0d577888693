"""NumPyro on the package's own density, as an E-step that is compiled once.

The class is summed out of the density, whose graph JAX compiles, and NumPyro's NUTS samples the
latents. θ and the observation are arguments of the compiled function. XLA has one thread, as have
all contestants of ``against_sampling.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
import xarray as xr

import pymc_mcoem as mcoem
from pymc_mcoem.compiling.data_functions import compile_with_data
from pymc_mcoem.em.esteps.class_fits import family_density

Values = Mapping[str, np.ndarray]


class NumPyroLoop:
    """A sampler that is called for one observation after another.

    Parameters
    ----------
    family : Family
        A family with one latent variable without a transform.
    average : callable
        Computes the reported averages from draws and values.
    with_index : bool
        Whether the draws have a class, drawn given the latents.
    """

    def __init__(
        self, family: mcoem.Family, average: Callable[[Any, Values], Any], *, with_index: bool
    ) -> None:
        os.environ.setdefault(
            "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        )
        import jax

        jax.config.update("jax_enable_x64", True)
        self.density, self.average, self.with_index = family_density(family), average, with_index
        (self.latent,) = family.latents
        point = family.model.initial_point()
        self.begin = np.ravel(point[family.model.rvs_to_values[self.latent].name])
        k = pt.scalar("k", dtype="int64")
        x = pt.tensor("x", dtype="float64", shape=(self.density.n_latents,))
        compiled = compile_with_data(self.density, [k, x], [self.density.log_density(k, x)], "JAX")
        compiled = compiled.function
        log_density = compiled.vm.jit_fn
        # Data that are neither θ nor observation are shared, and come last.
        constants = [each.data for each in compiled.input_storage[2 + len(self.names) :]]
        classes = np.arange(self.density.n_classes)

        def of_classes(x: Any, *data: Any) -> Any:
            return jax.vmap(lambda k: log_density(k, x, *data, *constants)[0])(classes)

        self.of_classes = of_classes
        self.of_draws = jax.jit(jax.vmap(of_classes, in_axes=(0, *[None] * len(self.names))))
        self.made: dict[tuple[int, int], Any] = {}

    @property
    def names(self) -> list[str]:
        """Names of the data, in the order in which the density takes them."""
        return list(self.density.data_inputs)

    def sampler(self, length: tuple[int, int]) -> Any:
        """Return a compiled function of key and data that makes a whole chain.

        NumPyro's own driver compiles at every run, even if it is repeated.
        """
        import jax
        from numpyro.infer.hmc import hmc

        n_tuning, n_draws = length

        def potential(*data: Any) -> Any:
            return lambda x: -jax.scipy.special.logsumexp(self.of_classes(x, *data))

        begin, sweep = hmc(potential_fn_gen=potential, algo="NUTS")

        def chain(key: Any, *data: Any) -> Any:
            start = jax.numpy.asarray(self.begin)
            state = begin(start, num_warmup=n_tuning, model_args=data, rng_key=key)

            def one(state: Any, _: None) -> Any:
                state = sweep(state, data, {})
                return state, state.z

            return jax.lax.scan(one, state, length=n_tuning + n_draws)[1][n_tuning:]

        return jax.jit(chain)

    def draws(self, data: list[np.ndarray], length: tuple[int, int], seed: int) -> xr.Dataset:
        """Return draws of one observation."""
        import jax

        if length not in self.made:
            self.made[length] = self.sampler(length)
        x = np.asarray(self.made[length](jax.random.key(seed), *data))
        shape = (len(x), *self.latent.type.shape)
        dims = ["draw", *(f"axis_{axis}" for axis in range(len(shape) - 1))]
        found = xr.Dataset({self.latent.name: (dims, x.reshape(shape))})
        if self.with_index:
            logs = np.asarray(self.of_draws(x, *data))
            gumbel = np.random.default_rng(seed).gumbel(size=logs.shape)
            found["class_index"] = "draw", (logs + gumbel).argmax(axis=1)
        return found

    def __call__(
        self, values: Values, length: tuple[int, int], seed: int
    ) -> tuple[Any, Any, float]:
        """Return averages, the chain, and seconds without compilation."""
        data = [
            np.asarray(values[name], self.density.data_inputs[name].dtype) for name in self.names
        ]
        if length not in self.made:
            self.draws(data, length, seed)
        began = time.perf_counter()
        statistics, chain = self.average(self.draws(data, length, seed), values)
        return statistics, chain, time.perf_counter() - began

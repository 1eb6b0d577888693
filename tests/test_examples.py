"""Examples that no other test runs, at a fraction of their length."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pymc_mcoem as mcoem
from examples import own_model


def test_a_template_model_written_by_hand_is_a_model(rng):
    digits = mcoem.datasets.load_digits()
    eight = digits["images"].values[np.flatnonzero(digits["labels"].values == 8)[3]]
    model = own_model.make_model(eight + 0.15 * rng.standard_normal((8, 8)))
    assert np.isfinite(model.compile_logp()(model.initial_point()))
    with model:
        drawn = pm.sample_prior_predictive(20, random_seed=1)
    assert drawn.prior_predictive["pixels"].sizes["draw"] == 20


@pytest.mark.slow
def test_a_template_model_written_by_hand_is_sampled(rng):
    digits = mcoem.datasets.load_digits()
    eight = digits["images"].values[np.flatnonzero(digits["labels"].values == 8)[3]]
    with own_model.make_model(eight + 0.15 * rng.standard_normal((8, 8))):
        idata = pm.sample(
            50,
            tune=50,
            chains=2,
            cores=1,
            step=mcoem.CarlinChib(),
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    found = idata.posterior
    assert found["warp_parameters"].sizes["warp"] == own_model.WARP.n_parameters
    # an eight it is: 0.99 of 4,000 draws when this was written
    assert float((found["digit"] == 2).mean()) > 0.8

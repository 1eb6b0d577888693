"""Pareto k is ArviZ's, of tails of every weight."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from pymc_mcoem.carlin_chib.pareto import pareto_k


@pytest.mark.parametrize("n", [25, 100, 225, 226, 4_000])
@pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0, 5.0, 50.0])
def test_pareto_k_is_that_of_arviz(n, spread, rng):
    for draws in (rng.standard_normal(n), rng.standard_cauchy(n), -np.log(rng.random(n))):
        log_ratio = spread * draws
        with np.errstate(all="ignore"):
            expected = array_stats.psislw(-log_ratio)[1]
        np.testing.assert_allclose(pareto_k(log_ratio), expected, rtol=1e-7)

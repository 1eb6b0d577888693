"""The example's family: online EM by bursts and by closed form, against batch EM."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from examples import gaussian_mixture as example
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import BurstLength
from tests.helpers.toy_runs import assert_same


@pytest.fixture(scope="module")
def family():
    return example.MeasuredMixture()


def test_user_code_is_short():
    import inspect

    lines = inspect.getsource(example.MeasuredMixture).splitlines()
    assert len([line for line in lines if line.strip()]) < 40


def test_closed_form_is_the_posterior(family, rng):
    theta = {
        "weights": np.array([0.5, 0.3, 0.2]),
        "means": np.array([-1.0, 0.5, 2.0]),
        "variance": np.array(0.7),
    }
    x = np.linspace(-12, 12, 200_001)
    for y in rng.normal(scale=2, size=3):
        spread = 2 * theta["variance"]
        prior = theta["weights"][:, None] * np.exp(-((x - theta["means"][:, None]) ** 2) / spread)
        joint = prior * np.exp(-((y - x) ** 2) / (2 * example.NOISE**2))
        found = family.exact({"y": y}, theta)
        for name, power in (("class_weight", 0), ("x", 1), ("square", 2)):
            expected = (joint * x**power).sum(axis=1) / joint.sum()
            np.testing.assert_allclose(found[name], expected, rtol=1e-7)


def test_exact_online_em_lands_where_batch_em_does(family, rng):
    ys = example.simulate(rng, 400)
    start = family.initialize(list(ys[:50]), rng, "kmeans")
    best = example.free_vector(example.batch_em(family, ys, start))
    error = example.standard_errors(best, ys)
    once = example.one_pass(family, ys, Exact())
    assert (np.abs(once - best) < 2 * error).all()
    often, spread = example.passes(family, ys, Exact(), rng, n_passes=8)
    assert (np.abs(often - best) < 5 * spread).all()
    assert (np.abs(often - best) < np.abs(once - best).max()).all()


def test_bursts_go_on_after_loading_as_if_never_stopped(family, rng, tmp_path):
    ys = example.simulate(rng, 40)
    settings = {
        "e_step": CarlinChibBurst(),
        "burst_length": BurstLength(draws=20, tune=10),
        "n_start": 12,
        "random_seed": 4,
        "progressbar": False,
    }
    whole = OnlineEM(family, **settings).partial_fit(ys)
    for cut in (5, 25):
        OnlineEM(family, **settings).partial_fit(ys[:cut]).save(tmp_path / "run.nc")
        loaded = OnlineEM.load(tmp_path / "run.nc", example.MeasuredMixture(), progressbar=False)
        assert_same(loaded.partial_fit(ys[cut:]), whole)


@pytest.mark.parametrize(
    ("size", "n_passes"), [(500, 6), pytest.param(1500, 14, marks=pytest.mark.slow)]
)
def test_bursts_land_where_batch_em_does(rng, size, n_passes):
    found = example.compare(example.simulate(rng, size), rng, n_passes=n_passes)
    best, error = found["best"], found["error"]
    # two passes are forgotten; the others' means give the Monte Carlo error, so that the ratio is
    # Student's, of twelve of which one is further off once in a thousand times
    limit = stats.t.ppf(1 - 1e-3 / 24, df=n_passes - 3)
    for way in ("exact", "bursts"):
        assert (np.abs(found[f"{way}, one pass"] - best) < 2 * error).all()
        often, spread = found[f"{way}, passes"]
        assert (np.abs(often - best) < limit * spread).all()
        assert (spread < 0.6 * error).all()

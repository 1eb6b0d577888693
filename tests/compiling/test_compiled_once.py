"""What is compiled for a model: its density, once, and nothing for its numbers or its size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
from numba.core import event
from pymc.backends.ndarray import NDArray
from scipy import stats

from pymc_mcoem.carlin_chib.inactive import InactiveDraw
from pymc_mcoem.carlin_chib.step import CarlinChib
from pymc_mcoem.compiling.flat_functions import FlatFunction
from pymc_mcoem.density.blocks import BlockDensity
from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.constants import SharedConstants
from pymc_mcoem.density.log_densities import LogDensities
from pymc_mcoem.laplace.approximation import LaplaceApproximation
from tests.helpers.requested import requested


def line(spread=1.0, noise=0.5, n=20, seed=1, n_classes=3):
    """Lines through noisy points, whose class shifts them."""
    x = np.linspace(-1.0, 1.0, n)
    y = np.random.default_rng(seed).normal(size=n)
    with pm.Model() as model:
        k = pm.Categorical("k", np.full(n_classes, 1.0 / n_classes))
        slope = pm.Normal("slope", 0.0, spread)
        scale = pm.Gamma("scale", 2.0, beta=spread)
        pm.Normal("y", k + slope * x, noise * scale, observed=y)
    return model


def a_new_number():
    """Return a number that no earlier run had: what those compiled for theirs is on disk."""
    return 1.0 + np.random.default_rng().uniform()


def test_an_edit_of_numbers_compiles_nothing():
    CarlinChib(model=line())
    with event.install_recorder("numba:compile") as compiled:
        CarlinChib(model=line(spread=a_new_number(), noise=a_new_number(), seed=2))
        CarlinChib(model=line(n=np.random.default_rng().integers(21, 100_000)))
    assert compiled.buffer == []


def counts(data):
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.2, 0.3])
        x = pm.Normal("x")
        pm.Poisson("seen", pm.math.exp(0.3 * x + k), observed=data)
        pm.Bernoulli("is_odd", pm.math.sigmoid(x - k), observed=np.asarray(data) % 2)
    return model


def test_an_edit_of_counts_compiles_nothing():
    CarlinChib(model=counts([1, 3, 2, 5]))
    with event.install_recorder("numba:compile") as compiled:
        CarlinChib(model=counts(np.random.default_rng().integers(0, 1_000_000, size=4)))
    assert compiled.buffer == []


def priors(number, seed):
    """Constants of distributions whose graphs differ most from those of `line`, all edited."""
    rng = np.random.default_rng(seed)
    with pm.Model() as model:
        k = pm.Bernoulli("k", 1 / (2 + number))
        x = pm.Normal("x", number, 2.5)
        shares = pm.Dirichlet("shares", np.array([1.5, 2.0, 2.5]) * number)
        bounded = pm.Uniform("bounded", -number, 1 + number)
        drawn = pm.CustomDist(
            "drawn",
            number + 0.1,
            0.5,
            dist=lambda mu, b, size: mu + pm.Laplace.dist(0, b, size=size),
        )
        pm.Potential("pull", -(number * x**2) - pm.math.switch(pm.math.eq(k, 0), number, 0.3))
        pm.Potential("prior", pm.logp(pm.Normal.dist(number + 0.1, 2 * number), drawn))
        mean = (number * x)[None] + k * shares + bounded
        pm.Normal("y", mean, drawn**2 + 1.5 * number, observed=rng.normal(size=3))
    return model


def outcomes(number, seed):
    """Distributions of outcomes, and data of all kinds, all edited."""
    rng = np.random.default_rng(seed)
    whole = int(1_000 * number)
    group = rng.permutation([0, 1, 2, 0, 1, 2])
    with pm.Model() as model:
        k = pm.Categorical("k", rng.dirichlet(np.ones(3)))
        x = pm.Normal("x", 0.5, 1.5, shape=3)
        rate, chance = pm.math.exp(x[0] + 0.1 * k), pm.math.sigmoid(x[1] - k)
        pm.Normal("single", x[0] + k, 1.3, observed=number)
        pm.Poisson("count", rate, observed=whole)
        pm.Normal("groups", x[group] + k, 1.3, observed=rng.normal(size=6))
        pm.Categorical("kind", logit_p=x * (k + 1), observed=rng.integers(0, 3, size=5))
        pm.Binomial("trials", 10 + whole, chance, observed=[4, 5, 6])
        pm.Binomial("many", np.array([10, 20, 30]) + whole, chance, observed=[4, 5, 6])
        pm.NegativeBinomial("spread", mu=rate, alpha=number, observed=rng.poisson(3, size=4))
        pm.ZeroInflatedPoisson("zeros", 0.45 / number, rate, observed=rng.poisson(1, size=4))
        pm.NormalMixture("mixed", [0.4, 0.6], x[:2] + k, number, observed=rng.normal(size=4))
        clipped = pm.Normal.dist(x[2] + k, 1.0)
        bound = number + 0.1
        data = rng.normal(size=5).clip(-bound, bound)
        pm.Censored("clipped", clipped, lower=-bound, upper=bound, observed=data)
    return model


def fewer_outcomes(number, seed):
    """Some of them: an index that data are taken by, and what PyMC makes of a graph."""
    rng = np.random.default_rng(seed)
    group = rng.permutation([0, 1, 2, 0, 1, 2])
    with pm.Model() as model:
        k = pm.Categorical("k", rng.dirichlet(np.ones(3)))
        x = pm.Normal("x", 0.5, 1.5, shape=3)
        pm.Normal("groups", x[group] + k, 1.3, observed=rng.normal(size=6))
        pm.Categorical("kind", logit_p=x * (k + 1), observed=rng.integers(0, 3, size=5))
        clipped = pm.Normal.dist(x[2] + k, 1.0)
        bound = number + 0.1
        data = rng.normal(size=5).clip(-bound, bound)
        pm.Censored("clipped", clipped, lower=-bound, upper=bound, observed=data)
    return model


@pytest.mark.parametrize(
    "build", [priors, fewer_outcomes, pytest.param(outcomes, marks=pytest.mark.slow)]
)
def test_an_edit_of_any_constant_or_data_compiles_nothing(build):
    CarlinChib(model=build(1.0, 1))
    with event.install_recorder("numba:compile") as compiled:
        step = CarlinChib(model=build(a_new_number(), 2))
    assert compiled.buffer == []
    # what was compiled for other numbers computes this model's density
    density = step._density
    position = 0.1 + 0.2 * np.arange(density.n_latents)
    logp = density.model.compile_logp(mode="FAST_COMPILE")
    for j in range(density.n_classes):
        found = LogDensities(density)(np.array([j]), position[None], [])
        expected = logp({**density.unravel(position), "k": j})
        np.testing.assert_allclose(found, expected, rtol=1e-7)


@pytest.mark.parametrize("kind", ["shared", "blocks", "plate"])
def test_what_a_step_needs_is_compiled_before_its_chains_begin(kind):
    """Processes that chains are drawn in find it: none compiles what another has."""
    if kind == "plate":
        with pm.Model() as model:
            k = pm.Categorical("k", [0.5, 0.2, 0.3], shape=6)
            x = pm.Normal("x", k, 1.0, shape=6)
            pm.Normal("y", x, 1.0, observed=np.arange(6.0))
        given = {"model": model}
    else:
        given = {"model": line()} if kind == "shared" else lines_in_blocks()
    with given["model"] as model:
        NDArray(model=model)  # PyMC's own: what writes draws to a trace
        step = CarlinChib(**given)
        with requested() as asked:
            pm.sample(2, tune=2, chains=1, cores=1, step=step, progressbar=False, random_seed=1)
    # PyMC's own, found on disk
    assert [each.__name__ for each in asked] == ["numba_funcified_fgraph"]


def lines_in_blocks(spreads=(1.0, 1.0, 1.0), noise=1.0, rate=1.0, data=0.1):
    """Lines of a class each, whose priors' constants are all one number to begin with."""
    x = np.linspace(-1.0, 1.0, 7)
    with pm.Model() as model:
        k = pm.Categorical("k", [0.4, 0.6])
        level = pm.Normal("level", 0.0, spreads[0])
        slope = pm.Normal("slope", 0.0, spreads[1], shape=2)
        pull = pm.Normal("pull", np.array([0.0, data]), spreads[2], shape=2)
        scale = pm.Exponential("scale", rate)
        line = level + pm.math.dot(np.stack([x, x + data], axis=1), slope)
        mean = pm.math.switch(pm.math.eq(k, 0), line, pull.sum() * x)
        spread = pm.math.switch(pm.math.eq(k, 0), noise, scale)
        pm.Normal("y", mean, spread, observed=x + data)
    return {"model": model, "blocks": {0: [level, slope], 1: [pull, scale]}}


def test_an_edit_of_numbers_compiles_nothing_of_blocks_either():
    """Nor does one that tells apart what happened to be equal."""
    CarlinChib(**lines_in_blocks())
    with event.install_recorder("numba:compile") as compiled:
        spreads = (a_new_number(), 1.0, a_new_number())
        CarlinChib(**lines_in_blocks(spreads=spreads, rate=a_new_number()))
        CarlinChib(**lines_in_blocks(noise=a_new_number(), data=a_new_number()))
    assert compiled.buffer == []


def test_inactive_latents_are_drawn_by_the_numbers_of_their_own_model():
    rng = np.random.default_rng(5)
    for spreads, rate in (((1.0, 1.0, 1.0), 1.0), ((0.2, 1.0, 3.0), 5.0)):
        given = lines_in_blocks(spreads, rate=rate)
        density = BlockDensity(given["model"], given["model"]["k"], given["blocks"])
        draw = InactiveDraw(density)
        position = np.zeros(density.n_latents)
        in_0, in_1 = (
            np.array([draw(k, position, [], rng) for _ in range(4_000)]) for k in range(2)
        )
        assert not in_0[:, :3].any() and not in_1[:, 3:].any()
        np.testing.assert_allclose(in_1[:, 0].std(), spreads[0], rtol=0.05)
        np.testing.assert_allclose(in_0[:, 3:5].std(), spreads[2], rtol=0.05)
        np.testing.assert_allclose(np.exp(in_0[:, 5]).mean(), 1 / rate, rtol=0.07)


def test_loops_are_compiled_for_no_model():
    CarlinChib(model=line())
    with pm.Model() as other:
        k = pm.Categorical("k", [0.2, 0.8])
        x = pm.Normal("x", k, 1.0, shape=4)
        pm.Poisson("y", pm.math.exp(x), observed=[1, 2, 3, 4])
    with requested() as asked:
        CarlinChib(model=line(n_classes=5))
        CarlinChib(model=other)
    modules = [str(each.__module__) for each in asked]
    assert asked and not [each for each in modules if each.startswith("pymc_mcoem.carlin_chib")]


def test_a_search_for_a_few_modes_compiles_nothing():
    with requested() as asked:
        LaplaceApproximation.fit(line(), initvals={"k": 1})
    assert asked == []


def test_constants_are_shared_and_the_density_is_the_models():
    model = line()
    constants = SharedConstants(model)
    terms = constants.log_densities()
    function = pm.pytensorf.compile(
        model.value_vars,
        sum(term.sum() for term in terms.values()),
        mode="FAST_COMPILE",
        on_unused_input="ignore",
    )
    point = {"k": 1, "slope": 0.3, "scale_log__": -0.2}
    found = function(*(point[value.name] for value in model.value_vars))
    # not to the last bit: constants of single precision are taken in double
    np.testing.assert_allclose(found, model.compile_logp(mode="FAST_COMPILE")(point), rtol=1e-7)
    assert {shared.get_value().size for shared in constants.shared} >= {1, 3, 20}


@pytest.mark.parametrize("minus", [lambda x: -x, lambda x: -1.0 * x])
def test_a_one_that_rewrites_look_for_stays(minus):
    """Otherwise the logistic function of 800, written out, would be one, and its log-odds lost."""
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.0, 20.0)
        pm.Bernoulli("y", 1.0 / (1.0 + pm.math.exp(minus(x))), observed=[0])
    found = LogDensities(ClassDensity(model, k, [x]))(np.array([1]), np.array([[800.0]]), [])
    expected = np.log(0.5) + stats.norm.logpdf(800.0, 0.0, 20.0) - 800.0
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_flat_functions_read_what_a_model_shares_at_every_call():
    with pm.Model() as model:
        center = pm.Data("center", np.array([1.0, 2.0]))
        group = pm.Data("group", np.array([1, 0, 1]))
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", 0.0, 1.0)
        pm.Normal("y", (center * (k + 1))[group] + x, 1.0, observed=np.zeros(3))
    density = ClassDensity(model, k, [x])
    flat = FlatFunction(density, lambda j, u, _: [density.log_density(j, u)], "the log-density")
    logp = model.compile_logp(mode="FAST_COMPILE")
    for values in ([1.0, 2.0], [-3.0, 0.5]):
        with model:
            pm.set_data({"center": np.array(values), "group": np.array([0, 0, 1])})
        found = flat.function(1, np.array([0.4]), *flat.pack([]), np.zeros(0))
        np.testing.assert_allclose(found, logp({"k": 1, "x": 0.4}), rtol=1e-7)


KEPT = """
import sys, warnings
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numba.core import event
import pytensor.link.numba.dispatch.basic  # puts up the filter that hides the warning
warnings.filterwarnings("error", message=r"[\\s\\S]*Cannot cache compiled function")
import pymc_mcoem as mcoem

compiled = event.RecordingListener()
event.register("numba:compile", compiled)
if sys.argv[1] == "held":
    x = pt.vector("x")
    held = np.random.default_rng(1).normal(size=int(sys.argv[2]))
    pytensor.function([x], x * held, mode="NUMBA")(held)
elif sys.argv[1] == "plate":
    n = int(sys.argv[2])
    with pm.Model():
        k = pm.Categorical("k", [0.5, 0.3, 0.2], shape=n)
        x = pm.Normal("x", pm.math.constant(np.array([-1.5, 0.0, 2.0]))[k], 1.0, shape=n)
        pm.Normal("y", x, 0.6, observed=np.zeros(n))
        step = mcoem.CarlinChib()
        pm.sample(2, tune=2, chains=1, cores=1, step=step, progressbar=False, random_seed=1)
elif sys.argv[1] == "data":
    n = int(sys.argv[2])
    with pm.Model():
        k = pm.Categorical("k", [0.5, 0.5])
        x = pm.Normal("x", k, 1.0, shape=3)
        design = np.random.default_rng(1).normal(size=(n, 3))
        pm.Normal("y", pm.math.dot(design, x), 0.6, observed=np.zeros(n))
        mcoem.CarlinChib()
else:
    side = int(sys.argv[2])
    mixture = mcoem.TemplateMixture.for_images((side, side), n_classes=3)
    e_step = mcoem.esteps.CarlinChibBurst().compile(mixture)
    image = np.random.default_rng(1).normal(size=(side, side))
    e_step(
        mixture.encode(image),
        mixture.model_parameters(),
        np.random.default_rng(1),
        e_step.initial_state(),
        draws=2,
        tune=1,
    )
print("compiled", len(compiled.buffer))
"""


def kept(folder, kind, size):
    """Run a process that makes something, with that filter off and a folder to cache in."""
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTENSOR_FLAGS": f"base_compiledir={folder}",
    }
    return subprocess.run(
        [sys.executable, "-c", KEPT, kind, str(size)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param("plate", 5_000, marks=pytest.mark.slow),
        ("data", 60_000),
        pytest.param("images", 28, marks=pytest.mark.slow),
        pytest.param("images", 64, marks=pytest.mark.slow),
    ],
)
def test_all_that_is_compiled_is_kept_on_disk(kind, size, tmp_path):
    """numba keeps no function that holds a megabyte, and PyTensor hides its warning."""
    first, later = (kept(tmp_path, kind, size) for _ in range(2))
    assert first.returncode == 0, first.stderr[-2_000:]
    assert later.returncode == 0, later.stderr[-2_000:]
    assert int(first.stdout.split()[-1]) > 0
    assert later.stdout.split()[-2:] == ["compiled", "0"]


def test_a_function_that_is_not_kept_is_noticed(tmp_path):
    done = kept(tmp_path, "held", 200_000)
    assert done.returncode != 0 and "Cannot cache compiled function" in done.stderr


def test_a_whole_number_that_is_a_size_stays_one():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.3, 0.7])
        x = pm.Normal("x", k, 1.0)
        pm.StickBreakingWeights("w", alpha=2.0, K=2)
    assert np.isfinite(ClassDensity(model, k, [x]).log_density(1, [0.5]).eval())

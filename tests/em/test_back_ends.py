"""E-steps give the same numbers on numba, C and JAX, from the same generator."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import pymc_mcoem as mcoem
from pymc_mcoem.classification.expected_likelihood import ExpectedLikelihood
from pymc_mcoem.compiling.backends import backend_of, pytensor_mode
from pymc_mcoem.em.burst import adaptation_gains
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.representatives import by_default

WALK = mcoem.moves.RandomWalk(3)
SEEN = {
    "burst": mcoem.esteps.CarlinChibBurst(within_class=WALK),
    "burst, Hamiltonian, Rao-Blackwell": mcoem.esteps.CarlinChibBurst(
        within_class=mcoem.moves.Hamiltonian(1, 3), rao_blackwell=True
    ),
    "burst, prior covariance": mcoem.esteps.CarlinChibBurst(
        within_class=WALK, pseudo_priors=mcoem.pseudo_priors.PriorCovariance()
    ),
    "burst, pilot moments": mcoem.esteps.CarlinChibBurst(
        within_class=WALK, pseudo_priors=mcoem.pseudo_priors.PilotMoments(20)
    ),
    "auxiliary chains": mcoem.esteps.AuxiliaryChains(within_class=WALK),
    "plain Gibbs": mcoem.esteps.PlainGibbs(within_class=WALK),
    "importance weights": mcoem.esteps.LaplaceGaussian(importance=True),
    "posterior mode": mcoem.esteps.PosteriorMode(),
    "fixed latents": mcoem.esteps.FixedLatents(),
}


def with_backend(name, backend):
    settings = {**SEEN, "expected likelihood": ExpectedLikelihood()}[name]
    return type(settings)(**{**vars(settings), "backend": backend})


def explained(name, backend):
    """Return what an E-step makes of three observations, of two lengths of bursts."""
    family = LinearNormal()
    stream = family.draw(np.random.default_rng(3), 3)
    e_step = with_backend(name, backend).compile(family)
    theta, rng = family.declared_parameters(), np.random.default_rng(4)
    found = []
    if name == "expected likelihood":
        for y in stream:
            found.append(e_step.log_scores(family.encode(y), theta, rng, draws=20, tune=5))
        return found
    state = e_step.initial_state()
    for y, draws in zip(stream, (20, 20, 31), strict=True):
        result = e_step(family.encode(y), theta, rng, state, draws=draws, tune=10)
        state = result.state
        found += [*result.statistics.values(), *state.values(), np.array(result.log_evidence)]
    if hasattr(e_step, "resume"):
        chain = {}
        for visit in range(3):
            result = e_step.resume(
                family.encode(stream[0]),
                theta,
                rng,
                chain,
                gains=adaptation_gains(9, 4),
                refit=visit != 1,
                keep_fit=True,
            )
            chain = result.chain
            found += [*result.statistics.values(), *chain.values()]
    return found


def learned(backend):
    """Return θ and the name of the back end of a run of twelve observations."""
    family = LinearNormal()
    em = mcoem.OnlineEM(
        family,
        e_step=mcoem.esteps.CarlinChibBurst(backend=backend),
        parameters=family.declared_parameters(),
        burst_length=mcoem.schedules.BurstLength(20, 10),
        update_schedule=mcoem.schedules.UpdateSchedule([4], every=2),
        random_seed=3,
        progressbar=False,
    ).partial_fit(family.draw(np.random.default_rng(5), 12))
    return {name: np.array(value) for name, value in em.parameters.items()}, em.history.attrs


def explained_templates(kind, backend):
    """Return what a burst makes of two images, or of curves."""
    if kind == "images":
        mixture, shape = mcoem.TemplateMixture.for_images((6, 6), n_classes=2), (6, 6)
    else:
        grid = np.linspace(0, 1, 12)
        mixture, shape = mcoem.TemplateMixture.for_curves(grid, n_classes=2), (12,)
    e_step = mcoem.esteps.CarlinChibBurst(backend=backend).compile(mixture)
    rng, found = np.random.default_rng(6), []
    theta = mixture.initialize(rng.uniform(size=(9, *shape)), rng, "random")
    for y in rng.uniform(size=(2, *shape)):
        result = e_step(mixture.encode(y), theta, rng, e_step.initial_state(), draws=20, tune=10)
        found += [*result.statistics.values(), np.array(result.log_evidence)]
    return found


@pytest.mark.parametrize(
    "name",
    by_default(
        [*SEEN, "expected likelihood"], {"burst, Hamiltonian, Rao-Blackwell", "importance weights"}
    ),
)
def test_every_e_step_finds_the_same_in_jax(run_apart, name):
    expected, found = explained(name, "numba"), run_apart(explained, name, "jax")
    assert len(expected) == len(found) > 0
    for here, there in zip(expected, found, strict=True):
        assert there.dtype == here.dtype
        np.testing.assert_allclose(there, here, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "curves"])
def test_bursts_of_templates_find_the_same_in_jax(run_apart, kind):
    expected, found = (
        explained_templates(kind, "numba"),
        run_apart(explained_templates, kind, "jax"),
    )
    assert len(expected) == len(found) > 0
    for here, there in zip(expected, found, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-7)


# a burst compiles in C for a minute and a half
@pytest.mark.parametrize(
    "name", by_default(["posterior mode", "burst", "burst, prior covariance"], {"posterior mode"})
)
def test_e_steps_find_the_same_in_c(c_compiler, name):
    for here, there in zip(explained(name, "numba"), explained(name, "c"), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-7, atol=1e-9)


def test_a_run_in_jax_learns_the_same_and_says_so(run_apart):
    (expected, _), (found, attributes) = learned("numba"), run_apart(learned, "jax")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)
    assert attributes["backend"] == "jax"


@pytest.mark.parametrize(
    "make", [mcoem.esteps.CarlinChibBurst, mcoem.esteps.AuxiliaryChains, ExpectedLikelihood]
)
def test_a_back_end_that_is_not_there_is_refused(make, monkeypatch):
    with pytest.raises(ValueError, match=r"backend: got 'cuda'; give one of \['c', 'jax', 'numba'"):
        make(backend="cuda")
    with pytest.raises(ValueError, match="backend: got 'PYTORCH'"):
        make(backend="PYTORCH")
    # settings can be read where JAX is not installed, and something else be asked for
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    settings = make(backend="jax")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'pymc_mcoem\[jax\]'"):
        settings.compile(LinearNormal())


def test_names_are_pymcs():
    assert [backend_of(pytensor_mode(name)) for name in ("numba", "c", "jax", "JAX")] == [
        "numba",
        "c",
        "jax",
        "jax",
    ]

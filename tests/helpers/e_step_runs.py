"""What every E-step has to do: give known means, run under a driver, go on from a file."""

from __future__ import annotations

import numpy as np

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import BurstLength, UpdateSchedule
from tests.helpers.checks import agreement
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.toy_runs import assert_same


def repeated(e_step, case, rng, *, repeats=100, draws=500, tune=100):
    """Return results of independent calls at one (observation, parameters)."""
    state = e_step.initial_state()
    return [e_step(*case, rng, state, draws=draws, tune=tune) for _ in range(repeats)]


def largest_z(results, exact):
    """Return how far mean statistics are from `exact`, in standard errors, by name."""
    assert set(results[0].statistics) == set(exact)
    found = {}
    for name, expected in exact.items():
        values = np.array([result.statistics[name] for result in results])
        assert values.shape[1:] == expected.shape
        found[name] = agreement(values.reshape(len(values), -1), expected.ravel()).largest_z
    return found


def split(family):
    """Return (observation, parameters) that a family's model holds now."""
    values = family.values
    return {name: values.pop(name) for name in family.observation}, values


def assert_runs_and_is_stored(settings, rng, path):
    """Learn a few observations, save, load without naming the E-step, and go on alike."""
    family = LinearNormal()
    stream = family.draw(rng, 9)
    options = {
        "e_step": settings,
        "parameters": family.declared_parameters(),
        "burst_length": BurstLength(20, 10),
        "update_schedule": UpdateSchedule([4], every=2),
        "random_seed": 3,
        "progressbar": False,
    }
    em = OnlineEM(family, **options).partial_fit(stream[:6])
    em.save(path)
    loaded = OnlineEM.load(path, family, progressbar=False)
    assert loaded.run.settings.e_step == settings
    assert_same(loaded.partial_fit(stream[6:]), em.partial_fit(stream[6:]))
    learned = em.parameters
    assert not np.allclose(learned["center"], family.declared_parameters()["center"])
    weights = em.history["observations"]["class_weight"].values
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert_runs_under_saem(settings, family, stream, path.with_name("saem.nc"))
    return em


def assert_runs_under_saem(settings, family, stream, path):
    """Iterate, save, load and go on alike."""
    options = {"e_step": settings, "parameters": family.declared_parameters(), "random_seed": 3}
    saem = SAEM(family, draws=10, batch_size=0.5, progressbar=False, **options)
    saem.fit(stream, 3).save(path)
    loaded = SAEM.load(path, family, progressbar=False).fit(stream, 2)
    assert loaded.parameters.identical(saem.fit(stream, 2).parameters)
    assert not np.allclose(saem.parameters["center"], family.declared_parameters()["center"])

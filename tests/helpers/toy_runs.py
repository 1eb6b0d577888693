"""Ways to run OnlineEM on toys, and when two runs are the same."""

from __future__ import annotations

import re

import numpy as np
import xarray as xr

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import UpdateSchedule
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.toy_families import Noisy

THETA = {
    "weights": np.array([0.5, 0.3, 0.2]),
    "means": np.array([-2.0, 0.3, 2.0]),
    "noise_variance": np.array(1.3),
}
#: A start for `NormalMixture` at which all observations go to one class until others wake up.
EARLY = {
    "weights": np.array([0.96, 0.03, 0.01]),
    "means": np.array([-2.0, 2.0, 5.0]),
    "noise_variance": np.array(1.3),
}
WAYS = {
    "given start": {"parameters": THETA},
    "held start": {"n_start": 20},
    "random start": {"n_start": 5, "start": "random"},
    "mini-batches": {"parameters": THETA, "batch_size": 6},
    "held start, mini-batches, average": {"n_start": 15, "batch_size": 4, "average_from": 17},
    "batch larger than start": {"n_start": 3, "batch_size": 10},
    "paper's updates": {"n_start": 10, "update_schedule": UpdateSchedule.paper()},
}


def driver(family, **settings):
    given = {"e_step": Noisy(), "random_seed": 1, "progressbar": False}
    return OnlineEM(family, **(given | settings))


def what_counts(em):
    """Everything that a run returns, but for times."""
    tree = em.history
    found = {
        "parameters": em.parameters,
        "last_parameters": em.last_parameters,
        "steps": tree["steps"].to_dataset().drop_vars("seconds"),
        "observations": tree["observations"].to_dataset().drop_vars("seconds"),
    }
    return found, em.n_seen, em.position


def assert_same(one, other):
    (found, *numbers), (expected, *others) = what_counts(one), what_counts(other)
    assert numbers == others
    for name, dataset in expected.items():
        xr.testing.assert_identical(found[name], dataset)


def image_mixture(rng):
    """Return a mixture of three small templates, twelve images, and a start found from them."""
    mixture = TemplateMixture.for_images((4, 4), n_classes=3, n_landmarks=2)
    images = np.repeat(rng.normal(size=(3, 4, 4)), 4, axis=0) + 0.4 * rng.normal(size=(12, 4, 4))
    images = rng.permutation(images)
    return mixture, images, mixture.initialize(list(images), rng, "random")


def turned(family, parameters, order):
    """Return parameters whose class j is class ``order[j]`` of those given."""
    return _turned(family.to_dataset(family.check_parameters(parameters)), order)


def _turned(dataset, order):
    found = dataset.isel({"class": order}).assign_coords({"class": dataset["class"]})
    if "trouble" not in found.coords:
        return found
    # classes that wait are named by number
    names = [
        re.sub(r"class (\d+)", lambda match: f"class {order.index(int(match[1]))}", name)
        for name in found["trouble"].values
    ]
    return found.assign_coords(trouble=names).sortby("trouble")


def assert_classes_turned(one, other, order):
    """Class j of a run has been what class ``order[j]`` of another was, and all else the same.

    Up to rounding: sums over classes have another order.
    """
    pairs = [(one.parameters, other.parameters)]
    for group in ("steps", "observations"):
        pairs.append(tuple(run.history[group].to_dataset() for run in (one, other)))
    kept = list(range(len(order)))
    for found, expected in pairs:
        xr.testing.assert_allclose(
            _turned(found.drop_vars("seconds", errors="ignore"), kept),
            _turned(expected.drop_vars("seconds", errors="ignore"), order),
            rtol=1e-9,
            atol=1e-11,
        )
    # else what was compared would be the start
    path = other.history["steps"].to_dataset()
    moved = {
        name
        for name in other.parameters.data_vars
        if "class" in path[name].dims and not np.allclose(path[name][0], path[name][-1])
    }
    assert moved

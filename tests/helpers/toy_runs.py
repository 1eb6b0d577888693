"""Ways to run OnlineEM on toys, and when two runs are the same."""

from __future__ import annotations

import numpy as np
import xarray as xr

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.schedules import UpdateSchedule
from tests.helpers.toy_families import Noisy

THETA = {
    "weights": np.array([0.5, 0.3, 0.2]),
    "means": np.array([-2.0, 0.3, 2.0]),
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
        "online_em": tree["online_em"].to_dataset().drop_vars("seconds"),
        "observations": tree["observations"].to_dataset().drop_vars("seconds"),
    }
    return found, em.n_seen, em.position


def assert_same(one, other):
    (found, *numbers), (expected, *others) = what_counts(one), what_counts(other)
    assert numbers == others
    for name, dataset in expected.items():
        xr.testing.assert_identical(found[name], dataset)

"""The picture of the number of classes shows what decided it."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.number_of_classes import choose_classes
from pymc_mcoem.plots import plot_class_count
from tests.helpers.toy_families import EvidentMixture


@pytest.fixture
def found(rng):
    values = 6.0 * rng.integers(2, size=100) + rng.normal(0, 0.5, size=100)
    options = {"e_step": Exact(), "progressbar": False, "random_seed": 3}
    return choose_classes(EvidentMixture, values, [1, 2, 3], **options)


def test_starts_errors_and_the_named_number_are_drawn(found):
    viz = plot_class_count(found, backend="none").viz
    evidence = found.table["log_evidence"].values
    np.testing.assert_array_equal(viz["line"]["log_evidence"].item()["y"], evidence)
    starts = viz["starts"]["log_evidence"].item()
    assert starts["x"].tolist() == [1, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(
        np.sort(starts["y"]),
        np.sort(found.scored["log_evidence"].mean("observation").values.ravel()),
    )
    named = viz["named"]["least_class"].item()
    assert named["x"].tolist() == [2] and named["y"] == [found.table.loc[2, "least_class"]]
    bars = viz["errors"]["log_evidence"].item()["y"].reshape(3, 3)
    np.testing.assert_allclose((bars[:, 1] - bars[:, 0]) / 4, found.table["error"])
    assert np.isnan(bars[:, 2]).all()
    assert viz["limits"]["between"].item()["y"].tolist() == [0.05] * 3
    assert "log_evidence" not in viz["limits"]


@pytest.mark.parametrize("backend", ["matplotlib", "bokeh", "plotly"])
def test_every_back_end_draws_it(found, backend):
    collection = plot_class_count(found, backend=backend, visuals={"errors": False})
    assert "errors" not in collection.viz
    assert set(collection.viz["plot"].data_vars) == {"log_evidence", "least_class", "between"}


def test_something_else_is_refused(found):
    with pytest.raises(TypeError, match="found: got DataFrame; give what choose_classes returned"):
        plot_class_count(found.table)

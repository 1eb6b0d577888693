"""Alignment of the classes of two runs."""

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.diagnostics import align_classes


def test_a_renamed_and_noisy_run_is_aligned(rng):
    templates = rng.normal(size=(6, 8, 8))
    order = rng.permutation(6)
    found = align_classes(templates, templates[order] + 0.01 * rng.normal(size=(6, 8, 8)))
    np.testing.assert_array_equal(order[found.order], np.arange(6))
    assert np.all(found.distance < 0.2)


def test_the_best_match_is_of_all_classes_together():
    # Taken one by one, 0 would choose its nearest and leave 1 the worst.
    found = align_classes(np.array([[0.0], [1.0]]), np.array([[10.0], [0.9]]), metric="sqeuclidean")
    np.testing.assert_array_equal(found.order, [1, 0])
    found = align_classes(np.array([[0.0], [0.8]]), np.array([[1.0], [-3.0]]))
    np.testing.assert_array_equal(found.order, [1, 0])


def test_runs_with_other_numbers_of_classes(rng):
    templates = rng.normal(size=(4, 10))
    fewer = align_classes(templates, templates[[3, 1]])
    np.testing.assert_array_equal(fewer.order, [-1, 1, -1, 0])
    np.testing.assert_array_equal(np.isnan(fewer.distance), [True, False, True, False])
    np.testing.assert_array_equal(align_classes(templates[[3, 1]], templates).order, [3, 1])


def test_labeled_templates_may_have_their_dimensions_in_any_order(rng):
    templates = xr.DataArray(rng.normal(size=(3, 5)), dims=("class", "age"))
    np.testing.assert_array_equal(align_classes(templates, templates.T).order, [0, 1, 2])
    with pytest.raises(ValueError, match="give a DataArray with dimension 'class'"):
        align_classes(templates.rename({"class": "k"}), templates)


def test_templates_that_are_refused(rng):
    with pytest.raises(ValueError, match=r"templates_b: got templates of shape \(4,\)"):
        align_classes(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="templates_a: got an array of shape"):
        align_classes(np.full((2, 3), np.nan), np.zeros((2, 3)))

"""The raster and the matrix by their structure, on every back end that is installed."""

import numpy as np
import pytest

from pymc_mcoem.plots import plot_class_index
from tests.helpers.drawn_alike import draws_alike
from tests.helpers.markov import SAME_AUTOCORRELATION, as_array, as_tree
from tests.helpers.representatives import by_default

CODES = np.array([[0, 0, 1, 1, 0], [2, 2, 2, 2, 2]])


@pytest.fixture
def collection():
    return plot_class_index(as_tree(CODES), backend="none")


def covered(artist):
    """Return the runs (left, right) of draws that a band covers."""
    x, bottom, top = artist["x"], artist["y_bottom"], artist["y_top"]
    high = top > bottom
    assert np.all(np.diff(x) >= 0)
    return [(x[i], x[i + 1]) for i in range(0, len(x), 2) if high[i]]


def test_bands_are_the_runs_of_each_class(collection):
    raster = collection.viz["raster"]["class_index"]
    assert raster.dims == ("class", "chain")
    first, second = raster.sel({"class": 0}).values
    assert second is None
    assert covered(first) == [(-0.5, 1.5), (3.5, 4.5)]
    assert covered(raster.values[1, 0]) == [(1.5, 3.5)]
    stuck = raster.values[2, 1]
    assert covered(stuck) == [(-0.5, 4.5)]
    # Chain 0 is above chain 1.
    assert first["y_bottom"].min() > stuck["y_top"].max()


def test_every_draw_is_covered_once(rng):
    codes = SAME_AUTOCORRELATION.draw(rng, 3, 200)
    raster = plot_class_index(as_array(codes), backend="none").viz["raster"]["class_index"].values
    for chain in range(3):
        length = [
            sum(right - left for left, right in covered(artist)) for artist in raster[:, chain]
        ]
        np.testing.assert_array_equal(length, np.bincount(codes[chain], minlength=3))


def test_cells_are_transition_probabilities(collection):
    cells = collection.viz["matrix"]["class_index"].values
    assert cells.shape == (3, 3)
    assert cells[0, 0]["alpha"] == pytest.approx(0.7 * 0.5)
    assert cells[0, 2] is None
    np.testing.assert_array_equal(cells[0, 1]["x"], [0.5, 1.5])
    np.testing.assert_array_equal(cells[0, 1]["y_bottom"], 1.5)
    written = np.vectorize(lambda artist: artist["string"])(
        collection.viz["matrix_text"]["class_index"].values
    )
    np.testing.assert_array_equal(written, [["0.50", "0.50", "0"], ["0.50", "0.50", "0"], [*"001"]])


def test_classes_have_colors_of_their_own(collection):
    raster = collection.viz["raster"]["class_index"].values
    colors = [raster[0, 0]["color"], raster[1, 0]["color"], raster[2, 1]["color"]]
    assert len(set(colors)) == 3
    many = plot_class_index(as_array([np.arange(15)] * 2), backend="none")
    found = [artist["color"] for artist in many.viz["raster"]["class_index"].values[:, 0]]
    assert len(set(found)) == 15
    # Too many for numbers, unless asked for.
    assert "matrix_text" not in many.viz.children
    numbered = plot_class_index(
        as_array([np.arange(15)] * 2), backend="none", visuals={"matrix_text": True}
    )
    assert "matrix_text" in numbered.viz.children


def test_labels(collection):
    titles = collection.viz["title"]["class_index"]
    assert titles.sel(column="raster").item()["string"] == "class_index"
    assert titles.sel(column="transitions").item()["string"] == "transitions"
    labels = collection.viz["xlabel"]["class_index"]
    assert labels.sel(column="transitions").item()["string"] == "to class"


def test_a_plate_has_a_row_of_plots_for_each_index(rng):
    codes = rng.integers(3, size=(2, 30, 4))
    tree = as_tree(codes)
    tree["posterior"] = tree["posterior"].to_dataset().assign_coords(row=list("abcd"))
    collection = plot_class_index(tree, backend="none")
    assert dict(collection.viz["plot"].sizes) == {"row": 4, "column": 2}
    title = collection.viz["title"]["class_index"].sel(row="c", column="raster").item()
    assert title["string"] == "class_index[c]"
    some = plot_class_index(tree, backend="none", coords={"row": ["b", "d"]})
    assert some.viz["plot"].sizes["row"] == 2
    one = plot_class_index(tree, backend="none", coords={"row": "b"})
    assert "row" not in one.viz["plot"].dims
    band = one.viz["raster"]["class_index"].values[0, 0]
    wanted = some.viz["raster"]["class_index"].sel({"row": "b", "class": 0, "chain": 0}).item()
    np.testing.assert_array_equal(band["x"], wanted["x"])


def test_visuals_are_left_out_and_changed():
    collection = plot_class_index(
        as_tree(CODES),
        backend="none",
        visuals={"matrix_text": False, "legend": False, "matrix": {"color": "red", "alpha": 1.0}},
    )
    assert "matrix_text" not in collection.viz.children
    cell = collection.viz["matrix"]["class_index"].values[0, 0]
    assert (cell["color"], cell["alpha"]) == ("red", 0.5)
    with pytest.raises(ValueError, match="rastre"):
        plot_class_index(as_tree(CODES), backend="none", visuals={"rastre": False})


def test_a_collection_of_ones_own_is_filled(rng):
    first = plot_class_index(as_tree(CODES), backend="none", visuals={"raster": False})
    assert "raster" not in first.viz.children
    second = plot_class_index(as_tree(CODES), backend="none", plot_collection=first)
    assert second is first
    assert "raster" in first.viz.children


def test_thinned_draws_are_where_they_were():
    thinned = as_tree(np.repeat(CODES, 2, axis=1)).isel(draw=slice(None, None, 2))
    raster = plot_class_index(thinned, backend="none").viz["raster"]["class_index"].values
    assert covered(raster[2, 1]) == [(-1.0, 9.0)]


@pytest.mark.parametrize("backend", by_default(["matplotlib", "bokeh", "plotly"], {"matplotlib"}))
def test_other_back_ends_draw_the_same_visuals(backend, tmp_path, rng):
    codes = as_array(SAME_AUTOCORRELATION.draw(rng, 4, 200))
    draws_alike({"index": lambda **kw: plot_class_index(codes, **kw)}, backend, tmp_path)


def test_of_a_large_plate_the_indices_with_the_fewest_effective_draws_are_drawn(rng):
    codes = rng.integers(2, size=(2, 40, 25))
    codes[:, :, [3, 24]] = np.repeat([[0], [1]], 20, axis=1).ravel()[:, None]  # one switch in 40
    with pytest.warns(UserWarning, match=r"of 25 indices the 20 with the fewest.*coords={'row'"):
        found = plot_class_index(as_array(codes), backend="none")
    rows = found.viz["plot"]["row"].values
    assert len(rows) == 20 and {3, 24} <= set(rows)
    # all that are named are drawn
    named = plot_class_index(as_array(codes), coords={"row": [1, 2]}, backend="none")
    assert named.viz["plot"].sizes["row"] == 2

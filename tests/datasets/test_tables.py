"""Tables of many kinds give the same curves, with their names and units."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from pymc_mcoem.datasets import read_curves
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.plots import plot_registration, plot_template_history, plot_templates
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.histories import path_of

PLACES = np.arange(0.0, 120.0, 20.0)
VALUES = np.arange(18.0).reshape(3, 6) ** 2


def functions(**more):
    """A stand-in for what is read of scikit-fda's containers, which is not installed here."""

    class Functions(SimpleNamespace):
        def __len__(self):
            return len(VALUES)

    about = {
        "argument_names": ("ms",),
        "coordinate_names": ("mV",),
        "sample_names": (None,) * 3,
        "dim_domain": 1,
        "dim_codomain": 1,
    }
    return Functions(**(about | more))


def long_table(order=slice(None)):
    who, place = np.meshgrid(["a", "b", "c"], PLACES, indexing="ij")
    table = pd.DataFrame({"who": who.ravel(), "ms": place.ravel(), "mV": VALUES.ravel()})
    return table.iloc[order]


WIDE = pd.DataFrame(VALUES, columns=pd.Index(PLACES, name="ms"), index=list("abc"))
LABELED = xr.DataArray(VALUES, {"ms": PLACES}, ("beat", "ms"), name="mV")
NAMES = {"time": "ms", "value": "mV"}
named = partial(read_curves, **NAMES)
FUNCTIONS = {"data_matrix": VALUES[..., None], "grid_points": (PLACES,)}
IRREGULAR = {
    "start_indices": np.array([0, 6, 12]),
    "points": np.tile(PLACES, 3)[:, None],
    "values": VALUES.reshape(-1, 1),
}
TABLES = {
    "long": lambda: named(long_table(), curve="who"),
    "long, in any order": lambda: named(long_table(slice(None, None, -1)), curve="who")[::-1],
    "wide": lambda: read_curves(WIDE, value="mV"),
    "wide, with times as text": lambda: named(WIDE.set_axis(PLACES.astype(str), axis=1)),
    "wide, with a column of labels": lambda: named(
        WIDE.rename_axis(index="who").reset_index(), curve="who"
    ),
    "long, by index": lambda: named(long_table().set_index(["who", "ms"]), curve="who"),
    "long, a series": lambda: named(long_table().set_index(["who", "ms"])["mV"], curve="who"),
    "labeled": lambda: read_curves(LABELED),
    "labeled, turned": lambda: read_curves(LABELED.T[::-1], time="ms"),
    "labeled, times before curves": lambda: read_curves(LABELED.T),
    "dataset": lambda: read_curves(xr.Dataset({"mV": LABELED}), value="mV"),
    "pairs": lambda: named([(PLACES, row) for row in VALUES]),
    "pairs by label": lambda: named({str(row[1]): (PLACES, row) for row in VALUES}),
    "array": lambda: named(VALUES, points=PLACES),
    "aeon": lambda: named(VALUES[:, None], points=PLACES),
    "aeon, of any lengths": lambda: named([row[None] for row in VALUES], points=PLACES),
    "tslearn": lambda: named(VALUES[..., None], points=PLACES),
    "scikit-fda": lambda: read_curves(functions(**FUNCTIONS)),
    "scikit-fda, irregular": lambda: read_curves(functions(**IRREGULAR)),
}


@pytest.mark.parametrize("kind", TABLES)
def test_all_give_the_same_curves(kind):
    found = TABLES[kind]()
    np.testing.assert_array_equal(found, VALUES)
    assert found.dims[-1] == "ms"
    np.testing.assert_array_equal(found["ms"], PLACES)
    assert found.name == "mV"


def test_labels_of_curves_are_kept():
    with_labels = WIDE.rename_axis(index="who").reset_index()
    for found in (
        read_curves(WIDE),
        read_curves(with_labels, curve="who"),
        read_curves(long_table(), curve="who", **NAMES),
    ):
        assert found[found.dims[0]].values.tolist() == ["a", "b", "c"]
    assert read_curves(long_table(), curve="who", **NAMES).dims[0] == "who"


def test_curves_run_along_time_unless_it_is_told():
    turned = xr.DataArray(VALUES.T, dims=("time", "beat"))
    assert read_curves(turned).dims == ("beat", "time")
    assert read_curves(turned.rename(time="point")).dims == ("beat", "point")
    assert read_curves(turned, time="beat").dims == ("time", "beat")
    # numbers of curves are no times, and of two dims with labels the last is that of times
    numbered = xr.DataArray(VALUES, {"beat": [1, 2, 3]}, ("beat", "ms"))
    assert read_curves(numbered).dims == ("beat", "ms")
    assert read_curves(LABELED.T.assign_coords(beat=[0.5, 1.5, 2.5])).dims == ("ms", "beat")


DATES = pd.Timestamp("2020-01-01", tz="UTC") + pd.to_timedelta(PLACES, unit="ms")


@pytest.mark.parametrize(
    "read",
    [
        lambda: named(long_table().assign(ms=[*DATES] * 3), curve="who"),
        lambda: named([(DATES - DATES[0], row) for row in VALUES]),
        lambda: named(WIDE.set_axis(DATES, axis=1)),
        lambda: read_curves(LABELED.assign_coords(ms=pd.to_timedelta(PLACES, unit="ms"))),
    ],
)
def test_dates_are_told_how_to_become_numbers(read):
    with pytest.raises(ValueError, match=r"has dates or durations, .* / pd.Timedelta\('1s'\)"):
        read()


def test_scikit_fda_itself():
    skfda = pytest.importorskip("skfda")
    named = {"argument_names": ("ms",), "coordinate_names": ("mV",)}
    grid = skfda.FDataGrid(VALUES, PLACES, **named)
    # from_fdatagrid does not keep the names of a grid
    irregular = skfda.FDataIrregular.from_fdatagrid(grid, **named)
    for given in (grid, irregular):
        np.testing.assert_array_equal(read_curves(given), VALUES)
        assert read_curves(given).dims[-1] == "ms"


def test_gaps_are_missing_and_sparse_curves_keep_their_points(rng):
    gaps = [(PLACES[:4], VALUES[0, :4]), (PLACES[2:], VALUES[1, 2:])]
    found = read_curves(gaps)
    assert found.shape == (2, 6)
    assert np.isnan(found.values).sum() == 4
    sparse = [(np.sort(rng.uniform(0, 100, size=n)), rng.normal(size=n)) for n in (5, 3, 4)]
    found = read_curves(sparse, units={"time": "ms"})
    assert found.shape == (3, 2, 5)
    for row, pair in zip(found.values, sparse, strict=True):
        np.testing.assert_array_equal(row[:, : len(pair[0])], pair)
        assert np.isnan(row[:, len(pair[0]) :]).all()
    assert found.attrs["units"] == ["ms", ""]


def test_units_belong_to_names():
    found = read_curves(VALUES, **NAMES, units={"ms": "milliseconds", "mV": "millivolts"})
    assert found["ms"].attrs == {"units": "milliseconds"}
    assert found.attrs == {"units": "millivolts"}
    with pytest.raises(ValueError, match=r"units: got \['s'\]; the names here are"):
        read_curves(VALUES, units={"s": "seconds"})


def test_levels_of_an_index_that_are_not_asked_for_are_no_columns():
    index = pd.MultiIndex.from_tuples([("a", 1), ("b", 1), ("c", 2)], names=["who", "trial"])
    table = pd.DataFrame(VALUES, columns=PLACES, index=index)
    found = read_curves(table, curve="who")
    np.testing.assert_array_equal(found, VALUES)
    assert found["who"].values.tolist() == ["a", "b", "c"]


def test_units_of_channels_follow_the_labels_of_the_mixture(rng):
    values = xr.DataArray(
        rng.normal(size=(5, 6, 2)),
        dims=("curve", "time", "lead"),
        coords={"time": PLACES, "lead": ["a", "b"], "lead_units": ("lead", ["N", "m"])},
    )
    mixture = TemplateMixture.for_curves(values, n_classes=1, channels={"lead": ["x", "y"]})
    assert {"x": "N", "y": "m"}.items() <= mixture.settings.units.items()
    # a coordinate of that name without channels is no unit
    one = values.isel(lead=0).assign_coords(time_units="ms")
    assert not any(TemplateMixture.for_curves(one, n_classes=1).settings.units.values())


@pytest.mark.parametrize("is_sparse", [False, True])
def test_channels_have_units_of_their_own(is_sparse, rng):
    """From a table to the plots, on one grid and on points of each curve."""
    who = np.repeat(range(30), 6)
    times = rng.uniform(0, 600, size=180) if is_sparse else np.tile(PLACES, 30)
    table = pd.DataFrame({"who": who, "ms": times, "II": rng.normal(size=180)})
    table["V1"] = 100 * table["II"]
    given = {"curve": "who", "time": "ms", "value": ["II", "V1"], "channel": "lead"}
    curves = read_curves(table, **given, units={"ms": "ms", "II": "mV", "V1": "µV"})
    if not is_sparse:
        assert curves[:5]["lead_units"].values.tolist() == ["mV", "µV"]
        assert read_curves(curves, channel="lead", time="ms").equals(curves)
    mixture = TemplateMixture.for_curves(curves, n_classes=1, n_landmarks=8, n_warp_kernels=2)
    theta = mixture.parameters
    drawn = plot_templates(theta, mixture, backend="none").viz
    titles = [each["string"] for each in np.ravel(drawn["title"]["template"])]
    assert titles == ["lead II (mV)", "lead V1 (µV)"]
    assert drawn["xlabel"]["template"].values.flat[0]["string"] == "ms (ms)"
    history = path_of(theta, rng, n=3)
    drawn = plot_template_history(history, mixture, backend="none").viz
    titles = [each["string"] for each in np.ravel(drawn["title"]["template"])]
    assert titles == ["class 0, lead II (mV)", "class 0, lead V1 (µV)"]

    found = mixture.register(curves[0], theta, draws=5, tune=5)
    assert found["aligned_mean"].sel(lead="V1")["lead_units"].item() == "µV"
    drawn = plot_registration(found.sel(lead="V1"), backend="none").viz
    assert np.ravel(drawn["ylabel"]["registration"])[0]["string"] == "lead V1 (µV)"
    with pytest.raises(ValueError, match=r"got \['V2'\]; the names here are"):
        read_curves(table, **given, units={"V2": "mV"})


def test_from_a_table_to_templates_in_three_lines(rng):
    """Curves of points of their own, with names and units to the last plot."""
    table = pd.DataFrame({"who": np.repeat(range(30), 6), "ms": rng.uniform(0, 600, size=180)})
    table["mV"] = 300 * np.sin(table.ms / 100) + 10 * rng.normal(size=180)

    curves = read_curves(table, curve="who", **NAMES, units={"mV": "10⁻³ V"})
    mixture = TemplateMixture.for_curves(curves, n_classes=1, n_landmarks=8, n_warp_kernels=2)
    em = OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(curves)

    assert em.n_seen == 30
    assert mixture.settings.own_points == 6
    assert mixture.settings.coefficients == "real"
    drawn = plot_templates(em.parameters, mixture, backend="none").viz
    assert drawn["xlabel"]["template"].item()["string"] == "ms"
    assert drawn["ylabel"]["template"].item()["string"] == "mV (10⁻³ V)"
    # one of them alone is one curve, in every door
    assert mixture.is_single(curves[0])
    assert not mixture.is_single(curves)
    assert em.partial_fit(curves[0]).n_seen == 31
    one = mixture.encode(curves[0])
    np.testing.assert_array_equal(one["own_points"], curves.values[0, 0])


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (lambda: read_curves("curves.csv"), TypeError, "table is a str; give a DataFrame"),
        (lambda: read_curves(long_table()), ValueError, "are no points; of a table with"),
        (lambda: read_curves(long_table(), value="V"), ValueError, r"got \[None, None, 'V'\]"),
        (lambda: read_curves(long_table(), value="mV"), ValueError, "curve is None; name one of"),
        (lambda: read_curves(xr.Dataset({"a": LABELED})), ValueError, "value is None; name one"),
        (lambda: read_curves(np.zeros((2, 3, 3))), ValueError, "channels cannot be told apart"),
        (lambda: read_curves(LABELED.expand_dims("lead")), ValueError, "name their dim"),
        (lambda: read_curves(LABELED, time="s"), ValueError, "give two, curves and 's'"),
        (lambda: read_curves(VALUES, points=PLACES[1:]), ValueError, "give one for each of 6"),
        (lambda: read_curves([(PLACES, VALUES[0, 1:])]), ValueError, "curve 0 has times of shape"),
        (lambda: read_curves([([1, 1], [2, 3])]), ValueError, "or two at one point; drop it"),
        (lambda: read_curves([([1.0], [np.nan])]), ValueError, "curve 0 has no value"),
        (
            lambda: read_curves([[[1, 2], [3, 4]]]),
            ValueError,
            r"as tuples, \[\(times, values\) for",
        ),
        (
            lambda: read_curves([np.array([PLACES, row]) for row in VALUES]),
            ValueError,
            r"as tuples, \[\(times, values\) for",
        ),
        (lambda: read_curves(functions(dim_domain=2)), ValueError, "functions of 2 arguments"),
    ],
)
def test_what_is_no_table_of_curves_is_refused(read, error, message):
    with pytest.raises(error, match=message):
        read()

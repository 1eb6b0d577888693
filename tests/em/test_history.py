"""Series in bounded memory, and the tree made of them."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace

import arviz as az
import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.history import ThinnedSeries
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.templates import TemplateMixture
from tests.helpers.toy_families import Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, driver


def filled(keep, until):
    series = ThinnedSeries(keep)
    for index in range(until + 1):
        series.append(index, np.array([float(index), -float(index)]))
    return series


@pytest.mark.parametrize("until", [3, 16, 17, 100, 1000])
def test_series_keeps_even_spacing_and_the_last(until):
    series = filled(16, until)
    rows = series.rows()
    assert len(series.thinned) <= 16
    assert rows.indices[0] == 0 and rows.indices[-1] == until
    assert (np.diff(rows.indices[:-1]) == series.stride).all()
    np.testing.assert_array_equal(rows.values[:, 0], rows.indices)


def test_series_forgets_what_a_broken_step_left():
    series = filled(8, 5)
    series.append(4, np.array([40.0, 0.0]))
    assert series.rows().indices.tolist() == [0, 1, 2, 3, 4]
    assert series.rows().values[-1, 0] == 40
    assert series.rows(until=2).indices.tolist() == [0, 1, 2]


def test_series_comes_back_from_its_rows():
    series = filled(16, 77)
    again = ThinnedSeries.from_rows(series.rows(), keep=16, stride=series.stride)
    for one in (series, again):
        for index in range(78, 140):
            one.append(index, np.array([float(index), 1.0]))
    np.testing.assert_array_equal(series.rows().values, again.rows().values)
    assert series.stride == again.stride


def test_rows_that_grew_are_filled_with_zeros():
    series = ThinnedSeries(8)
    series.append(1, np.array([1.0]))
    series.append(2, np.array([2.0, 5.0]))
    np.testing.assert_array_equal(series.rows().values, [[1, 0], [2, 5]])


@pytest.fixture(scope="module")
def learned():
    stream = mixture_stream(np.random.default_rng(5), 120)
    em = OnlineEM(NormalMixture(), e_step=Noisy(troubled=True), random_seed=1, progressbar=False)
    return em.partial_fit(stream)


def test_tree_has_path_and_records(learned):
    tree = learned.history
    assert isinstance(tree, xr.DataTree)
    path, records = tree["steps"], tree["observations"]
    assert path["means"].dims == ("step", "class")
    assert path["step"].values.tolist() == list(range(121))
    assert records["observation"].values.tolist() == list(range(1, 121))
    for name in ("gain", "effective_size", "acceptance", "log_evidence", "seconds"):
        assert np.isfinite(path[name].values[1:]).all()
        np.testing.assert_array_equal(path[name].values[1:], records[name].values)
    np.testing.assert_allclose(path["gain"][1:], np.arange(1, 121) ** -0.6)
    np.testing.assert_allclose(records["class_weight"].sum("class"), 1)
    assert set(records["updated"].values.tolist()) <= {0, 1}
    xr.testing.assert_identical(
        path["means"].isel(step=-1, drop=True), learned.last_parameters["means"]
    )


def test_tree_says_where_it_comes_from(learned):
    attributes = learned.history.attrs
    assert attributes["library"] == "pymc_mcoem"
    assert attributes["random_seed"] == "1"
    assert "StepSize" in attributes["settings"]
    assert attributes["version"]
    assert {"python", "pymc", "pytensor", "numba"} <= set(json.loads(attributes["versions"]))
    assert attributes["driver"] == "OnlineEM"


@dataclass(frozen=True)
class OnTorch(Noisy):
    """An E-step of somebody's own, which calls its back end what it likes."""

    backend: str = "torch"


@pytest.mark.parametrize(
    ("e_step", "backend"),
    [
        (Exact(), "numba"),
        (CarlinChibBurst(), "numba"),
        (CarlinChibBurst(backend="c"), "c"),
        (CarlinChibBurst(backend="jax"), "jax"),
        (OnTorch(), "torch"),
    ],
    ids=["exact", "default", "C", "JAX", "another's"],
)
def test_tree_says_what_computed(e_step, backend):
    em = OnlineEM(NormalMixture(), e_step=e_step, random_seed=1)
    assert em.history.attrs["backend"] == backend
    if backend == "jax" and importlib.util.find_spec("jax") is not None:
        assert "jax" in json.loads(em.history.attrs["versions"])


def test_troubles_are_counted_by_name_and_logged_once(caplog, rng):
    em = OnlineEM(NormalMixture(), e_step=Noisy(troubled=True), random_seed=1, progressbar=False)
    with caplog.at_level("WARNING", logger="pymc_mcoem"):
        em.partial_fit(mixture_stream(rng, 70))
        _ = em.parameters
    named = [record for record in caplog.records if "mode not found" in record.getMessage()]
    assert len(named) == 1
    assert "Observation 7:" in named[0].getMessage()
    counts = em.history["steps"]["troubles"].sel(trouble="mode not found")
    assert counts.values[[6, 7, 13, 14, 70]].tolist() == [0, 2, 2, 4, 20]


def test_memory_is_bounded(rng):
    em = OnlineEM(NormalMixture(), e_step=Exact(), keep=20, random_seed=1, progressbar=False)
    em.partial_fit(mixture_stream(rng, 300))
    path = em.history["steps"]
    assert path.sizes["step"] <= 21
    assert path["step"].values[-1] == 300
    xr.testing.assert_identical(path["means"].isel(step=-1, drop=True), em.last_parameters["means"])


def test_thinning_from_the_beginning(rng):
    em = OnlineEM(
        NormalMixture(), e_step=Exact(), keep=20, thin=3, random_seed=1, progressbar=False
    )
    em.partial_fit(mixture_stream(rng, 50))
    tree = em.history
    assert tree["steps"]["step"].values.tolist() == [*range(0, 50, 3), 50]
    assert tree["observations"]["observation"].values.tolist() == [*range(3, 50, 3), 50]
    em.partial_fit(mixture_stream(rng, 50))
    # more than 20 rows: every sixth from now on
    assert em.history["steps"]["step"].values.tolist() == [*range(0, 100, 6), 100]
    with pytest.raises(ValueError, match="thin: got 0"):
        OnlineEM(NormalMixture(), e_step=Exact(), thin=0)


def test_netcdf_and_back(learned, tmp_path):
    learned.history.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with xr.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as tree:
        assert tree.load().identical(learned.history)


def test_zarr_and_back(learned, tmp_path):
    pytest.importorskip("zarr")
    learned.history.to_zarr(tmp_path / "run.zarr", consolidated=False)
    with xr.open_datatree(tmp_path / "run.zarr", engine="zarr", consolidated=False) as tree:
        assert tree.load().identical(learned.history)


def test_reserved_names_are_refused():
    import pymc as pm

    family = NormalMixture()
    with family.model:
        pm.Data("gain", 1.0)
    with pytest.raises(ValueError, match=r"\['gain'\].*rename"):
        OnlineEM(family, e_step=Exact())


def test_arviz_reads_it(learned):
    summary = az.summary(learned.history, group="steps", sample_dims=["step"], kind="stats")
    assert any(name.startswith("means") for name in summary.index)
    found = az.extract(learned.history, group="steps", sample_dims=["step"], combined=False)
    assert "weights" in found


def test_kernels_have_their_centers():
    images = TemplateMixture.for_images((2, 3), n_classes=1, n_landmarks=2)
    history = OnlineEM(images, parameters=images.parameters, random_seed=1).history
    templates = history["steps"]["templates"]
    assert templates.coords["basis_column"].values.tolist() == [-1.0, 0.0, 1.0] * 2
    curves = TemplateMixture.for_curves([0, 1, 2, 3], 1, n_landmarks=5)
    np.testing.assert_allclose(
        curves.parameters["templates"].coords["basis_time"], [-1.5, 0.0, 1.5, 3.0, 4.5]
    )


def test_a_history_that_is_read_while_another_thread_skips_records():
    run = driver(NormalMixture(), parameters=THETA, on_error="skip").run
    for position in range(3):
        run.history.skip(position, "its reason")

    class Meanwhile(int):
        def __gt__(self, position):
            run.history.skip(10 + position, "of the other thread")
            return int(self) > position

    tree = run.history_at(replace(run.state, position=Meanwhile(5)))
    assert tree["skipped"]["position"].values.tolist() == [0, 1, 2]
    assert len(run.history.skipped) == 6

"""Saved runs: going on from them, and files that are refused."""

from __future__ import annotations

import json
from itertools import product

import h5py
import numpy as np
import pymc as pm
import pytensor
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.esteps.exact import Exact
from pymc_mcoem.em.family_record import describe_family, differences
from pymc_mcoem.em.fingerprint import Fingerprint
from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.em.saem import SAEM
from pymc_mcoem.em.schedules import BurstLength, StepSize, UpdateSchedule
from pymc_mcoem.runs.atomic_files import write_whole
from pymc_mcoem.templates import TemplateMixture, TemplatePriors
from tests.helpers.linear_normal import LinearNormal
from tests.helpers.properties import steady
from tests.helpers.representatives import by_default
from tests.helpers.saved_files import rewrite
from tests.helpers.toy_families import Noisy, NormalMixture, mixture_stream
from tests.helpers.toy_runs import THETA, WAYS, assert_same, driver


def restarted(em, path, **overrides):
    em.save(path)
    return OnlineEM.load(
        path, NormalMixture(), **({"e_step": Noisy(), "progressbar": False} | overrides)
    )


@pytest.mark.parametrize(
    ("way", "cut"),
    by_default(
        product(WAYS, [0, 4, 15, 33]),
        {*product(WAYS, [15]), *product(["held start, mini-batches, average"], [0, 4, 33])},
    ),
)
def test_saved_and_loaded_is_never_stopped(family, stream, tmp_path, way, cut):
    em = driver(family, **WAYS[way])
    if cut:
        em.partial_fit(stream[:cut])
    loaded = restarted(em, tmp_path / "run.nc")
    if cut:
        assert_same(loaded, em)
    loaded.partial_fit(stream[cut:])
    assert_same(loaded, driver(family, **WAYS[way]).partial_fit(stream))


def test_many_stops_and_a_thinned_history(family, stream, tmp_path):
    settings = {"keep": 8, "e_step": Noisy(troubled=True), "average_from": 3, "n_start": 11}
    em = driver(family, **settings)
    for piece in np.array_split(stream, 12):
        em = restarted(em.partial_fit(piece), tmp_path / "run.nc", e_step=Noisy(troubled=True))
    assert_same(em, driver(family, **settings).partial_fit(stream))


def test_settings_come_back(family, stream, tmp_path):
    settings = {
        "step_size": StepSize(0.7, offset=3.0, floor=0.01),
        "update_schedule": UpdateSchedule([4, 9], every=2),
        "burst_length": BurstLength(7, 3, later=((5, 9),)),
        "e_step": Exact(),
        "n_start": 6,
        "batch_size": 2,
        "average_from": 8,
        "start": "random",
        "keep": 30,
        "random_seed": [3, 2**100],
    }
    em = OnlineEM(family, **settings).partial_fit(stream[:5])
    em.save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", family)
    assert loaded.run.settings == em.run.settings
    assert loaded.run.random_seed == [3, 2**100]
    assert loaded.history.attrs == em.history.attrs


def test_settings_of_a_burst_come_back(family, tmp_path):
    OnlineEM.as_in_paper(family).save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", family)
    assert loaded.run.settings.e_step == CarlinChibBurst.as_in_paper()


def test_a_drawn_seed_is_kept(family, stream, tmp_path):
    em = driver(family, random_seed=None).partial_fit(stream[:30])
    loaded = restarted(em, tmp_path / "run.nc")
    assert_same(loaded.partial_fit(stream[30:]), em.partial_fit(stream[30:]))


def test_what_a_file_cannot_hold_is_asked_for(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    driver(family, step_size=lambda n: 1 / n).partial_fit(stream[:5]).save(path)
    with pytest.raises(ValueError, match=r"step_size: the run was saved with <function.*pass st"):
        OnlineEM.load(path, family, e_step=Noisy())
    with pytest.raises(ValueError, match=r"e_step: the run was saved with Noisy\(troubled"):
        OnlineEM.load(path, family, step_size=StepSize(1))
    with pytest.raises(TypeError, match=r"overrides: got \['random_seed'\]"):
        OnlineEM.load(path, family, random_seed=1)
    loaded = OnlineEM.load(path, family, step_size=StepSize(1), e_step=Noisy(), progressbar=False)
    assert loaded.n_seen == 5


def test_the_file_opens_as_a_history(family, stream, tmp_path):
    em = driver(family).partial_fit(stream)
    em.save(tmp_path / "run.nc")
    with xr.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as tree:
        for group in ("steps", "observations"):
            xr.testing.assert_identical(
                tree[group].to_dataset().load(), em.history[group].to_dataset()
            )


def test_statistics_named_at_will_are_stored(stream, tmp_path):
    class Odd(NormalMixture):
        def __init__(self):
            super().__init__()
            self.statistics = {"a/b c": self.statistics["value"]}

        def exact(self, data, parameters):
            found = super().exact(data, parameters)
            return {"class_weight": found["class_weight"], "a/b c": found["value"]}

        def maximize(self, statistics, *, effective_size):
            means = statistics["a/b c"] / statistics["class_weight"]
            return THETA | {"means": means}

    em = driver(Odd(), e_step=Exact(), parameters=THETA).partial_fit(stream[:20])
    em.save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", Odd(), progressbar=False)
    assert_same(loaded.partial_fit(stream[20:]), em.partial_fit(stream[20:]))


def test_observations_of_several_data_are_held_and_stored(stream, tmp_path):
    class Paired(NormalMixture):
        observation = ("value", "trust")

        def __init__(self):
            super().__init__()
            with self.model:
                pm.Data("trust", np.zeros(2))

        def initialize(self, observations, rng, start):
            assert all(set(one) == {"value", "trust"} for one in observations)
            return self.declared_parameters()

    pairs = [{"value": value, "trust": [value, 1.0]} for value in stream]
    em = driver(Paired(), e_step=Exact(), n_start=12)
    em.partial_fit(pairs[:7]).save(tmp_path / "run.nc")
    loaded = OnlineEM.load(tmp_path / "run.nc", Paired(), progressbar=False)
    assert_same(loaded.partial_fit(pairs[7:]), em.partial_fit(pairs[7:]))


def test_another_family_is_refused(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    driver(family).partial_fit(stream).save(path)

    class Other(NormalMixture):
        def __init__(self):
            super().__init__(4)
            self.statistics = {"value": self.statistics["value"]}

    with pytest.raises(ValueError, match=r"family: the run in .*run.nc'") as refusal:
        OnlineEM.load(path, Other())
    for difference in (
        "number of classes is 3 in the file, 4 here",
        "parameters means has shape [3] in the file, [4] here",
        "statistics square has shape [] in the file, None here",
        "class is NormalMixture in the file",
    ):
        assert difference in str(refusal.value)


class OtherShape(NormalMixture):
    def __init__(self):
        super().__init__()
        self.statistics["value"] = self.statistics["value"] * np.ones(2)


class OtherSpread(NormalMixture):
    def __init__(self):
        super().__init__()
        with pm.Model(coords={"class": range(3)}) as self.model:
            weights = pm.Data("weights", np.full(3, 1 / 3), dims="class")
            means = pm.Data("means", np.linspace(-2.0, 2.0, 3), dims="class")
            variance = pm.Data("noise_variance", 1.0)
            value = pm.Data("value", 0.0)
            self.class_index = pm.Categorical("class_index", p=weights)
            spread = 50.0 * variance**0.5
            pm.Normal("y", means[self.class_index], spread, observed=value)
        self.statistics = {"value": value, "square": value**2}


class OtherUnit(NormalMixture):
    def __init__(self):
        super().__init__()
        self.statistics = {**self.statistics, "value": 7.0 * self.statistics["value"]}


class OtherDensity(NormalMixture):
    def __init__(self):
        super().__init__()
        with pm.Model(coords=self.model.coords) as self.model:
            weights = pm.Data("weights", np.full(3, 1 / 3), dims="class")
            means = pm.Data("means", np.linspace(-2.0, 2.0, 3), dims="class")
            variance = pm.Data("noise_variance", 1.0)
            value = pm.Data("value", 0.0)
            self.class_index = pm.Categorical("class_index", p=weights)
            pm.Laplace("y", means[self.class_index], variance**0.5, observed=value)
        self.statistics = {"value": value, "square": value**2}


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (OtherShape, r"statistics value has shape \[\] in the file, \[2\] here"),
        (OtherDensity, "variable y is NormalRV in the file, LaplaceRV here"),
        (OtherSpread, "log-density at one and the same point is -.* in the file, -.* here"),
        (OtherUnit, "value at one and the same point is .* in the file, .* here"),
    ],
)
def test_a_family_of_the_same_names_is_refused_by_what_it_is_made_of(
    family, stream, tmp_path, other, difference
):
    other = type("NormalMixture", (other,), {"__qualname__": "NormalMixture"})
    online, batch = tmp_path / "online.nc", tmp_path / "batch.nc"
    driver(family).partial_fit(stream).save(online)
    mcoem.SAEM(family, e_step=Noisy(), progressbar=False).fit(stream, 1).save(batch)
    for driver_kind, path in ((OnlineEM, online), (mcoem.SAEM, batch)):
        with pytest.raises(ValueError, match=difference):
            driver_kind.load(path, other(), e_step=Noisy())


def test_what_the_model_holds_does_not_make_another_family(family, stream, tmp_path):
    """Nor do numbers that rounding changes, or a class index that is sampled elsewhere."""
    path = tmp_path / "run.nc"
    driver(family).partial_fit(stream).save(path)
    other = NormalMixture()
    other.set_model_parameters(THETA)
    other.model.set_data("value", 3.0)
    em = OnlineEM.load(path, other, e_step=Noisy(), progressbar=False)
    assert em.n_seen == len(stream)
    saved = describe_family(family)
    moved = {**saved, "numbers": {k: v * (1 + 1e-9) for k, v in saved["numbers"].items()}}
    assert not differences(saved, moved)
    moved = {**saved, "numbers": {k: v * (1 + 1e-3) for k, v in saved["numbers"].items()}}
    assert len(differences(saved, moved)) == 3


def test_a_family_without_numbers_is_saved_all_the_same(family, stream, tmp_path, monkeypatch):
    """As one with an operator that only a back end knows."""

    def unknown(*_):
        raise NotImplementedError("no Python implementation")

    monkeypatch.setattr("pymc_mcoem.em.fingerprint._evaluated", unknown)
    path = tmp_path / "run.nc"
    other = NormalMixture()
    driver(other).partial_fit(stream).save(path)
    assert set(describe_family(other)["numbers"].values()) == {None}
    assert OnlineEM.load(path, other, e_step=Noisy(), progressbar=False).n_seen == len(stream)
    # what was interrupted or unknown then tells nothing of the family that is given now
    monkeypatch.undo()
    known = NormalMixture()
    assert None not in describe_family(known)["numbers"].values()
    assert OnlineEM.load(path, known, e_step=Noisy(), progressbar=False).n_seen == len(stream)


@pytest.mark.parametrize("covariance", ["scaled", "diagonal", "full"])
def test_mixtures_of_templates_have_numbers_of_their_own(covariance):
    """Whatever their parameters have to be: variances, or covariance matrices."""
    ages = np.linspace(0, 1, 5)
    one = mcoem.TemplateMixture.for_curves(ages, 2, n_warp_kernels=2, covariance=covariance)
    other = mcoem.TemplateMixture.for_curves(
        ages, 2, n_warp_kernels=2, covariance=covariance, bandwidth=0.4
    )
    numbers, others = (Fingerprint().compile(each) for each in (one, other))
    assert numbers["template_gram"] != others["template_gram"]
    # of the size of sums over five points: nothing is near to where there is no density
    assert 0.1 < abs(numbers["log-density"]) < 1e3
    assert numbers["log-density"] != others["log-density"]


def test_the_adaptation_of_another_e_step_is_not_gone_on_with(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    driver(family, parameters=THETA).partial_fit(stream[:10]).save(path)
    em = OnlineEM.load(path, family, e_step=mcoem.esteps.Exact(), progressbar=False)
    em.partial_fit(stream[10:20])
    assert em.n_seen == 20
    em.save(path)
    back = OnlineEM.load(path, family, e_step=Noisy(), progressbar=False).partial_fit(stream[20:])
    assert back.n_seen == len(stream)


def test_files_that_are_no_runs_are_refused(family, stream, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing.nc'; save a run"):
        OnlineEM.load(tmp_path / "missing.nc", family)
    path = tmp_path / "other.nc"
    path.write_text("something else")
    with pytest.raises(ValueError, match=r"other.nc' does not end as saved runs do: it is none"):
        OnlineEM.load(path, family)
    write_whole(path, b"something else")
    with pytest.raises(ValueError, match=r"other.nc' is damaged: "):
        OnlineEM.load(path, family)
    xr.Dataset({"x": ("y", np.ones(3))}).to_netcdf(path, engine="h5netcdf")
    write_whole(path, path.read_bytes())
    with pytest.raises(ValueError, match="is no saved run of OnlineEM; give a file that `save`"):
        OnlineEM.load(path, family)


def test_damaged_files_are_refused(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    driver(family).partial_fit(stream).save(path)
    whole = path.read_bytes()

    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"does not end as saved runs do.* was cut short"):
        OnlineEM.load(path, family)

    path.write_bytes(whole)
    rewrite(path, format_version=10)
    with pytest.raises(ValueError, match="format version 10, this is for 11; load it with pymc_mc"):
        OnlineEM.load(path, family)


@steady(40)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.none() | st.integers(0, 7))
def test_cut_short_or_a_bit_turned_it_is_refused_or_the_same(whole_run, place, bit):
    path, whole, em = whole_run
    at = int(place * len(whole))
    spoilt = bytearray(whole)
    if bit is None:
        del spoilt[at:]
    else:
        spoilt[at] ^= 1 << bit
    path.write_bytes(spoilt)
    try:
        found = OnlineEM.load(path, NormalMixture(), e_step=Noisy(), progressbar=False)
    except ValueError:
        return
    assert bit is not None
    assert_same(found, em)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("spoilt") / "run.nc"
    values = mixture_stream(np.random.default_rng(1), 31)
    em = driver(NormalMixture(), n_start=10, batch_size=4, average_from=20).partial_fit(values)
    em.save(path)
    return path, path.read_bytes(), em


def test_a_file_names_no_code(family, stream, tmp_path):
    path = tmp_path / "run.nc"
    driver(family, e_step=Exact()).partial_fit(stream).save(path)
    for name in (
        "subprocess:Popen",
        "pymc_mcoem.runs.settings:importlib",
        "os:system",
        "pymc_mcoem",
    ):
        with h5py.File(path, "r") as file:
            settings = json.loads(file.attrs["settings"])
        settings["e_step"] = {"class": name, "fields": {}}
        rewrite(path, settings=json.dumps(settings))
        with pytest.raises(ValueError, match="none of pymc_mcoem's settings"):
            OnlineEM.load(path, family)


def small_mixture(**options):
    return TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2, **options)


@pytest.fixture(scope="module")
def saved_mixture(tmp_path_factory):
    """Return the file of a run of `small_mixture`, which another one made alike can load."""
    mixture, path = small_mixture(), tmp_path_factory.mktemp("mixture") / "run.nc"
    em = OnlineEM(mixture, parameters=mixture.parameters, random_seed=1, progressbar=False)
    em.save(path)
    assert OnlineEM.load(path, small_mixture()).n_seen == 0
    return path


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"rigid_variance": 0.3}, "deformation"),
        ({"landmark_correlation": 0.1}, "deformation"),
        ({"priors": TemplatePriors(noise_rate=0.5)}, "priors"),
        ({"noise_correlation": np.eye(9)}, "noise_correlation"),
        ({"scale": (2.0, 2.0)}, "scale"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mixture_made_otherwise_is_refused(saved_mixture, options, what):
    with pytest.raises(ValueError, match=rf"of another family: .*{what} .* in the file, .* here"):
        OnlineEM.load(saved_mixture, small_mixture(**options))


def test_folders_and_what_is_no_name_are_refused(tmp_path):
    em = driver(NormalMixture(), parameters=THETA)
    for act in (em.save, lambda path: OnlineEM.load(path, NormalMixture())):
        with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
            act(tmp_path)
        with pytest.raises(TypeError, match="path: got None; give the name of a file"):
            act(None)


LABELS = {
    "dates": np.array(["2024-01-01", "2024-02-01", "2025-03-01"], dtype="datetime64[D]"),
    "words": ["ä", "", "a b"],
    "truth": [True, False, True],
    "numbers": [0.5, 1.5, np.inf],
}


@pytest.mark.parametrize("kind", LABELS)
def test_runs_of_classes_with_any_labels_are_read_again(stream, tmp_path, kind):
    class Labeled(NormalMixture):
        def __init__(self):
            super().__init__()
            self.model._coords["class"] = tuple(LABELS[kind])

    em = driver(Labeled()).partial_fit(stream)
    em.save(tmp_path / "run.nc")
    found = OnlineEM.load(tmp_path / "run.nc", Labeled(), e_step=Noisy(), progressbar=False)
    assert found.parameters.identical(em.parameters)


@pytest.mark.parametrize("kind", [OnlineEM, SAEM])
def test_a_run_goes_on_with_the_back_end_that_it_used(kind, tmp_path):
    family, path = LinearNormal(), tmp_path / "run.nc"
    options = {"parameters": family.declared_parameters(), "random_seed": 1, "progressbar": False}
    kind(family, e_step=CarlinChibBurst(), **options).save(path)

    def backend(**overrides):
        history = kind.load(path, family, **overrides).history
        return json.loads(history.attrs["settings"])["e_step"]["fields"]["backend"]

    # where it is PyTensor's default, to the same digits
    assert backend() is None
    with pytensor.config.change_flags(mode="CVM"):
        assert backend() == "numba"
        assert backend(e_step=CarlinChibBurst(rao_blackwell=True)) == "numba"
        assert backend(e_step=CarlinChibBurst(backend="c")) == "c"
        assert kind.load(path, family).history.attrs["backend"] == "numba"
        kind(family, e_step=CarlinChibBurst(), **options).save(path)
        assert backend() is None
    assert backend() == "c"

"""What the base class does for a family of one's own."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from pymc_mcoem.carlin_chib.pseudo_priors.pilot_moments import PilotMoments
from pymc_mcoem.em.checks import check_family
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.family import Family
from pymc_mcoem.runs.codec import NotStored, decode_settings, encode_settings, stored_alike
from tests.helpers.toy_families import NormalMixture


class Curves(Family):
    """Curves of three points; dims are not named, and one parameter is no class's own."""

    observation = ("curve",)

    def __init__(self, n_points=3):
        with pm.Model() as self.model:
            odds = pm.Data("odds", [1.0, 3.0])
            levels = pm.Data("levels", np.zeros((2, n_points)))
            pm.Data("shared", np.zeros((n_points, 2)))
            curve = pm.Data("curve", np.zeros(n_points))
            self.class_index = pm.Categorical("class_index", p=odds / odds.sum())
            height = pm.Normal("height")
            pm.Normal("y", levels[self.class_index] + height, observed=curve)
        self.statistics = {"curve": curve}

    def maximize(self, statistics, *, effective_size):
        return self.model_parameters()


@pytest.fixture(scope="module")
def curves():
    return Curves()


def test_names(curves):
    check_family(curves)
    assert curves.parameter_names == ("odds", "levels", "shared")
    assert curves.n_classes == 2
    assert [variable.name for variable in curves.latents] == ["height"]
    assert curves.weight_parameters == ("odds",)
    assert curves.class_parameters == ("levels",)
    assert curves.class_dim == "class"


def test_hints_beside_the_geometry_are_refused():
    """They would be ignored: searches read the geometry alone."""
    with pytest.raises(TypeError, match=r"Own\.starts: hints about the latents belong in"):

        class Own(Family):
            starts = np.zeros((1, 2))

    with pytest.raises(TypeError, match=r"Family\.prior_covariance: .* set geometry = Latent"):
        Family().prior_covariance = np.eye(2)


def test_names_with_dims():
    with pm.Model(coords={"kind": ["a", "b"], "side": [0, 1]}) as model:
        weights = pm.Data("weights", [0.5, 0.5], dims="kind")
        pm.Data("levels", np.zeros((2, 2)), dims=("kind", "side"))
        pm.Data("square", np.zeros((2, 2)), dims=("side", "kind"))
        index = pm.Categorical("class_index", p=weights)
    family = Family()
    family.model, family.class_index, family.observation = model, index, ()
    assert family.class_parameters == ("levels",)
    assert family.class_dim == "kind"


@pytest.mark.parametrize(
    ("observations", "n"),
    [
        (np.zeros(3), 1),
        (np.zeros((4, 3)), 4),
        (np.zeros((0, 3)), 0),
        (xr.DataArray(np.zeros((4, 3)), dims=("n", "age")), 4),
        (xr.DataArray(np.zeros(3)), 1),
        ([np.zeros(3), np.zeros(3)], 2),
        ({"curve": np.zeros(3)}, 1),
    ],
)
def test_iterate(curves, observations, n):
    found = list(curves.iterate(observations))
    assert len(found) == n
    for one in found:
        np.testing.assert_array_equal(curves.encode(one)["curve"], np.zeros(3))


def test_arrays_that_are_kept_as_they_are(curves):
    masked = np.ma.masked_array(np.zeros((2, 3)), mask=[[0, 0, 1], [0, 0, 0]])
    first, second = curves.iterate(masked)
    with pytest.raises(ValueError, match=r"curve has 1 masked values.*drop the observation"):
        curves.encode(first)
    curves.encode(second)


def test_encode_is_float64_and_a_copy(curves):
    given = np.arange(3, dtype=np.float32)
    encoded = curves.encode(given)["curve"]
    assert encoded.dtype == np.float64
    encoded[0] = 9
    assert given[0] == 0


def test_declared_parameters_survive_a_driver():
    family = NormalMixture()
    before = family.declared_parameters()
    family.set_model_parameters(before | {"means": np.array([7.0, 8.0, 9.0])})
    np.testing.assert_array_equal(family.model["means"].get_value(), [7, 8, 9])
    np.testing.assert_array_equal(family.declared_parameters()["means"], before["means"])
    assert family.initialize([], np.random.default_rng(0), "random").keys() == before.keys()


def test_check_parameters_takes_what_to_dataset_gives(curves):
    parameters = curves.model_parameters()
    dataset = curves.to_dataset(parameters)
    assert dataset["levels"].dims == ("levels_dim_0", "levels_dim_1")
    for name, value in curves.check_parameters(dataset).items():
        np.testing.assert_array_equal(value, parameters[name])


def test_ready_asks_for_one_observation(curves):
    ready = curves.ready({"class_weight": np.array([0.1, 0.9])}, effective_size=10.0)
    assert ready.tolist() == [True, True]
    ready = curves.ready({"class_weight": np.array([0.05, 0.95])}, effective_size=10.0)
    assert ready.tolist() == [False, True]


def changed(**attributes):
    family = Curves()
    for name, value in attributes.items():
        setattr(family, name, value)
    return family


@pytest.mark.parametrize(
    ("given", "name"),
    [(Curves, "the class Curves"), (Curves().model, "a Model"), (np.zeros(3), "a ndarray")],
)
def test_what_is_no_family_is_refused(given, name):
    with pytest.raises(TypeError, match=f"family: got {name}; give a mixture, as TemplateMixture"):
        check_family(given)


def test_incomplete_families_are_refused():
    with pytest.raises(TypeError, match="family: Family has no model; set it"):
        check_family(Family())
    with pytest.raises(TypeError, match="family: Closed has no maximize; define maximize"):
        check_family(type("Closed", (Curves,), {"maximize": Family.maximize})())
    with pytest.raises(TypeError, match=r"give a tuple of names, \('curve',\)"):
        check_family(changed(observation="curve"))
    with pytest.raises(ValueError, match=r"Curves names \('image',\); name pm.Data of the model"):
        check_family(changed(observation=("image",)))
    with pytest.raises(ValueError, match=r"observation: Curves names \(\)"):
        check_family(changed(observation=()))
    with pytest.raises(ValueError, match=r"class_index: Curves gives .* no free variable"):
        check_family(changed(class_index=Curves().class_index))
    with pytest.raises(ValueError, match="'class_weight', which is reserved"):
        check_family(changed(statistics={"class_weight": 1}))
    family = Curves()
    with family.model:
        pm.Data("count", np.array([1, 2]))
    with pytest.raises(TypeError, match=r"count of Curves has dtype int.*declare its pm.Data with"):
        check_family(family)


def test_methods_that_are_missing_say_so(curves):
    with pytest.raises(TypeError, match="Family has no maximize: define"):
        Family().maximize({}, effective_size=1)
    with pytest.raises(TypeError, match="Curves has no closed-form E-step: define exact"):
        curves.exact({}, {})


def test_settings_as_text():
    given = {
        "none": None,
        "numbers": [1, 0.1 + 0.2, True, np.float64(0.3), np.int64(2)],
        "pairs": ((1, 2.5), ("a",)),
        "named": {"a": (1,)},
        "array": np.array([1.5, 2.5]),
        "function": len,
    }
    found = decode_settings(encode_settings(given))
    assert isinstance(found["function"], NotStored)
    np.testing.assert_array_equal(found.pop("array"), given.pop("array"))
    assert {name: found[name] for name in found if name != "function"} == {
        name: given[name] for name in given if name != "function"
    }
    with pytest.raises(ValueError, match="settings: got the text"):
        decode_settings("[1]")


def test_settings_are_found_by_their_public_name():
    settings = {"pseudo_priors": PilotMoments(n_steps=50)}
    text = encode_settings(settings)
    # the name that does not depend on modules
    assert '"pymc_mcoem.pseudo_priors:PilotMoments"' in text
    assert decode_settings(text) == settings
    assert stored_alike(text, settings, "pseudo_priors")
    assert not stored_alike(text, {"pseudo_priors": PilotMoments(n_steps=51)}, "pseudo_priors")
    with pytest.raises(ValueError, match="none of pymc_mcoem's settings"):
        decode_settings(text.replace("PilotMoments", "Moments"))
    # of what cannot be stored the text says what it says, in containers too
    burst = CarlinChibBurst(pseudo_priors=NotStored("a rule of one's own"))
    within = {"both": (PilotMoments(), burst), "listed": [{"fields": 1}]}
    for name in within:
        assert stored_alike(encode_settings(within), within, name)

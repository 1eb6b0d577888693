"""Which variable of a model is its class index, and which are refused."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_mcoem.density.class_density import ClassDensity
from pymc_mcoem.density.class_index import find_class_index, require_class_index
from tests.helpers.models import SkewedMixture

pytestmark = pytest.mark.usefixtures("without_compiler")


def test_the_number_of_classes_is_known_of_random_probabilities():
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(5))
        k = pm.Categorical("k", weights)
        x = pm.Normal("x", 1.0 * k, 1.0)
    assert ClassDensity(model, k, [x]).n_classes == 5


def test_the_class_index_is_found():
    family = SkewedMixture()
    assert find_class_index(family.model) is family.class_index


def test_no_class_index():
    with pm.Model() as model:
        pm.Poisson("count", 0.5)
    with pytest.raises(ValueError, match=r"0 Categorical .* the discrete variables \['count'\]"):
        find_class_index(model)


@pytest.mark.parametrize("data", [pm.Data, lambda name, value: pm.Normal(name, shape=len(value))])
def test_an_index_beyond_an_array_is_refused(data):
    """Compiled code would read past its end, or stop without a word of the model."""
    with pm.Model() as model:
        means = data("means", np.zeros(2))
        k = pm.Categorical("k", [0.2, 0.3, 0.5])
        plate = pm.Categorical("plate", [0.2, 0.3, 0.5], shape=4)
        pm.Normal("x", means[k])
        pm.Normal("rows", means[plate])
    for index in (k, plate):
        with pytest.raises(ValueError, match=r"3 classes, and picks from means of shape \(2,\)"):
            require_class_index(model, index)


def test_no_latents_but_discrete_ones():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5])
        pm.Poisson("count", 1.0 + k)
    with pytest.raises(ValueError, match=r"\(\['count'\] are discrete, and cannot\)"):
        ClassDensity(model, k, []).require_latents()


def test_an_observed_index_is_refused_by_name():
    with pm.Model() as model:
        k = pm.Categorical("k", [0.5, 0.5], observed=1)
        pm.Normal("x", k)
    with pytest.raises(ValueError, match=r"\['k'\] are observed.*leave out the step, or observed="):
        find_class_index(model)
    with pytest.raises(ValueError, match=r"k is observed.*leave out the step, or observed="):
        require_class_index(model, k)


def test_a_bernoulli_variable_is_an_index_where_there_is_no_other():
    with pm.Model() as model:
        b = pm.Bernoulli("b", 0.2)
        x = pm.Normal("x", 3.0 * b, 1.0)
    assert find_class_index(model) is b
    density = ClassDensity(model, b, [x])
    assert density.n_classes == 2
    expected = [np.log(p) + stats.norm(3.0 * j, 1.0).logpdf(0.7) for j, p in enumerate([0.8, 0.2])]
    found = [float(density.log_density(j, [0.7]).eval()) for j in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    with model:
        k = pm.Categorical("k", [0.5, 0.5])
    assert find_class_index(model) is k


def test_several_class_indices():
    with pm.Model() as model:
        pm.Categorical("a", [0.5, 0.5])
        pm.Categorical("b", [0.5, 0.5])
    with pytest.raises(
        ValueError, match=r"\['a', 'b'\]\); .*step=\[CarlinChib\(\[a, .*join_indices"
    ):
        find_class_index(model)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("several", "class_index: several has 1 axes"),
        ("y", "class_index: y is observed"),
        ("twice", "class_index: twice is not a free variable"),
        ("x", "class_index: x is normal, not Categorical or Bernoulli"),
        ("count", "class_index: count is poisson, not Categorical .* Declare it as"),
    ],
)
def test_a_class_index_that_is_none(index, message):
    with pm.Model() as model:
        pm.Categorical("several", [0.5, 0.5], shape=3)
        pm.Poisson("count", 0.5)
        x = pm.Normal("x")
        pm.Categorical("y", [0.5, 0.5], observed=1)
        pm.Deterministic("twice", 2 * x)
    with pytest.raises(ValueError, match=message):
        ClassDensity(model, model[index], [x])

"""Several class indices as one: the same density, and what is refused."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_mcoem.density.joint_index import join_indices

pytestmark = pytest.mark.usefixtures("without_compiler")


def three_indices() -> pm.Model:
    """Indices of 2, 3 and 2 classes; the last depends on the first two, and on a variable."""
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        level = pm.Beta("level", 2.0, 3.0)
        a = pm.Bernoulli("a", level)
        b = pm.Categorical("b", [0.5, 0.3, 0.2])
        table = rng.dirichlet([1.0, 2.0], size=(2, 3))
        mixed = pm.Deterministic("mixed", pt.as_tensor(table)[a, b] * level + (1 - level) / 2)
        c = pm.Categorical("c", mixed)
        x = pm.Normal("x", a - 2.0 * b + 3.0 * c, 1.0)
        pm.Normal("y", x, 1.0, observed=0.4)
    return model


def plate() -> pm.Model:
    with pm.Model(coords={"row": range(3)}) as model:
        a = pm.Categorical("a", [0.2, 0.3, 0.5], dims="row")
        b = pm.Bernoulli("b", pt.as_tensor([0.2, 0.5, 0.9])[a], dims="row")
        x = pm.Normal("x", a - b, 1.0, dims="row")
        pm.Normal("y", x, 1.0, observed=[1.0, 2.0, 0.0], dims="row")
    return model


@pytest.mark.parametrize("chosen", [None, ["b", "c"], ["c", "a"]])
def test_the_density_is_that_of_the_model_at_every_combination(chosen):
    model = three_indices()
    joint = join_indices(model, chosen)
    names = ["a", "b", "c"] if chosen is None else sorted(chosen)
    counts = {"a": 2, "b": 3, "c": 2}
    before, after = model.compile_logp(), joint.compile_logp()
    start = model.initial_point()
    start["x"] = np.array(0.7)
    for values in np.ndindex(*counts.values()):
        point = {**start, **{k: np.array(v) for k, v in zip(counts, values, strict=True)}}
        code = np.ravel_multi_index([point[k] for k in names], [counts[k] for k in names])
        moved = {k: v for k, v in point.items() if k not in names}
        assert after({**moved, "_".join(names): code}) == pytest.approx(before(point), rel=1e-12)


def test_the_indices_stay_in_the_trace():
    joint = join_indices(three_indices(), name="all")
    drawn = pm.draw([joint[name] for name in ("all", "a", "b", "c")], draws=50, random_seed=1)
    np.testing.assert_array_equal(drawn[0], np.ravel_multi_index(drawn[1:], (2, 3, 2)))


def test_rows_of_a_plate(rng):
    model = plate()
    joint = join_indices(model)
    assert joint.named_vars_to_dims["a_b"] == ("row",)
    before, after = model.compile_logp(), joint.compile_logp()
    x = rng.standard_normal(3)
    for _ in range(20):
        a, b = rng.integers(3, size=3), rng.integers(2, size=3)
        expected = before({"a": a, "b": b, "x": x})
        assert after({"a_b": 2 * a + b, "x": x}) == pytest.approx(expected, rel=1e-12)


def test_the_model_is_left_as_it_is():
    model = three_indices()
    names = [variable.name for variable in model.free_RVs]
    join_indices(model)
    assert [variable.name for variable in model.free_RVs] == names


def test_an_index_that_depends_on_another_through_a_variable_is_refused():
    with pm.Model() as model:
        a = pm.Categorical("a", [0.5, 0.5])
        x = pm.Normal("x", a)
        pm.Bernoulli("b", pm.math.sigmoid(x))
    with pytest.raises(ValueError, match="probabilities of b depend on another of them through x"):
        join_indices(model)


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ValueError, match=r"indices: got \['q'\], and the model has"):
        join_indices(three_indices(), ["a", "q"])
    with pytest.raises(ValueError, match="give a list of two or more"):
        join_indices(three_indices(), "a")
    with pytest.raises(ValueError, match=r"got \['a'\]; there must be two or more"):
        join_indices(three_indices(), ["a"])
    with pytest.raises(ValueError, match="x is normal, not Categorical"):
        join_indices(three_indices(), ["a", "x"])
    with pytest.raises(ValueError, match="has a variable 'x' already"):
        join_indices(three_indices(), name="x")
    model = three_indices()
    with model:
        pm.Categorical("d", np.ones(90) / 90)
    with pytest.raises(ValueError, match="1080 joint classes, more than 1024"):
        join_indices(model)
    with model:
        pm.Bernoulli("e", 0.5, shape=2)
    with pytest.raises(ValueError, match="their shapes differ"):
        join_indices(model, ["a", "e"])
    with pm.Model() as with_start:
        pm.Bernoulli("a", 0.5, initval=1)
        pm.Bernoulli("b", 0.5)
    with pytest.raises(ValueError, match=r"initial values, as \['a'\] have"):
        join_indices(with_start)

"""Whatever is given as an observation: finite float64 comes of it, or an error that says why.

Missing points are NaN, or masked, for families that allow for them. A record whose points are all
missing is refused by name: it says nothing about classes or templates, and learning it would
blend the prior into them.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pymc_mcoem as mcoem
from pymc_mcoem.validation import LARGEST
from tests.helpers.sources import N_POINTS, Levels

IMAGE = (2, 3)
GRID = np.linspace(0.0, 1.0, 6)
MOST = 8
PROPERTIES = settings(max_examples=300, deadline=None, derandomize=True)


@cache
def images():
    return mcoem.TemplateMixture.for_images(IMAGE, n_classes=2, n_landmarks=2)


@cache
def own_points():
    return mcoem.TemplateMixture.for_curves(GRID, n_classes=1, own_points=MOST, coefficients="real")


@cache
def levels():
    return Levels()


REAL = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    st.just(np.dtype(np.longdouble)),
)
OTHER = st.one_of(
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    st.just(np.dtype([("a", float)])),
    st.just(np.dtype(object)),
)


def shapes(*likely):
    return st.one_of(st.sampled_from(likely), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))


def arrays(*likely):
    """Arrays of any dtype and shape, the right ones often, masked or not."""

    def one(dtype):
        elements = st.integers(0, 3) if dtype.kind == "O" else None
        return shapes(*likely).flatmap(lambda shape: hnp.arrays(dtype, shape, elements=elements))

    def masked(array):
        masks = hnp.arrays(bool, array.shape)
        return st.one_of(st.just(array), masks.map(lambda mask: np.ma.masked_array(array, mask)))

    return st.one_of(REAL, REAL, OTHER).flatmap(one).flatmap(masked)


def in_float64(array):
    """Return the values with NaN where they are missing; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return np.array(np.ma.asanyarray(array).astype(np.float64).filled(np.nan))


def encoded_or_refused(family, observation):
    """Return what comes of an observation, None where it is refused as it should be."""
    try:
        encoded = family.encode(observation)
    except (TypeError, ValueError) as error:
        assert str(error).startswith("observation"), error
        assert len(str(error)) > len("observation") + 10
        return None
    for values in encoded.values():
        assert type(values) is np.ndarray
        assert values.dtype == np.float64
        assert np.isfinite(values).all()
    return encoded


@PROPERTIES
@given(arrays(IMAGE))
def test_images(array):
    encoded = encoded_or_refused(images(), array)
    real = array.dtype.kind in "biuf"
    values = in_float64(array) if real else None
    right = real and array.shape == IMAGE
    right = right and not np.isnan(values).all() and not (np.abs(values) > LARGEST).any()
    event("accepted" if right else "refused")
    assert (encoded is not None) == right
    if right:
        present = ~np.isnan(values)
        np.testing.assert_array_equal(encoded["observed_mask"], present)
        np.testing.assert_array_equal(encoded["observed_values"], np.where(present, values, 0))
        # what encode returned is an observation too
        again = images().encode(encoded)
        for name in encoded:
            np.testing.assert_array_equal(again[name], encoded[name])


@PROPERTIES
@given(arrays((N_POINTS,)))
def test_a_family_without_missing_points(array):
    encoded = encoded_or_refused(levels(), array)
    right = array.dtype.kind in "biuf" and array.shape == (N_POINTS,)
    right = right and bool((np.abs(in_float64(array)) <= LARGEST).all())
    event("accepted" if right else "refused")
    assert (encoded is not None) == right
    if right:
        np.testing.assert_array_equal(encoded["curve"], in_float64(array))


@PROPERTIES
@given(
    st.one_of(
        arrays((2, 5), GRID.shape),
        hnp.arrays(float, (2, 5), elements=st.floats(0, 1), unique=True).map(
            lambda pairs: np.stack([np.sort(pairs[0]), pairs[1]])
        ),
        st.tuples(
            st.lists(st.floats(0, 1), max_size=MOST + 1).map(sorted),
            st.lists(st.floats(), max_size=MOST + 1),
        ),
        st.fixed_dictionaries(
            {"points": arrays((5,)), "values": arrays((5,))}, optional={"extra": st.none()}
        ),
    )
)
@example({"points": np.array([-1.0]), "values": np.array([0.0])})  # where no warp is defined
def test_points_of_their_own(observation):
    encoded = encoded_or_refused(own_points(), observation)
    event("refused" if encoded is None else "accepted")
    if encoded is not None:
        assert {name: value.shape for name, value in encoded.items()} == {
            "observed_values": (MOST,),
            "observed_mask": (MOST,),
            "own_points": (MOST,),
        }
        n = int(encoded["observed_mask"].sum())
        assert n >= 1
        assert (np.diff(encoded["own_points"][:n]) > 0).all()
        again = own_points().encode(encoded)
        np.testing.assert_array_equal(again["observed_values"], encoded["observed_values"])


ANYTHING = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=3),
        st.complex_numbers(),
        arrays(IMAGE, (N_POINTS,)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(
            st.sampled_from(["curve", "observed_values", "observed_mask", "points", "values"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)


@PROPERTIES
@given(ANYTHING)
def test_anything_at_all(thing):
    for family in (images(), levels(), own_points()):
        event(f"{encoded_or_refused(family, thing) is not None}")


@pytest.mark.parametrize(
    ("observation", "kind", "message"),
    [
        (np.full(IMAGE, np.nan), ValueError, r"all its points missing \(NaN\); leave it out"),
        (np.ma.masked_all(IMAGE), ValueError, "all its points missing"),
        (np.full(IMAGE, np.inf), ValueError, "6 infinite values; mark missing points with NaN"),
        (np.full(IMAGE, np.longdouble("1e400")), ValueError, "6 infinite values"),
        (np.ones((3, 3)), ValueError, r"shape \(3, 3\), the mixture expects \(2, 3\); resize it"),
        (np.ones((3, 2)), ValueError, r"\(2, 3\); transpose it"),
        (np.ones((5, 6)), ValueError, r"give flat ones as observations\.reshape\(-1, 2, 3\)\."),
        (np.ones((2, 3, 4)), ValueError, r"give one of its channels, observations\[\.\.\., 0\]"),
        (np.ones(IMAGE, complex), TypeError, "dtype complex128; convert it to real numbers"),
        (np.ones(IMAGE, object), TypeError, "dtype object"),
        (np.full(IMAGE, "1"), TypeError, "dtype <U1"),
        ([[1.0, 2.0], [3.0]], ValueError, "is a list that makes no array of numbers"),
        (
            {"observed_values": np.ones(IMAGE), "observed_mask": np.ones(3)},
            ValueError,
            r"observed_values has shape \(2, 3\) and observed_mask \(3,\); give one entry",
        ),
    ],
)
def test_what_is_wrong_is_named(observation, kind, message):
    with pytest.raises(kind, match=f"^observation.*{message}"):
        images().encode(observation)


def test_what_is_masked_may_be_anything():
    values = np.ma.masked_array(
        [[np.inf, 1.0, 2.0], [3.0, np.nan, 5.0]], mask=[[1, 0, 0], [0, 0, 0]]
    )
    encoded = images().encode(values)
    np.testing.assert_array_equal(encoded["observed_values"], [[0, 1, 2], [3, 0, 5]])
    np.testing.assert_array_equal(encoded["observed_mask"], [[0, 1, 1], [1, 0, 1]])

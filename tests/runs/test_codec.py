"""States of runs as datasets, and back with the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pymc_mcoem.em.contributions import Contribution
from pymc_mcoem.em.run_state import OnlineState, Pending
from pymc_mcoem.runs.atomic_files import write_whole
from pymc_mcoem.runs.codec import STRUCTURE, dataset_of, value_in
from pymc_mcoem.runs.datatree_files import bytes_of, read_datatree
from tests.helpers.properties import steady

DTYPES = [np.dtype(name) for name in ("f8", "f4", "i8", "u1", "i4", "?")]
ARRAYS = hnp.arrays(
    st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ARRAYS
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=3)
        | st.builds(Pending, observation=ARRAYS, position=st.integers(0, 2**70))
    ),
    max_leaves=8,
)


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Pending):
        return same(vars(one), vars(other))
    return one == other or repr(one) == repr(other)


@steady(60)
@given(value=VALUES)
def test_every_value_comes_back_with_the_same_bits(value):
    assert same(value_in(dataset_of(value)), value)


def test_a_state_comes_back_from_a_file(tmp_path, rng):
    state = OnlineState(
        parameters={"a/b c": rng.normal(size=(2, 3)), "scalar": np.array(np.nan)},
        pending=(Pending(np.array([-0.0, np.inf]), 7), Pending({"x": np.zeros(0)}, 2**40)),
        inverse_effective_size=0.1 + 0.2,
        troubles={"mode not found": 3},
    )
    root = xr.Dataset(attrs={"format": "x", "format_version": 1})
    tree = xr.DataTree.from_dict({"/": root, "/run": dataset_of(state)})
    write_whole(tmp_path / "run.nc", bytes_of(tree))
    found = value_in(read_datatree(tmp_path / "run.nc", "X", "x", 1)["run"].to_dataset())
    for name, value in vars(state).items():
        if name != "pending":
            assert same(getattr(found, name), value)
    assert all(map(same, found.pending, state.pending))


def test_the_number_of_variables_does_not_grow_with_the_run(rng):
    parts = tuple(Contribution(np.arange(2), {"s": rng.normal(size=(2, 4))}) for _ in range(50))
    assert set(dataset_of(parts).data_vars) == {STRUCTURE, "int64", "float64"}


@pytest.mark.parametrize("dtype", ["S1", "f8", "i4"])
def test_numbers_of_another_type_are_refused(dtype):
    damaged = dataset_of({"count": np.arange(3)})
    damaged["int64"] = damaged["int64"].astype(dtype)
    with pytest.raises(ValueError, match=r"state: got .* where int64 is expected"):
        value_in(damaged)


@pytest.mark.parametrize("name", ["os:system", "pymc_mcoem.runs.codec:json", "pymc_mcoem:nothing"])
def test_no_code_is_found_by_its_name(name):
    text = json.dumps({"class": name, "fields": {}}).encode()
    dataset = xr.Dataset({STRUCTURE: ("n", np.frombuffer(text, np.uint8))})
    with pytest.raises(ValueError, match="is none of pymc_mcoem's settings"):
        value_in(dataset)

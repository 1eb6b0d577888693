"""Chains with an equalized posterior: every summary is of the model's posterior, weighed back."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.density.class_index import index_key
from pymc_mcoem.diagnostics import class_index_summary, class_latents, read_chains
from tests.helpers.toy_carlin_chib import toy_carlin_chib

EVIDENCE = np.array([0.66, 0.33, 0.01])
#: Of each chain: nearly even visits, and not quite.
EQUALIZING = np.array([[-1.4, -0.7, 2.8], [-1.2, -0.8, 2.4], [-1.5, -0.5, 3.0]])


@pytest.fixture
def tree(rng):
    evidence = EVIDENCE * np.exp(EQUALIZING)
    codes, log_weight, latent, _ = toy_carlin_chib(
        rng, 3, 4_000, evidence, np.zeros(3), np.full(3, 1.1)
    )
    active = np.take_along_axis(latent, codes[..., None], axis=-1)[..., 0]
    equalizing = np.empty(codes.shape, dtype=object)
    for chain, draw in np.ndindex(codes.shape):
        equalizing[chain, draw] = EQUALIZING[chain]
    dims = ("chain", "draw")
    posterior = xr.Dataset({"class_index": (dims, codes), "x": (dims, active)})
    key = np.full(codes.shape, index_key("class_index"))
    importance = -np.take_along_axis(
        np.stack(equalizing.ravel()).reshape(*codes.shape, 3), codes[..., None], -1
    )
    stats = xr.Dataset(
        {
            "class_of": (dims, key),
            "class_log_weight": ((*dims, "class"), log_weight),
            "class_equalizing_of": (dims, key),
            "class_equalizing_log_weight": (dims, equalizing),
            "class_log_importance": (dims, importance[..., 0]),
        }
    )
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})


def test_draws_are_weighed_by_the_equalizing_weights_of_their_chain(tree):
    chains = read_chains(tree)
    codes = tree["posterior"]["class_index"].values
    for chain in range(3):
        expected = np.exp(-EQUALIZING[chain][codes[chain]])
        np.testing.assert_allclose(chains.weights[chain], expected / expected.mean(), rtol=1e-12)
    visits = np.bincount(codes.ravel()) / codes.size
    assert visits.min() > 0.15  # what is not weighed back would be far off


def test_shares_and_weights_are_those_of_the_model(tree):
    summary = class_index_summary(tree)
    assert summary.ok
    table = summary.table
    for value, error in (("share", "mcse"), ("weight", "weight_mcse")):
        z = (table[value] - EVIDENCE) / table[error]
        assert np.abs(z).max() < 5, value
        assert (table[error] > 0).all()
    # draws of the rare class are many: its share is known better than by as many plain draws
    n = tree["posterior"]["class_index"].size
    assert table["mcse"][2] < 0.5 * np.sqrt(EVIDENCE[2] * (1 - EVIDENCE[2]) / n)
    assert table["rhat"].max() < 1.01
    assert "stationary" not in table
    assert any("by class_equalizing_log_weight" in note for note in summary.notes)
    assert "class_equalizing_log_weight" in repr(summary)


def test_statistics_named_as_in_earlier_versions_are_refused(tree):
    """They would be overlooked, and shares would be those of the chains."""
    older = tree["sample_stats"].to_dataset()
    tree["sample_stats"] = older.rename(class_equalizing_log_weight="class_tilt")
    with pytest.raises(ValueError, match="data: its sample statistics name class_tilt as earlier"):
        class_index_summary(tree)


def test_without_weighing_back_the_summary_is_of_the_equalized_posterior(tree):
    plain = tree.copy()
    plain["sample_stats"] = plain["sample_stats"].to_dataset()[["class_of", "class_log_weight"]]
    with pytest.warns(UserWarning, match="chains differ"):
        table = class_index_summary(plain).table
    assert np.abs((table["share"] - EVIDENCE) / table["mcse"]).max() > 20


def test_latents_given_their_class_are_as_they_are(tree):
    found = class_latents(tree)
    shares = class_index_summary(tree).table["share"]
    np.testing.assert_allclose(found["active"], shares)
    mean, error = found["x"].sel(summary="mean"), found["x"].sel(summary="mcse_mean")
    assert np.abs(mean / error).max() < 5


@pytest.mark.parametrize("both", [False, True], ids=["one equalized", "both equalized"])
def test_weights_beside_an_equalized_index_are_those_of_the_model(both, rng):
    """Both indices are alike with probability 0.9, and class 1 of k has 0.02."""
    joint = np.array([[0.98 * 0.9, 0.98 * 0.1], [0.02 * 0.1, 0.02 * 0.9]])
    equalizing_k = np.log(0.5 / joint.sum(axis=1))
    equalizing_j = np.log(0.5 / joint.sum(axis=0)) if both else np.zeros(2)
    equalized = joint * np.exp(equalizing_k[:, None] + equalizing_j)
    drawn = rng.choice(4, p=(equalized / equalized.sum()).ravel(), size=(4, 2_000))
    k, j = drawn // 2, drawn % 2
    # probabilities of k given j and of j given k, as a step draws from
    of_k, of_j = (
        (equalized / equalized.sum(0)).T[j],
        (equalized / equalized.sum(1, keepdims=True))[k],
    )
    dims, keys = ("chain", "draw", "step"), [index_key("k"), index_key("j")]
    n_equalized = 2 if both else 1
    importance = [-equalizing_k[k], -equalizing_j[j]][:n_equalized]

    def of_steps(values):
        return (dims, np.broadcast_to(values, (4, 2_000, len(values))))

    stats = xr.Dataset(
        {
            "class_log_weight": ((*dims, "class"), np.log(np.stack([of_k, of_j], axis=2))),
            "class_of": of_steps(keys),
            "class_equalizing_of": ((*dims[:2], "equalized"), of_steps(keys[:n_equalized])[1]),
            "class_equalizing_log_weight": (
                (*dims[:2], "equalized", "class"),
                np.broadcast_to(
                    [equalizing_k, equalizing_j][:n_equalized], (4, 2_000, n_equalized, 2)
                ),
            ),
            "class_log_importance": ((*dims[:2], "equalized"), np.stack(importance, axis=-1)),
        }
    )
    posterior = xr.Dataset({"k": (dims[:2], k), "j": (dims[:2], j)})
    tree = xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
    for name, expected in (("k", joint.sum(axis=1)), ("j", joint.sum(axis=0))):
        table = class_index_summary(tree, name).table
        assert np.abs((table["weight"] - expected) / table["weight_mcse"]).max() < 5
        assert np.abs((table["share"] - expected) / table["mcse"]).max() < 5
        assert table["weight_mcse"].max() < 0.02

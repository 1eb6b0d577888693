"""An end of a latent in which hardly any move is accepted is told, and nothing else is."""

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.diagnostics import ClassIndexWarning, class_index_summary
from pymc_mcoem.diagnostics.chains import read_chains
from pymc_mcoem.diagnostics.necks import neck_flags
from tests.helpers.markov import as_tree


def sampled(rng, acceptance_of):
    """Return independent draws of two classes and a latent, with moves accepted as told."""
    codes, x = rng.integers(2, size=(4, 1000)), rng.normal(size=(4, 1000, 2))
    accepted = rng.binomial(20, acceptance_of(codes, x[..., 1])) / 20
    tree = as_tree(codes, np.full((*codes.shape, 2), np.log(0.5)), x=x)
    stats = tree["sample_stats"].to_dataset()
    tree["sample_stats"] = xr.DataTree(stats.assign(class_acceptance=(("chain", "draw"), accepted)))
    return tree


def test_a_neck_is_named_with_its_class_and_end(rng):
    def acceptance(codes, x):
        return np.where((codes == 1) & (x < -1.6), 0.05, 0.4)

    with pytest.warns(ClassIndexWarning, match=r"where x\[1\] in class 1 is lowest, 0\.0"):
        summary = class_index_summary(sampled(rng, acceptance))
    assert len(summary.flags) == 1
    assert "target_acceptance=0.95" in summary.flags[0]
    # nothing is said of what is not to be checked
    assert class_index_summary(sampled(rng, acceptance), latents=[]).ok
    # one draw without a record changes nothing
    tree = sampled(rng, acceptance)
    tree["sample_stats"]["class_acceptance"][0, 0] = np.nan
    with pytest.warns(ClassIndexWarning, match=r"where x\[1\] in class 1 is lowest"):
        class_index_summary(tree)


@pytest.mark.parametrize(
    "acceptance",
    [
        lambda codes, x: np.where(np.abs(x) > 1.6, 0.2, 0.4),
        lambda codes, x: np.where(np.abs(x) < 0.1, 0.0, 0.4),
        lambda codes, x: np.where(codes == 1, 0.05, 0.4),
        lambda codes, x: np.zeros_like(x),
    ],
    ids=["half at both ends", "nothing in the middle", "little in one class", "nothing at all"],
)
def test_other_acceptances_are_no_necks(rng, acceptance):
    assert class_index_summary(sampled(rng, acceptance)).ok


def test_chance_is_no_neck(rng):
    """Give a class of 240 draws and 40 latents, whose ends have twelve draws, few moves each."""
    codes = (rng.random((4, 1000)) < 0.06).astype(int)
    for _ in range(20):
        tree = as_tree(
            codes, np.full((4, 1000, 2), np.log(0.5)), x=rng.normal(size=(*codes.shape, 40))
        )
        stats = tree["sample_stats"].to_dataset()
        accepted = (("chain", "draw"), rng.binomial(2, 0.25, codes.shape) / 2)
        tree["sample_stats"] = xr.DataTree(stats.assign(class_acceptance=accepted))
        chains = read_chains(tree)
        assert not neck_flags(chains, tree["posterior"].to_dataset())


def test_moves_without_a_record_are_no_necks(rng):
    tree = sampled(rng, lambda codes, x: np.where(x < -1.6, 0.01, 0.4))
    tree["sample_stats"]["class_acceptance"][:] = np.nan
    assert class_index_summary(tree).ok

"""The package's public names: all there, and loaded when they are asked for."""

import subprocess
import sys

import pytest

import pymc_mcoem as mcoem

#: What some of the package needs, takes long to import, and PyMC does not import itself.
HEAVY = [
    "arviz_plots",
    "arviz_stats",
    "h5py",
    "jax",
    "numba",
    "numpyro",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
]


def test_every_public_name_is_there():
    assert set(mcoem.__all__) <= set(dir(mcoem))
    for name in mcoem.__all__:
        assert getattr(mcoem, name) is not None
    assert mcoem.class_index_summary.__module__ == "pymc_mcoem.diagnostics.summary"
    with pytest.raises(AttributeError, match="attribute nothing"):
        mcoem.nothing  # noqa: B018


@pytest.mark.parametrize("space", ["esteps", "moves", "pseudo_priors", "schedules"])
def test_those_who_extend_find_what_they_need_in_one_place(space):
    """Nothing is imported there and left out, and a name means the same as at the top."""
    module = getattr(mcoem, space)
    assert space in mcoem.__all__
    public = {name for name in vars(module) if not name.startswith("__")}
    assert public == set(module.__all__)
    for name in set(module.__all__) & set(mcoem.__all__):
        assert getattr(module, name) is getattr(mcoem, name)


@pytest.mark.parametrize(
    "asked",
    [
        "",
        "pymc_mcoem.CarlinChib",
        "pymc_mcoem.OnlineEM, pymc_mcoem.TemplateMixture.for_images",
        "pymc_mcoem.esteps, pymc_mcoem.moves, pymc_mcoem.pseudo_priors, pymc_mcoem.schedules",
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(asked):
    code = f"""
import sys, pymc
before = set(sys.modules)
import pymc_mcoem
{asked}
print(*(set({HEAVY}) & (set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []

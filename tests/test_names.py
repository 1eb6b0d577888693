"""The package's public names: all there, and loaded when they are asked for."""

import subprocess
import sys

import pytest

import pymc_mcoem as mcoem

#: What some of the package needs, takes long to import, and PyMC does not import itself.
HEAVY = ["arviz_plots", "arviz_stats", "jax", "numba", "numpyro", "scipy.stats", "sklearn"]


def test_every_public_name_is_there():
    assert set(mcoem.__all__) <= set(dir(mcoem))
    for name in mcoem.__all__:
        assert getattr(mcoem, name) is not None
    assert mcoem.class_index_summary.__module__ == "pymc_mcoem.diagnostics.summary"
    with pytest.raises(AttributeError, match="attribute nothing"):
        mcoem.nothing  # noqa: B018


@pytest.mark.parametrize(
    "asked",
    ["", "pymc_mcoem.CarlinChib", "pymc_mcoem.OnlineEM, pymc_mcoem.TemplateMixture.for_images"],
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

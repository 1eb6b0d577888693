"""The package's public names: all there, those that are loaded on demand too."""

import subprocess
import sys

import pytest

import pymc_mcoem as mcoem


def test_every_public_name_is_there():
    assert set(mcoem.__all__) <= set(dir(mcoem))
    for name in mcoem.__all__:
        assert getattr(mcoem, name) is not None
    assert mcoem.class_index_summary.__module__ == "pymc_mcoem.diagnostics.summary"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mcoem.nothing  # noqa: B018


def test_plots_are_not_imported_before_they_are_asked_for():
    code = "import sys, pymc_mcoem; sys.exit('arviz_plots' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

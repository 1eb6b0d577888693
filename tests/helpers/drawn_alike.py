"""What every plot has to do on every back end."""

from __future__ import annotations

import numpy as np
import pytest


def draws_alike(plots, backend, folder):
    """Draw each on a back end: the visuals of the back end "none", and a file of some size."""
    if backend == "plotly":
        pytest.importorskip("webcolors")
    module = pytest.importorskip(backend)
    if backend == "matplotlib":
        module.use("agg")
    for name, plot in plots.items():
        reference, found = plot(backend="none"), plot(backend=backend)
        for visual, drawn in reference.viz.children.items():
            for variable, artists in drawn.data_vars.items():
                there = found.viz[visual][variable]
                assert there.dims == artists.dims, (name, visual)
                if visual in ("title", "xlabel", "ylabel", "legend"):
                    continue  # what back ends return of them is theirs
                missing = [[each is None for each in da.values.ravel()] for da in (there, artists)]
                np.testing.assert_array_equal(*missing, err_msg=f"{name}: {visual}")
        path = folder / (f"{name}.png" if backend == "matplotlib" else f"{name}.html")
        found.savefig(path)
        assert path.stat().st_size > 5000
    if backend == "matplotlib":
        import matplotlib.pyplot as plt

        plt.close("all")

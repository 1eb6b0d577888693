"""Examples that no other test runs, at a fraction of their length."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_mcoem as mcoem
from examples import own_model, usps_templates
from tests.helpers.interpreted import interpreted


def test_a_template_model_written_by_hand_is_a_model(rng):
    digits = mcoem.datasets.load_digits()
    eight = digits["images"].values[np.flatnonzero(digits["labels"].values == 8)[3]]
    with interpreted(), own_model.make_model(eight + 0.15 * rng.standard_normal((8, 8))) as model:
        assert np.isfinite(model.compile_logp()(model.initial_point()))
        drawn = pm.sample_prior_predictive(20, random_seed=1)
    assert drawn.prior_predictive["pixels"].sizes["draw"] == 20


@pytest.mark.slow
def test_a_template_model_written_by_hand_is_sampled(rng):
    digits = mcoem.datasets.load_digits()
    eight = digits["images"].values[np.flatnonzero(digits["labels"].values == 8)[3]]
    with own_model.make_model(eight + 0.15 * rng.standard_normal((8, 8))):
        idata = pm.sample(
            50,
            tune=50,
            chains=2,
            cores=1,
            step=mcoem.CarlinChib(),
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    found = idata.posterior
    assert found["warp_parameters"].sizes["warp"] == own_model.WARP.n_parameters
    # an eight it is: 0.99 of 4,000 draws when this was written
    assert float((found["digit"] == 2).mean()) > 0.8


@pytest.mark.slow
def test_the_figure_of_templates_goes_on_where_it_was_stopped(
    data_directory, monkeypatch, tmp_path
):
    """Part by part, each in what might be another process, is the stream in one go."""
    monkeypatch.setenv("PYMC_MCOEM_DATA", str(data_directory))
    run = usps_templates.Run(digit=3, n_images=100, seed=1, folder=tmp_path)
    for expected in (25, 50, 75, 100, 100):
        assert usps_templates.learn(run)[1] == expected
    whole = usps_templates.open_run(dataclasses.replace(run, folder=tmp_path / "empty"))
    images, labels = usps_templates.stream(run.digit, run.n_images, run.seed)
    for part in np.split(images, 4):
        whole.partial_fit(part)
    assert set(labels) == {3}
    assert usps_templates.open_run(run).parameters.identical(whole.parameters)


@pytest.mark.slow
def test_the_comparison_at_equal_time_runs(tmp_path):
    """All methods, in seconds; what they reach is for the benchmark to say."""
    options = ["--images", "12", "--test", "20", "--seconds", "2", "--output", str(tmp_path)]
    subprocess.run(
        [sys.executable, "examples/live_error_rate.py", "--quick", *options],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
    )
    found = xr.load_dataarray(tmp_path / "live_error_rate.nc")
    assert {"online EM", "SAEM-12"} <= set(found["method"].values.tolist())
    np.testing.assert_array_equal(found.isel(time=0), found.isel(time=0, method=0).item())
    assert ((found >= 0) & (found <= 1)).all()
    for picture in ("live_error_rate", "live_templates", "live_weights"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_example_of_a_cluster_goes_on_where_it_ended(tmp_path):
    command = [sys.executable, "examples/cluster.py", "--images", "192", "--folder", str(tmp_path)]
    told = [
        subprocess.run(
            command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]
    assert "192 images, 192 of them now" in told[0]
    assert "192 images, 0 of them now" in told[1]
    digests = {re.search("SHA-256 of θ ([0-9a-f]{16})", each)[1] for each in told}
    assert len(digests) == 1

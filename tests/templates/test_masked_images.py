"""Images of several sizes by the default settings, under masks."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pymc_mcoem.em.online import OnlineEM
from pymc_mcoem.esteps import FixedLatents
from pymc_mcoem.templates import TemplateMixture, template_images
from tests.helpers.bars import bar_images

N = 30


def disk(images, rng):
    """Hide what lies outside of a disk, the same in all images."""
    axis = np.linspace(-1, 1, images.shape[-1])
    return images.where(xr.DataArray(np.hypot(axis[:, None], axis) <= 1, dims=images.dims[1:]))


def boxes(images, rng):
    """Hide a quarter of each image, each its own."""
    found, half = images.copy(), images.shape[-1] // 2
    for image in found.values:
        row, column = rng.integers(half, size=2)
        image[row : row + half, column : column + half] = np.nan
    return found


@pytest.mark.parametrize("mask", [disk, boxes])
@pytest.mark.parametrize("side", [28, pytest.param(64, marks=pytest.mark.slow)])
def test_thirty_masked_images_give_their_templates(rng, side, mask):
    truth = bar_images((side, side))
    kinds = np.arange(N) % 3
    noisy = truth[kinds] + 0.1 * rng.normal(size=(N, side, side))
    images = mask(xr.DataArray(noisy, dims=("image", "row", "column")), rng)
    mixture = TemplateMixture.for_images((side, side), n_classes=3)
    em = OnlineEM(mixture, e_step=FixedLatents(), random_seed=1, progressbar=False)
    found = template_images(em.partial_fit(images).parameters, mixture).values
    seen = np.isfinite(images.values).any(axis=0)
    apart = np.sqrt(np.square(found[:, None] - truth)[..., seen].mean(axis=-1))
    assert sorted(apart.argmin(axis=1)) == [0, 1, 2]
    # as far as pixels are from means of as many images as the statistics are worth, and half more
    # for kernels that smooth what they see
    share = np.isfinite(images.values)[:, seen].mean() / 3
    worth = em.run.ended_state().effective_size * share
    assert apart.min(axis=1).max() < 1.5 * 0.1 / np.sqrt(worth)
    # where no image has a pixel they are no wilder than elsewhere
    assert np.abs(found[:, ~seen]).max(initial=0.0) < np.abs(found[:, seen]).max()

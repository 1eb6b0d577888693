"""Histories, registrations and draws made up for tests of plots."""

from __future__ import annotations

import numpy as np
import xarray as xr


def path_of(parameters, rng, n=40):
    """Return a history whose path wanders around `parameters`, a Dataset by class."""
    grown = parameters.expand_dims(step=np.arange(n + 1)).copy(deep=True)
    grown["templates"] = grown["templates"] + rng.normal(0, 0.1, grown["templates"].shape)
    grown = grown.assign_coords({"class": np.arange(parameters.sizes["class"])})
    gains = np.append(np.nan, np.arange(1, n + 1) ** -0.6)
    path = grown.assign(
        observation=("step", np.arange(n + 1)),
        gain=("step", gains),
        updated=("step", np.arange(n + 1) >= 10),
    )
    weight = rng.dirichlet(np.ones(parameters.sizes["class"]), size=n)
    seen = xr.Dataset(
        {"class_weight": (("observation", "class"), weight)},
        {"observation": np.arange(1, n + 1), "class": grown["class"].values},
    )
    return xr.DataTree.from_dict({"steps": path, "observations": seen})


def curve_registration(ages, n_classes=2):
    """Return a registration of curves whose templates are 1, 2, ... and clocks run fast."""
    coords = {"class": np.arange(n_classes), "age": ages}
    level = xr.DataArray(
        np.arange(1.0, n_classes + 1), dims="class", coords={"class": coords["class"]}
    )
    flat = xr.DataArray(np.ones((n_classes, len(ages))), coords)
    found = xr.Dataset({"class_probability": ("class", np.linspace(1, 2, n_classes))}, coords)
    for name, mean in (
        ("template", level * flat),
        ("warp", 1.1 * flat["age"] * flat),
        ("aligned", level * flat),
    ):
        found[f"{name}_mean"], found[f"{name}_sd"] = mean, 0.25 * flat
    return found


def image_registration(shape, shift, n_classes=2):
    """Return a registration of images on (−1, 1)² that are all displaced by `shift`."""
    axes = [np.linspace(-1, 1, side) for side in shape]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    coords = {
        "class": np.arange(n_classes),
        "row": np.arange(shape[0]),
        "column": np.arange(shape[1]),
        "coordinate": ["row", "column"],
        "point": (("row", "column", "coordinate"), points),
    }
    warp = np.broadcast_to(points + np.asarray(shift), (n_classes, *points.shape))
    image = np.ones((n_classes, *shape))
    return xr.Dataset(
        {
            "class_probability": ("class", np.full(n_classes, 1 / n_classes)),
            "template_mean": (("class", "row", "column"), image),
            "template_sd": (("class", "row", "column"), 0.1 * image),
            "warp_mean": (("class", "row", "column", "coordinate"), warp),
            "warp_sd": (("class", "row", "column", "coordinate"), 0.1 * np.ones_like(warp)),
        },
        coords,
    )

"""Sample a template model, written by hand from the package's parts, with ``pm.sample``.

The model infers which of three known templates is behind one noisy, turned image of a digit, and
how it was warped. It differs from the package's mixtures: it has a Student likelihood, another
prior on the warp, and a brightness. `CarlinChib` finds the class index and the latents in it.

    python examples/own_model.py
"""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm

import pymc_mcoem as mcoem


def make_templates() -> np.ndarray:
    """Return mean images of the digits 3, 5 and 8 as coefficients of kernels on the pixels."""
    digits = mcoem.datasets.load_digits()
    images, labels = digits["images"].values, digits["labels"].values
    means = np.stack([images[labels == digit].mean(axis=0).ravel() for digit in (3, 5, 8)])
    coefficients: np.ndarray = np.linalg.solve(BASIS.gram(), means.T).T
    return coefficients


AXIS = np.linspace(-1, 1, 8)
POINTS = np.stack(np.meshgrid(AXIS, AXIS, indexing="ij"), axis=-1).reshape(-1, 2)
BASIS = mcoem.GaussianBasis.regular([AXIS, AXIS], bandwidth=0.3)
WARP = mcoem.RigidMotion() + mcoem.DisplacementField.on_grid([[-0.5, 0.5]] * 2, width=0.8)


def make_model(image: np.ndarray) -> pm.Model:
    """Make the model of one image: a class, a warp, a brightness, heavy-tailed noise."""
    with pm.Model(coords={"class": [3, 5, 8], "warp": list(WARP.labels)}) as model:
        templates = pm.Data("templates", make_templates(), dims=("class", "basis"))
        digit = pm.Categorical("digit", p=[0.5, 0.3, 0.2])
        spread = np.where(WARP.learned, 0.1, 0.15)
        warp = pm.Normal("warp_parameters", WARP.mean, spread, dims="warp")
        brightness = pm.Gamma("brightness", alpha=20.0, beta=20.0)
        shape = BASIS.evaluate(WARP.warp(POINTS, warp), templates[digit])
        pm.StudentT("pixels", nu=5.0, mu=brightness * shape, sigma=0.15, observed=image.ravel())
    return model


def main() -> None:
    """Sample the class and the warp of one image."""
    digits = mcoem.datasets.load_digits()
    rng = np.random.default_rng(1)
    index = int(np.flatnonzero(digits["labels"].values == 8)[3])
    image = digits["images"].values[index] + 0.15 * rng.standard_normal((8, 8))
    with make_model(image):
        idata = pm.sample(
            1_000, tune=300, chains=4, step=mcoem.CarlinChib(), random_seed=1, progressbar=False
        )
    chains = idata.posterior["digit"]
    print("share of each digit, chain by chain:")
    for chain in chains.chain.values:
        shares = [float((chains.sel(chain=chain) == k).mean()) for k in range(3)]
        print(
            "  ", {digit: round(share, 3) for digit, share in zip((3, 5, 8), shares, strict=True)}
        )
    print(az.summary(idata, var_names=["warp_parameters", "brightness"], kind="stats").head(8))


if __name__ == "__main__":
    main()

"""Handwritten digits: scikit-learn's, and those of the U.S. Postal Service."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xarray as xr

from pymc_mcoem.datasets.r_files import find_data, read_r_file, require_rdata

__all__ = ["load_digits", "load_usps"]

USPS_FILE = "usps_zip.npz"
USPS_SHA256 = "7b60af32d412fbd9ae8f98b1a99c7749f63a5bd6ac14227c9f0ea1f694cca306"
USPS_SOURCE = "zip.train.RData"
USPS_SOURCE_SHA256 = "68cc11b888f8f199b91500818358855ef352dc7f7cb0f599f4a3323fae4eef8b"
USPS_SOURCE_URL = (
    "https://raw.githubusercontent.com/cran/ElemStatLearn/"
    "253e54016d004ac67879b594311651be3debbed4/data/zip.train.RData"
)


def load_digits() -> xr.Dataset:
    """Return the handwritten digits that come with scikit-learn: 1,797 images of 8 by 8.

    Returns
    -------
    xarray.Dataset
        ``images``, float of shape ``(1797, 8, 8)`` and dims ``(observation, row, column)``: gray
        levels from 0 (paper) to 1 (ink), row 0 at the top. ``labels``, integer of shape
        ``(1797,)``: the digits.

    Notes
    -----
    The test part of the *Optical Recognition of Handwritten Digits* data of the UCI machine
    learning repository (E. Alpaydin and C. Kaynak, 1998). Nothing is downloaded.

    Examples
    --------
    >>> digits = load_digits()
    >>> dict(digits.images.sizes)
    {'observation': 1797, 'row': 8, 'column': 8}
    >>> float(digits.images.min()), float(digits.images.max())
    (0.0, 1.0)
    """
    # Imported here because scikit-learn's data sets take longer to import than to read.
    from sklearn.datasets import load_digits as load_bundled

    bundled = load_bundled()
    return _labeled_images(
        bundled.images / 16.0, bundled.target, source="scikit-learn's bundled digits"
    )


def load_usps(split: str = "train", directory: str | os.PathLike[str] | None = None) -> xr.Dataset:
    """Return handwritten digits from U.S. Postal Service envelopes, images of 16 by 16.

    They are the training set ``zip.train`` of *The Elements of Statistical Learning*, deslanted
    and size-normalized, in one of two files: ``zip.train.RData``, the public source with all 7,291
    images, or ``usps_zip.npz``, 5,791 of them in the order of the source. If a folder has both,
    the second is read.

    Parameters
    ----------
    split : str
        Only ``"train"`` is available.
    directory : path_like, optional
        Folder with one of the two files. Default: the folder that the environment variable
        ``PYMC_MCOEM_DATA`` names; if this is not set or has neither file, the public source is
        downloaded once, checked, and kept in pooch's cache.

    Returns
    -------
    xarray.Dataset
        ``images``, float of shape ``(n_observations, 16, 16)`` and dims
        ``(observation, row, column)``: gray levels from 0 (paper) to 1 (ink), row 0 at the top.
        ``labels``, integer of shape ``(n_observations,)``: the digits. The attribute ``source``
        names the file.

    Raises
    ------
    ValueError
        If `split` is unknown, or a file does not have the expected checksum.
    FileNotFoundError
        If `directory` has neither file, or if none was found and the download failed.
    ModuleNotFoundError
        If ``zip.train.RData`` has to be read or downloaded and the package rdata is missing.

    Notes
    -----
    Le Cun et al. (1990), "Handwritten digit recognition with a back-propagation network",
    NIPS 2; distributed with T. Hastie, R. Tibshirani and J. Friedman (2009), *The Elements of
    Statistical Learning*, 2nd ed., Springer, and the R package ElemStatLearn.

    Examples
    --------
    >>> usps = load_usps()  # doctest: +SKIP
    >>> twos = usps.images[usps.labels == 2]  # doctest: +SKIP

    The test set is not available:

    >>> load_usps("test")
    Traceback (most recent call last):
        ...
    ValueError: split: got 'test'; the files hold the training set alone, ask for split='train'.
    """
    if split != "train":
        raise ValueError(
            f"split: got {split!r}; the files hold the training set alone, ask for split='train'."
        )
    digests = {USPS_FILE: USPS_SHA256, USPS_SOURCE: USPS_SOURCE_SHA256}
    path = find_data("load_usps", directory, digests, USPS_SOURCE_URL)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            levels, labels = arrays["images"] / 1000.0, arrays["labels"]
    else:
        levels, labels = _read_usps_source(path)
    return _labeled_images((levels + 1.0) / 2.0, labels, source=path.name)


def _labeled_images(images: np.ndarray, labels: np.ndarray, *, source: str) -> xr.Dataset:
    _, n_rows, n_columns = images.shape
    return xr.Dataset(
        {
            "images": (("observation", "row", "column"), images),
            "labels": ("observation", labels.astype(np.int64)),
        },
        coords={"row": np.arange(n_rows), "column": np.arange(n_columns)},
        attrs={"source": source},
    )


def _read_usps_source(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return gray levels in [-1, 1], ``(n, 16, 16)``, and labels ``(n,)`` from the R file."""
    require_rdata("load_usps", USPS_FILE)
    table = np.asarray(read_r_file(path)["zip.train"], dtype=np.float64)
    return table[:, 1:].reshape(-1, 16, 16), table[:, 0]

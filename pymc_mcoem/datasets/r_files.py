"""Data files of R packages: where they are, their download and their reading."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pooch

__all__ = ["find_data", "read_r_file", "require_rdata"]

#: Environment variable that names a folder with data files.
DATA_VARIABLE = "PYMC_MCOEM_DATA"


def require_rdata(caller: str, instead: str) -> None:
    """Check that R's files can be read; the file `instead` needs no package for that."""
    if find_spec("rdata") is None:
        raise ModuleNotFoundError(
            f"{caller}: reading the public file, which R wrote, needs the package rdata; install "
            f"it with pip install rdata, or put {instead} into the folder that PYMC_MCOEM_DATA "
            "names."
        )


def read_r_file(path: Path) -> Any:
    """Return the contents of an ``.rda`` or ``.RData`` file by name."""
    import rdata

    return rdata.read_rda(path)


def find_data(
    caller: str, directory: str | os.PathLike[str] | None, digests: Mapping[str, str], url: str
) -> Path:
    """Return a data file whose checksum is right; it is downloaded once if no folder has it.

    Parameters
    ----------
    caller : str
        Function that messages name.
    directory : path-like or None
        Folder with the file. None: the one that the environment variable names, if any, or else
        pooch's cache.
    digests : mapping of str to str
        The sha256 of two files by name: one that can be read without the package rdata, and the
        public one, which is at `url`.
    """
    folder = directory if directory is not None else os.environ.get(DATA_VARIABLE)
    for path in [Path(folder) / name for name in digests] if folder else []:
        if path.is_file():
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            if found != digests[path.name]:
                raise ValueError(
                    f"{caller}: {path} is not the file it should be: its sha256 is {found}, "
                    f"expected {digests[path.name]}. Remove it, and take the file at {url}."
                )
            return path
    plain, public = digests
    if directory is not None:
        raise FileNotFoundError(
            f"directory: {os.fspath(directory)!r} has neither {plain} nor {public}; put one of "
            f"them there (the second is at {url}), or leave directory out to download it."
        )
    return _download(caller, url, digests[public], instead=plain)


def _download(caller: str, url: str, digest: str, *, instead: str) -> Path:
    """Download a file once, check it, and keep it in pooch's cache."""
    require_rdata(caller, instead)
    name = url.rpartition("/")[2]
    remedy = (
        f"Fetch {name} elsewhere, or take {instead}, put it into a folder, and name the folder: "
        f"{caller}(directory=...), or the environment variable PYMC_MCOEM_DATA."
    )
    try:
        return Path(
            pooch.retrieve(
                url, known_hash=f"sha256:{digest}", fname=name, path=pooch.os_cache("pymc_mcoem")
            )
        )
    except OSError as error:
        raise FileNotFoundError(
            f"{caller}: found no file and could not download {url} ({error}). {remedy}"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{caller}: what {url} sent is not the file it should be ({error}). {remedy}"
        ) from error

"""Download and reading of data files of R packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pooch

__all__ = ["download_r_file", "read_r_file", "require_rdata"]


def require_rdata(caller: str, instead: str) -> None:
    """Check that the package that reads R's files is installed.

    Parameters
    ----------
    caller : str
        Function that the message names.
    instead : str
        A file that can be read without the package.

    Raises
    ------
    ModuleNotFoundError
        If the package rdata is not installed.
    """
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


def download_r_file(caller: str, url: str, digest: str, *, instead: str) -> Path:
    """Download a file once, check it, and keep it in pooch's cache.

    Parameters
    ----------
    caller : str
        Function that messages name.
    url : str
    digest : str
        The sha256 that the file must have.
    instead : str
        A file that can be read without the package rdata.

    Raises
    ------
    ModuleNotFoundError
        If the package rdata, which reads the file, is not installed.
    FileNotFoundError
        If the download fails.
    ValueError
        If the downloaded file has another checksum.
    """
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

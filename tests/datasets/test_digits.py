"""Data come as promised or not at all."""

from __future__ import annotations

import hashlib
import http.server
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import rdata
import xarray as xr

from pymc_mcoem.datasets import digits, load_digits, load_usps, r_files


@pytest.fixture(autouse=True)
def no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYMC_MCOEM_DATA", raising=False)
    monkeypatch.setattr(r_files.pooch, "os_cache", lambda name: tmp_path / "cache" / name)


@pytest.fixture
def usps_table(rng: np.random.Generator) -> np.ndarray:
    """A digit and 256 gray levels in each of five rows, as in the public source."""
    levels = rng.integers(-1000, 1001, size=(5, 256)) / 1000.0
    return np.column_stack([rng.integers(10, size=5), levels])


@pytest.fixture
def usps_source(usps_table: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file in the form of the public source, with its checksum made known."""
    path = tmp_path / "source" / digits.USPS_SOURCE
    path.parent.mkdir()
    rdata.write_rda(path, {"zip.train": usps_table})
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(digits, "USPS_SOURCE_SHA256", digest)
    return path


@pytest.fixture
def served(usps_source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the small public source, behind the address that is downloaded from."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(usps_source.parent))

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/{usps_source.name}"
        monkeypatch.setattr(digits, "USPS_SOURCE_URL", address)
        yield usps_source.parent
        server.shutdown()


def check_usps_source(usps: xr.Dataset, table: np.ndarray) -> None:
    np.testing.assert_array_equal(usps.labels, table[:, 0])
    np.testing.assert_allclose(
        usps.images, (table[:, 1:].reshape(5, 16, 16) + 1.0) / 2.0, rtol=0, atol=1e-15
    )


def test_digits_are_images_between_paper_and_ink() -> None:
    bundled = load_digits()
    assert bundled.images.dims == ("observation", "row", "column")
    assert bundled.images.shape == (1797, 8, 8)
    assert float(bundled.images.min()) == 0.0
    assert float(bundled.images.max()) == 1.0
    counts = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(bundled.labels).tolist() == counts
    # A zero is a ring: ink around a hole.
    zero = bundled.images[bundled.labels == 0].mean("observation")
    assert float(zero[3:5, 3:5].max()) < 0.3 < float(zero[1].max())


def test_usps_from_a_folder(data_directory: Path) -> None:
    usps = load_usps(directory=data_directory)
    assert usps.images.shape == (5791, 16, 16)
    assert usps.images.dtype == np.float64
    assert (float(usps.images.min()), float(usps.images.max())) == (0.0, 1.0)
    assert np.bincount(usps.labels).tolist() == [940, 801, 585, 513, 526, 425, 532, 514, 427, 528]
    assert usps.attrs["source"] == "usps_zip.npz"
    # A one is a bar of ink upright in the middle: rows and columns are not exchanged.
    one = usps.images[usps.labels == 1].mean("observation")
    assert float(one[:, 7:9].min()) > 0.4 > float(one[:, [0, -1]].max())


def test_usps_from_the_folder_of_the_environment(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYMC_MCOEM_DATA", str(data_directory))
    assert load_usps().sizes["observation"] == 5791


def test_altered_usps_file_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "usps_zip.npz", images=np.zeros((1, 16, 16)), labels=[0])
    with pytest.raises(ValueError, match=r"usps_zip\.npz is not the file .* sha256"):
        load_usps(directory=tmp_path)


def test_usps_from_the_public_source_in_a_folder(usps_source: Path, usps_table: np.ndarray) -> None:
    usps = load_usps(directory=usps_source.parent)
    check_usps_source(usps, usps_table)
    assert usps.attrs["source"] == "zip.train.RData"


def test_usps_is_downloaded_once(
    served: Path, usps_table: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_usps_source(load_usps(), usps_table)
    (served / digits.USPS_SOURCE).unlink()
    check_usps_source(load_usps(), usps_table)


def test_altered_download_is_refused(served: Path) -> None:
    with (served / digits.USPS_SOURCE).open("ab") as file:
        file.write(b"altered")
    with pytest.raises(ValueError, match=r"not the file it should be .*known hash.*directory="):
        load_usps()


def test_failed_download_says_which_file_to_put_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setattr(digits, "USPS_SOURCE_URL", f"http://127.0.0.1:{port}/zip.train.RData")
    with pytest.raises(FileNotFoundError) as raised:
        load_usps()
    for word in ("zip.train.RData", "usps_zip.npz", "directory=", "PYMC_MCOEM_DATA"):
        assert word in str(raised.value)


def test_folder_without_usps_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"directory: .*usps_zip\.npz nor zip\.train\.RData"
    ):
        load_usps(directory=tmp_path)


def test_reading_the_public_source_without_rdata_says_what_to_install(
    usps_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rdata", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install rdata"):
        load_usps(directory=usps_source.parent)


@pytest.mark.parametrize("split", ["test", "Train", None])
def test_unknown_split_is_refused(split: object) -> None:
    with pytest.raises(ValueError, match=r"split: got .*split='train'"):
        load_usps(split)

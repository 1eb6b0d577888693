"""Learn templates from an array larger than memory, on this machine or on a cluster.

The workers of a Dask cluster draw noisy handwritten digits and write them to a Zarr array, and then
learn from it. Workers read the images themselves: only addresses, parameters, statistics and
the images for the start are sent. All machines must see the folder under the same name.

    python examples/cluster.py                                # a cluster on this machine
    python examples/cluster.py tcp://10.0.0.1:8786            # the cluster of this scheduler

The second needs a scheduler and workers: ``dask scheduler`` and, on each machine with this package,
``dask worker tcp://10.0.0.1:8786 --nworkers 8 --nthreads 1``. Workers may come and go. The run is
saved every ten seconds: if the scheduler, or this script, ends, start both again, and the run goes
on to the same templates. Progress is shown here and, by tasks, on the dashboard.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster
from rich.console import Console

import pymc_mcoem as mcoem

console = Console(highlight=False)
#: Images in a chunk of the array, and in a mini-batch.
SIZE = 64


def local_cluster(most: int) -> LocalCluster:
    """Return a new cluster on this machine."""
    cluster = LocalCluster(n_workers=1, threads_per_worker=1)
    # workers start while there is work, and none is ended during an M-step
    cluster.adapt(minimum=1, maximum=most, wait_count=30)
    return cluster


def noisy_digits(block: np.ndarray, block_id: tuple[int, ...] = (0, 0, 0)) -> np.ndarray:
    """Return as many noisy digits as a block has rows."""
    rng, digits = np.random.default_rng([1, block_id[0]]), mcoem.datasets.load_digits()
    chosen = rng.integers(len(digits["images"]), size=len(block))
    return digits["images"].values[chosen] + 0.1 * rng.standard_normal((len(block), 8, 8))


def stored_images(folder: Path, n_images: int) -> da.Array:
    """Return the images, which the workers write first if they are not there."""
    place = folder / f"images_{n_images}.zarr"
    if not place.exists():
        empty = da.zeros((n_images, 8, 8), chunks=(SIZE, 8, 8))
        drawn = empty.map_blocks(noisy_digits, meta=np.zeros((0, 8, 8)))
        drawn.to_zarr(str(place.with_suffix(".part")), mode="w")
        place.with_suffix(".part").rename(place)
    return da.from_zarr(str(place))


def opened_run(path: Path, client: Client, **settings: Any) -> mcoem.OnlineEM:
    """Return the saved run, if there is one, or a new one."""
    settings["executor"] = client.get_executor(pure=False)
    priors = mcoem.TemplatePriors(weight_concentration=10.0)
    mixture = mcoem.TemplateMixture.for_images(
        (8, 8),
        n_classes=10,
        rigid_variance=0.05,
        rigid_weight=None,
        priors=priors.with_deformation_variance(0.0025, weight=2_000),
    )
    if path.exists():
        return mcoem.OnlineEM.load(path, mixture, **settings)
    return mcoem.OnlineEM(
        mixture,
        e_step=mcoem.esteps.CarlinChibBurst(within_class=mcoem.moves.RandomWalk(n_moves=5)),
        burst_length=mcoem.schedules.BurstLength(draws=25, tune=10),
        n_start=150,
        batch_size=SIZE,
        random_seed=1,
        **settings,
    )


def pictures(em: mcoem.OnlineEM) -> str:
    """Return the templates in rows of five, the heaviest first, in characters."""
    images = mcoem.template_images(em.parameters, em.family).values
    images = images[np.argsort(-em.parameters["weights"].values)].reshape(-1, 5, 8, 8)
    inks = np.array([2 * shade for shade in " ░▒▓█"])[np.clip(images * 5, 0, 4).astype(int)]
    return "\n".join("".join(line.ravel()) for five in inks for line in five.swapaxes(0, 1))


def main() -> None:
    """Connect, learn, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address", nargs="?", help="of a scheduler; default: a new local cluster")
    parser.add_argument("--images", type=int, default=1_000)
    parser.add_argument("--workers", type=int, default=2, help="at most, on this machine")
    parser.add_argument("--folder", type=Path, default=Path("output/cluster"))
    given = parser.parse_args()
    folder = given.folder.absolute()  # workers may have another working directory
    folder.mkdir(parents=True, exist_ok=True)
    with Client(given.address or local_cluster(given.workers)) as client:
        console.print(f"{client.scheduler.address}, dashboard at {client.dashboard_link}")
        images = stored_images(folder, given.images)
        file = folder / f"run_{given.images}.nc"
        workers = [0]
        count = [lambda _: workers.append(len(client.nthreads()))]
        em = opened_run(file, client, callbacks=count)
        begun, before = time.perf_counter(), em.n_seen
        em.partial_fit(
            images,
            skip=em.position,
            checkpoint=mcoem.Checkpoint(file, observations=None, seconds=10),
        )
        rate = (em.n_seen - before) / (time.perf_counter() - begun)
        digest = hashlib.sha256(b"".join(v.values.tobytes() for v in em.parameters.values()))
        console.print(f"{em.n_seen} images, {em.n_seen - before} of them now, {rate:.1f} a second")
        console.print(f"{max(workers)} workers at most; SHA-256 of θ {digest.hexdigest()[:16]}")
        console.print(pictures(em), soft_wrap=True)


if __name__ == "__main__":
    main()

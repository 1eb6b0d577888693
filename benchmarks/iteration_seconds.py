"""Seconds an MCoEM iteration, and memory, at the paper's digits settings.

16 × 16 pixels, 78 latents, bursts of 500 sweeps with 100 of burn-in, 20 random-walk moves a
sweep, pilot-chain pseudo-priors; C = 2 and C = 15. The paper reports 20 and 170 seconds on its
authors' machine. Memory is the process's resident set after 100 and after 2,000 observations,
with bursts of two sweeps (a burst's length does not outlive it).

    python benchmarks/iteration_seconds.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
from versions import tell_versions

import pymc_mcoem as mcoem

PAPER = {2: 20, 15: 170}


def resident_mebibytes() -> float:
    """Resident set of this process, from the kernel's own count of pages."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def images(n: int, rng: np.random.Generator) -> np.ndarray:
    """Bright discs at random places: what they show does not matter for the time."""
    axis = np.linspace(-1, 1, 16)
    centres = rng.uniform(-0.4, 0.4, (n, 2))
    squares = (axis[None, :, None] - centres[:, :1, None]) ** 2 + (
        axis[None, None, :] - centres[:, 1:, None]
    ) ** 2
    return np.exp(-squares / 0.15) + 0.2 * rng.standard_normal((n, 16, 16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--observations", type=int, default=2_000)
    arguments = parser.parse_args()
    tell_versions()
    rng = np.random.default_rng(1)

    for n_classes, paper in PAPER.items():
        mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=n_classes)
        em = mcoem.OnlineEM.as_in_paper(
            mixture,
            burst_length=mcoem.BurstLength(draws=400, burn_in=100),
            update_schedule=mcoem.UpdateSchedule.at([1]),
            n_start=1,
            random_seed=1,
            progressbar=False,
        )
        stream = images(arguments.iterations + 2, rng)
        em.partial_fit(stream[:2])  # compiles
        seconds = []
        for image in stream[2:]:
            began = time.perf_counter()
            em.partial_fit(image)
            seconds.append(time.perf_counter() - began)
        median = statistics.median(seconds)
        print(
            f"C = {n_classes}: {median:.2f} s an iteration (paper {paper} s, "
            f"{paper / median:.0f} times as long)"
        )

    mixture = mcoem.TemplateMixture.for_images((16, 16), n_classes=2)
    em = mcoem.OnlineEM(
        mixture,
        burst_length=mcoem.BurstLength(draws=1, burn_in=1),
        random_seed=1,
        progressbar=False,
    )
    em.partial_fit(images(100, rng))
    first = resident_mebibytes()
    for _ in range((arguments.observations - 100) // 100):
        em.partial_fit(images(100, rng))
    print(
        f"memory: {first:.0f} MiB after 100 observations, {resident_mebibytes():.0f} MiB after "
        f"{em.n_seen}"
    )


if __name__ == "__main__":
    main()

"""Measure the error of one burst at the true parameters and predict its effect on online EM.

Averaged online EM solves "mean score = 0". If the score from a burst of m draws has an error with
covariance V(m), the squared error of θ is multiplied by 1 + f(m), with f(m) = tr(I⁻¹ V(m)) / number
of parameters and I the Fisher information of one observation. A mean error b(m), which does not
average out, moves the limit by I⁻¹ b(m). Both are measured on shifted curves (`shifted_curves`),
where the exact scores are known, for bursts of several lengths, with and without tuning and
Rao-Blackwell statistics, with good and poor pseudo-priors, and at several noise levels.

    python benchmarks/burst_noise.py --quick     # 200 bursts of each kind
    python benchmarks/burst_noise.py             # 2,000: three minutes

It writes ``burst_noise.nc`` to ``output/``.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.progress import track
from shifted_curves import (
    TRUTH,
    Parameters,
    ShiftedCurves,
    information,
    posterior,
    scores,
    simulate,
)
from timing import console, make_table, tell_versions

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.compiled_cache import compiled_for

TUNE = 10
MOVE = mcoem.moves.RandomWalk(n_moves=1)
E_STEPS = {
    kind: mcoem.esteps.CarlinChibBurst(within_class=MOVE, rao_blackwell=kind)
    for kind in (False, True)
}
#: Further standard deviations of the noise, for bursts of 50 draws.
OTHER_NOISES = (0.2, 0.4, 0.6, 0.9, 1.4)


def read(file: Path) -> xr.DataArray:
    with xr.open_dataarray(file, engine="h5netcdf") as stored:
        return stored.load()


@cache
def make_family() -> ShiftedCurves:
    """Return the family at the true θ, shared by all runs so that it compiles once."""
    return ShiftedCurves(TRUTH)


def burst_errors(
    e_step: Any,
    family: ShiftedCurves,
    truth: Parameters,
    curves: np.ndarray,
    *,
    draws: int,
    tune: int,
) -> np.ndarray:
    """Return the errors of bursts in the scores of `curves` at `truth`, ``(n, n_free)``."""
    rng = np.random.default_rng(4)
    exact = scores(posterior(curves, truth).statistics, truth)
    compiled = compiled_for(family, e_step)
    state, found = compiled.initial_state(), []
    for curve in curves[:100]:  # step sizes settle
        data = family.encode(curve)
        state = compiled(data, truth, rng, state, draws=1, tune=20).state
    for curve in curves:
        result = compiled(family.encode(curve), truth, rng, state, draws=draws, tune=tune)
        if tune:
            state = result.state
        found.append(result.statistics)
    stacked = {name: np.array([row[name] for row in found]) for name in found[0]}
    return scores(stacked, truth) - exact


def factor_and_shift(errors: np.ndarray, fisher: np.ndarray) -> list[float]:
    """Return f, its standard error, the squared shift of the limit, and its standard error."""
    # In coordinates in which the information is the identity.
    white = np.linalg.solve(np.linalg.cholesky(fisher), errors.T).T
    n, n_free = white.shape
    noise = (white**2).sum(axis=1) / n_free
    # The squared mean is too large by its own variance, which is subtracted.
    variance = white.var(axis=0, ddof=1) / n
    shift = (white.mean(axis=0) ** 2 - variance).mean()
    spread = np.sqrt(2 * (variance**2).sum()) / n_free
    return [float(x) for x in (noise.mean(), noise.std() / np.sqrt(n), shift, spread)]


def at_truth(n_bursts: int, fisher: np.ndarray) -> xr.DataArray:
    """Return noise factors f(m) and squared shifts of the limit of several bursts.

    ``noise`` is the standard deviation of the curves' noise. If it is small, shifts have several
    modes, so mode searches start from three points.
    """
    curves = simulate(TRUTH, n_bursts, np.random.default_rng(3))
    poor = mcoem.esteps.CarlinChibBurst(
        pseudo_priors=mcoem.pseudo_priors.PriorCovariance(), within_class=MOVE
    )
    forms = {
        "visits": E_STEPS[False],
        "Rao-Blackwell": E_STEPS[True],
        "visits, prior covariance": poor,
    }
    own = float(TRUTH["noise_variance"]) ** 0.5
    cases = [(form, TUNE, draws, own) for form in forms for draws in (1, 10, 50, 200, 500)]
    cases += [(form, 0, draws, own) for form in forms for draws in (1, 10, 50)]
    rows, family = [], make_family()
    for form, tune, draws, _ in track(cases, "Bursts at the true θ", console=console):
        errors = burst_errors(forms[form], family, TRUTH, curves, draws=draws, tune=tune)
        rows.append(factor_and_shift(errors, fisher))
    family = ShiftedCurves(TRUTH, starts=(-0.6, 0.0, 0.6))
    e_step = mcoem.esteps.CarlinChibBurst(within_class=MOVE)
    for noise in track(OTHER_NOISES, "Other noise levels", console=console):
        truth = {**TRUTH, "noise_variance": np.array(noise**2)}
        curves = simulate(truth, n_bursts, np.random.default_rng(3))
        errors = burst_errors(e_step, family, truth, curves, draws=50, tune=TUNE)
        rows.append(factor_and_shift(errors, information(truth)))
        cases.append(("three starts", TUNE, 50, noise))
    return xr.DataArray(
        np.array(rows),
        dims=("case", "figure"),
        coords={
            "form": ("case", [form for form, _, _, _ in cases]),
            "tune": ("case", [tune for _, tune, _, _ in cases]),
            "draws": ("case", [draws for _, _, draws, _ in cases]),
            "noise": ("case", [noise for _, _, _, noise in cases]),
            "figure": ["noise", "noise_error", "shift", "shift_error"],
        },
        name="at_truth",
    )


def tell_bursts(bursts: xr.DataArray) -> None:
    """Print the table."""
    shifts = make_table(
        ("statistics", "noise", "tune", "draws", "f", "f × draws", "squared shift", "n"),
        title="Bursts at the true θ: n at which the limit's shift equals 1/√n",
    )
    for case in bursts.transpose("case", "figure"):
        noise, noise_error, shift, error = case.values
        seen = shift > 3 * error
        bound = f"not seen, > {1 / (max(shift, 0) + 2 * error):,.0f}"
        shifts.add_row(
            str(case["form"].values),
            f"{float(case['noise']):.1f}",
            str(int(case["tune"])),
            str(int(case["draws"])),
            f"{noise:.4f} ± {noise_error:.4f}",
            f"{noise * int(case['draws']):.2f}",
            f"{shift:.1e} ± {error:.0e}",
            f"{1 / shift:,.0f}" if seen else bound,
        )
    console.print(shifts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bursts", type=int, default=2_000, help="of each kind")
    parser.add_argument("--quick", action="store_true", help="200 bursts of each kind")
    parser.add_argument("--output", type=Path, default=Path("output"))
    given = parser.parse_args()
    tell_versions()
    given.output.mkdir(parents=True, exist_ok=True)
    bursts = at_truth(200 if given.quick else given.bursts, information(TRUTH))
    bursts.to_netcdf(given.output / "burst_noise.nc", engine="h5netcdf")
    tell_bursts(bursts)


if __name__ == "__main__":
    main()

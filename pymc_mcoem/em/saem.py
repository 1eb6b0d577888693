"""Batch SAEM: repeated iterations over all observations, whose chains continue."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.em.callbacks import Callback, check_callbacks
from pymc_mcoem.em.checks import check_family, check_start
from pymc_mcoem.em.driver import Driver
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.progress import RunProgress
from pymc_mcoem.em.saem_run import SAEMRun
from pymc_mcoem.em.saem_state import SAEMSettings
from pymc_mcoem.em.schedules import PhasedStepSize
from pymc_mcoem.interrupts import deferred
from pymc_mcoem.runs.checkpoint import Checkpoint, Checkpointing, claimed

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.runs.failed_records import OnError
    from pymc_mcoem.runs.workers import Workers

__all__ = ["SAEM"]


class SAEM(Driver[SAEMRun]):
    """Learn the parameters of a family from a finite set of observations, by batch SAEM.

    Each iteration moves the chain of every observation by some sweeps at the present parameters
    θ, blends the mean of the statistics into a running mean with gain γ_k, and maximizes θ. It
    has the same model, kernels and M-step as `OnlineEM` and serves as its benchmark.

    Parameters
    ----------
    family : Family
        The model, its statistics and its M-step.
    parameters : mapping of str to array_like, or xarray.Dataset, optional
        θ to start from. By default, the first `n_start` observations set the start.
    start : {"kmeans", "random", "exemplars"}
        How the family finds a start.
    n_start : int, optional
        Number of first observations, which set the start. Default: all, since they may be sorted; a
        stream cannot wait for all, so `OnlineEM` takes 50.
    step_size : PhasedStepSize or callable
        γ_k as a function of the iteration number k; the first must be 1. The moves within a
        class adapt while the gain is 1. Default: 1 for ten iterations, then (k − 10)^−0.7.
    draws : int
        Number of sweeps at each visit to an observation; all of them enter its statistics.
    refit_every : int
        Number of visits to an observation until its pseudo-priors are fitted again.
    e_step : EStep, optional
        Default: `CarlinChibBurst`. An E-step without a chain makes this many draws, if any.
    batch_size : int, float or None
        Number of observations that an iteration visits, at most all, or their share as a float in
        (0, 1]; None for all. They are drawn without replacement; the first iteration visits all.
        The statistics of observations that are not visited stay the same and still enter the mean.
    annealing : Annealing or callable, optional
        Temperature of iteration k, at least 1. Simulation is then at ``family.anneal(θ, T)``.
    random_seed : int or sequence of int, optional
        Seed; None takes one from the operating system. It is kept with the run.
    callbacks : sequence of callable
        Functions that are called after each iteration, as for `OnlineEM`. If one raises
        StopIteration, the call ends after that iteration.
    progressbar : bool
        Whether `fit` shows a progress bar.
    keep : int, optional
        Number of iterations at which the history keeps θ; see `OnlineEM`.
    thin : int
        The history keeps every `thin`-th iteration and visit.
    executor : concurrent.futures.Executor, int or Workers, optional
        Executor that visits the observations of an iteration, as for `OnlineEM`. The parameters
        are bitwise identical for any number of workers. Not saved with a run.
    on_error : {"raise", "skip"}, callable or pathlib.Path
        How to handle an observation that cannot be read, that the family refuses or whose visit
        fails: the call ends with an error, or the run goes on without it, and the history has
        its position and the reason. A function or a folder gets the observation, as for
        `OnlineEM`, in encoded form if its visit failed.
    refuse_beyond : float, optional
        An observation is refused at the first call if its largest distance from the median of all
        is more than this many times the median of these distances. None accepts all.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range or the family is not complete.

    Notes
    -----
    With S_i the mean statistics of observation i at its last visit and N observations, an
    iteration is s_k = s_{k−1} + γ_k (N⁻¹ Σ_i S_i − s_{k−1}), and θ_k is the M-step at s_k, with
    priors weighed against N observations. With mini-batches this is incremental: the mean is over
    all observations, not only the batch.

    Cost of an iteration: a burst for each observation visited. Memory: the observations and
    their chains; with `refit_every` above 1 also their pseudo-priors, two matrices for each
    class; and with mini-batches the statistics of each observation in the classes it visited
    (50 kilobytes per class, for 16 × 16 kernels and 72 displacements).

    References
    ----------
    Kuhn and Lavielle (2004), *Coupling a stochastic approximation version of EM with an MCMC
    procedure*; Kuhn, Matias and Rebafka (2020), *Properties of the stochastic approximation EM
    algorithm with mini-batch sampling*.

    Examples
    --------
    >>> from pymc_mcoem.templates import TemplateMixture
    >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
    >>> images = np.random.default_rng(1).normal(size=(4, 3, 3))
    >>> saem = SAEM(mixture, draws=5, random_seed=1, progressbar=False)
    >>> saem.fit(images, n_iterations=2)
    SAEM(TemplateMixture, n_iterations=2)
    >>> saem.fit(images, n_iterations=1).parameters["templates"].dims
    ('class', 'basis')
    """

    def __init__(
        self,
        family: Family,
        *,
        parameters: Mapping[str, Any] | xr.Dataset | None = None,
        start: Literal["kmeans", "random", "exemplars"] = "kmeans",
        n_start: int | None = None,
        step_size: Callable[[int], float] | None = None,
        draws: int = 20,
        refit_every: int = 1,
        e_step: EStep | None = None,
        batch_size: int | float | None = None,
        annealing: Callable[[int], float] | None = None,
        random_seed: int | Sequence[int] | None = None,
        progressbar: bool = True,
        keep: int | None = None,
        thin: int = 1,
        executor: Executor | int | Workers | None = None,
        on_error: OnError = "raise",
        refuse_beyond: float | None = 10_000.0,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        check_family(family)
        settings = SAEMSettings(
            e_step=CarlinChibBurst() if e_step is None else e_step,
            step_size=PhasedStepSize() if step_size is None else step_size,
            draws=draws,
            refit_every=refit_every,
            batch_size=batch_size,
            annealing=annealing,
            start=start,
            n_start=n_start,
            keep=keep,
            thin=thin,
            on_error=on_error,
            refuse_beyond=refuse_beyond,
        )
        check_start(family, start)
        self.family = family
        self.progressbar = progressbar
        self.callbacks = check_callbacks(callbacks)
        self.run = SAEMRun(family, settings, random_seed, executor)
        if parameters is not None:
            self.run.begin(family.check_parameters(parameters))

    _run_class = SAEMRun

    def fit(
        self,
        observations: Any,
        n_iterations: int,
        *,
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    ) -> Self:
        """Run iterations over a set of observations.

        Parameters
        ----------
        observations : array_like, DataArray, or iterable
            All observations, as `OnlineEM.partial_fit` takes them. They are held in memory
            during the call. A later call must be given the same ones.
        n_iterations : int
            Number of iterations to run, in addition to earlier ones.
        checkpoint : Checkpoint or path-like, optional
            Where the run is saved as it goes on. It is saved after the iteration that reaches the
            checkpoint's number of visited observations or of seconds. Ctrl-C then ends the call
            after the current iteration and saves the run. A run without any iteration does not
            replace the file of another run.

        Returns
        -------
        SAEM
            The driver itself. The model's ``pm.Data`` hold the last θ.

        Raises
        ------
        ValueError, TypeError
            If there is no observation, if the family refuses one, or if they are not the
            observations that the run began with; then nothing changes.
        FileExistsError
            If a run without any iteration would be saved over files of another.
        BlockingIOError
            If another run is being saved in the same file.
        OSError
            If a checkpoint cannot be written; the run is as after the last iteration.
        FloatingPointError, RuntimeError
            If an iteration fails; the run is as before it. A RuntimeError also if another thread
            calls during a call; then nothing changes.
        MemoryError, OSError
            If memory or a disk fails three times in a row; the run is as before the iteration.
        Exception
            Any exception of the source, or of a callback after an iteration, which is kept.

        Notes
        -----
        With ``on_error="skip"`` errors of an observation raise nothing, except if a hundred fail
        in a row or none is left. If an observation fails at its first visit, the run is as one over
        the others, except that it had a part in the start. If it fails later, its effect on θ so
        far stays, and its contribution leaves the mean. Give later calls all observations again;
        they skip the same ones.

        In the main thread, an interrupt (Ctrl-C) ends the call after the current iteration. A
        second one ends it at once and loses only that iteration.
        """
        if isinstance(n_iterations, bool) or not isinstance(n_iterations, (int, np.integer)):
            raise TypeError(f"n_iterations: got {n_iterations!r}; give a whole number from 1.")
        if n_iterations < 1:
            raise ValueError(f"n_iterations: got {n_iterations}; give a whole number from 1.")
        saved_in, run = Checkpoint.of(checkpoint), self.run
        with (
            deferred("iterations") as interrupts,
            run.alone.call(),
            telling(self.progressbar),
            claimed(saved_in, None if run.state.n_steps else run.files),
        ):
            encoded = run.read(observations, interrupts.between)
            first = run.state.n_steps + 1
            n_visits = sum(
                len(run.batch(number, len(encoded)))
                for number in range(first, first + n_iterations)
            )
            # Compile before the bar is shown, which would not move meanwhile.
            run.executor.prepare()
            interrupts.between()
            with (
                RunProgress(self.progressbar, n_visits) as progress,
                Checkpointing(saved_in, run.file_content, lambda: run.state) as saving,
            ):
                try:
                    for _ in range(n_iterations):
                        report = run.iterate(encoded, progress.visited)
                        progress.stands(run.state)
                        ends = self.tell(report)
                        interrupts.between()
                        saving.took(len(report.observations))
                        if ends:
                            break
                finally:
                    run.show_parameters()
        return self

    @property
    def parameters(self) -> xr.Dataset:
        """Parameters θ by name, with the model's dims.

        Raises
        ------
        ValueError
            If there are none yet.
        """
        if self.run.state.parameters is None:
            raise ValueError(
                "parameters: there are none, since nothing was fitted and none were given; call "
                "fit first, or pass parameters= to SAEM."
            )
        return self.family.to_dataset(self.run.state.parameters)

    @property
    def n_iterations(self) -> int:
        """Number of iterations so far."""
        return self.run.state.n_steps

    def __repr__(self) -> str:
        """Return the family and the number of iterations."""
        kind = type(self.family).__name__
        return f"{type(self).__name__}({kind}, n_iterations={self.n_iterations})"

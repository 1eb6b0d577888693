"""Batch SAEM: all observations again and again, with chains that stay alive."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import OneAtATime
from pymc_mcoem.em.checks import check_family
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.family_record import require_family
from pymc_mcoem.em.history import History
from pymc_mcoem.em.progress import RunProgress
from pymc_mcoem.em.saem_observations import require_same, take
from pymc_mcoem.em.saem_recursion import SAEMRecursion
from pymc_mcoem.em.saem_state import SAEMSettings, SAEMState
from pymc_mcoem.em.saem_storage import read_saem, saem_bytes, state_from
from pymc_mcoem.em.schedules import PhasedStepSize
from pymc_mcoem.em.storage import entropy_in, settings_of, stored_settings
from pymc_mcoem.interrupts import deferred
from pymc_mcoem.runs.atomic_files import write_whole
from pymc_mcoem.runs.checkpoint import Checkpoint, Checkpointing, claimed
from pymc_mcoem.runs.datatree_files import named_damage, require_file_name
from pymc_mcoem.runs.failed_records import LeftOut, leave_out
from pymc_mcoem.runs.settings import on_backend, run_attributes, seed_entropy, stored_alike

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labelling import Arrays
    from pymc_mcoem.runs.executor import Workers
    from pymc_mcoem.runs.failed_records import OnError

__all__ = ["SAEM"]

_log = logging.getLogger("pymc_mcoem")


class SAEM:
    """Learn the parameters of a family from a finite set of observations, all of them at once.

    Each iteration moves the chain of every observation by some sweeps at the present parameters
    θ, blends the mean of the statistics into a running mean with gain γ_k, and maximises θ. It
    is what `OnlineEM` is measured against, with the same model, kernels and M-step.

    Parameters
    ----------
    family : Family
        The model, its statistics and its M-step.
    parameters : mapping of str to array_like, or xarray.Dataset, optional
        θ to start from. Not given: the first `n_start` observations set the start.
    start : {"kmeans", "random"}
        How the family finds a start.
    n_start : int, optional
        Observations that set it. Default: all.
    step_size : PhasedStepSize or callable
        γ_k as a function of the iteration's number k; the first must be 1. The moves within a
        class adapt while the gain is 1. Default: 1 for ten iterations, then (k − 10)^−0.7.
    sweeps : int
        Sweeps of the chain at each visit to an observation; all of them enter its statistics.
    refit_every : int
        Visits to an observation until its pseudo-priors are fitted again.
    e_step : EStep, optional
        Default: `CarlinChibBurst`. E-steps without a chain, as `Exact`, are asked for `sweeps`
        draws at each visit.
    batch_fraction : float
        Share of the observations that an iteration visits, drawn without return; the first
        iteration visits all. The statistics of those that are not visited stay as they were and
        enter the mean all the same.
    annealing : Annealing or callable, optional
        Temperature of iteration k, at least 1. Simulation is then at ``family.anneal(θ, T)``.
    random_seed : int or sequence of int, optional
        Seed; None takes one from the operating system. It is kept with the run.
    progressbar : bool
        Whether a bar shows how a call of `fit` proceeds.
    keep : int, optional
        Iterations at which the history keeps θ; see `OnlineEM`.
    thin : int
        The history keeps every `thin`-th iteration and visit.
    executor : concurrent.futures.Executor or int, optional
        Who visits the observations of an iteration, as for `OnlineEM`. The parameters are the
        same, to the last bit, whoever works. Not saved with a run.
    on_error : {"raise", "skip"}, callable or pathlib.Path
        What becomes of an observation that cannot be read, that the family refuses or whose visit
        fails: the call ends with an error, or the run goes on without it, and the history has
        its position and the reason. A function or a folder gets it, as for `OnlineEM`; one whose
        visit failed as it was encoded.
    refuse_beyond : float, optional
        An observation is refused at the first call if it reaches so many times as far from the
        median of all as the middle one of them does. None takes all.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range or the family is not complete.

    Notes
    -----
    One iteration, with S_i the mean statistics of observation i at its last visit and N
    observations: s_k = s_{k−1} + γ_k (N⁻¹ Σ_i S_i − s_{k−1}), and θ_k maximises what s_k is
    worth, priors weighed against N observations. With ``batch_fraction`` below 1 this is
    incremental, not the mean over the batch alone.

    Cost of an iteration: a burst for each observation visited. Memory: the observations and
    their chains; with `refit_every` above 1 also their pseudo-priors, two matrices for each
    class, and with mini-batches the statistics of each observation in the classes it visited
    (50 kilobytes a class, for 16 × 16 kernels and 72 displacements).

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
    >>> saem = SAEM(mixture, sweeps=5, random_seed=1, progressbar=False)
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
        start: Literal["kmeans", "random"] = "kmeans",
        n_start: int | None = None,
        step_size: Callable[[int], float] | None = None,
        sweeps: int = 20,
        refit_every: int = 1,
        e_step: EStep | None = None,
        batch_fraction: float = 1.0,
        annealing: Callable[[int], float] | None = None,
        random_seed: int | Sequence[int] | None = None,
        progressbar: bool = True,
        keep: int | None = None,
        thin: int = 1,
        executor: Executor | int | Workers | None = None,
        on_error: OnError = "raise",
        refuse_beyond: float | None = 10_000.0,
    ) -> None:
        check_family(family)
        settings = SAEMSettings(
            e_step=CarlinChibBurst() if e_step is None else e_step,
            step_size=PhasedStepSize() if step_size is None else step_size,
            sweeps=sweeps,
            refit_every=refit_every,
            batch_fraction=batch_fraction,
            annealing=annealing,
            start=start,
            n_start=n_start,
            keep=keep,
            thin=thin,
            on_error=on_error,
            refuse_beyond=refuse_beyond,
        )
        self.family = family
        self.progressbar = progressbar
        #: Files that this run is saved in.
        self._own: set[Path] = set()
        self._settings = settings
        self._entropy = seed_entropy(random_seed)
        self._recursion = SAEMRecursion(family, settings, self._entropy, executor)
        self._history = History(family, keep, thin)
        self._state = SAEMState()
        self._alone = OneAtATime("SAEM.fit")
        if parameters is not None:
            self._begin(family.check_parameters(parameters))

    def fit(
        self,
        observations: Any,
        n_iterations: int,
        *,
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    ) -> Self:
        """Make some iterations over a set of observations.

        Parameters
        ----------
        observations : array_like, DataArray, or iterable
            All observations, as `OnlineEM.partial_fit` takes them. They are held in memory
            during the call. A later call goes on with the same ones.
        n_iterations : int
            Iterations to make, beside those that were made before.
        checkpoint : Checkpoint or path-like, optional
            Where the run is saved while it goes on, after the iteration in which as many
            observations were visited, or so many seconds have passed, as it says. Ctrl-C then
            ends the call after the iteration that is at work, saved. A run that has made no
            iteration yet replaces no file of another.

        Returns
        -------
        SAEM
            The driver itself. The model's ``pm.Data`` hold its last θ.

        Raises
        ------
        ValueError, TypeError
            If there is no observation, the family refuses one, or a run goes on with others
            than it began with; nothing is changed then.
        FileExistsError
            If a run that has made no iteration would be saved over files of another.
        BlockingIOError
            If another run is being saved in the same file.
        OSError
            If a checkpoint cannot be written; the run stands as after the last iteration.
        FloatingPointError, RuntimeError
            If an iteration fails; the run stands as after the one before. A RuntimeError also
            where another thread calls while a call is at work; that changes nothing.
        MemoryError, OSError
            If memory or a disk fails, three times in a row; the run stands likewise.
        Exception
            What the source raises.

        Notes
        -----
        With ``on_error="skip"`` errors of an observation raise nothing, but for a hundred in a row,
        or if none is left. One that fails at its first visit leaves no trace, but for a part in
        the start: the run is that over the others. Of one that fails later, what θ has learnt
        stays, and what it contributed leaves the mean. Later calls are given all observations
        again, and leave out the same.

        An interrupt (Ctrl-C) ends the call after the iteration that is at work, in the main
        thread; a second one ends it at once, and loses that iteration and nothing else.
        """
        if isinstance(n_iterations, bool) or not isinstance(n_iterations, (int, np.integer)):
            raise TypeError(f"n_iterations: got {n_iterations!r}; give a whole number from 1.")
        if n_iterations < 1:
            raise ValueError(f"n_iterations: got {n_iterations}; give a whole number from 1.")
        saved_in = Checkpoint.of(checkpoint)
        with (
            deferred("iterations") as interrupts,
            self._alone.call(),
            telling(self.progressbar),
            claimed(saved_in, None if self._state.n_iterations else self._own),
        ):
            encoded = self._taken(observations, interrupts.between)
            first = self._state.n_iterations + 1
            n_visits = sum(
                len(self._recursion.batch(number, len(encoded)))
                for number in range(first, first + n_iterations)
            )
            # Compiling comes before the bar, which would stand still.
            self._recursion.crew.prepare()
            interrupts.between()
            with (
                RunProgress(self.progressbar, n_visits) as progress,
                Checkpointing(saved_in, self._content, lambda: self._state) as saving,
            ):
                try:
                    for _ in range(n_iterations):
                        report, left_out = self._recursion.iterate(
                            self._state, encoded, progress.visited
                        )
                        self._leave_out(left_out, encoded)
                        self._tell_troubles(report.state)
                        self._history.append(report)
                        self._state = report.state
                        progress.stands(self._state)
                        interrupts.between()
                        saving.took(len(report.observations))
                finally:
                    self.family.set_model_parameters(self._state.parameters or {})
        return self

    def _taken(self, observations: Any, between: Callable[[], None]) -> dict[int, Arrays]:
        """Read the observations, and begin with them or find them those of the run."""
        taken = take(self.family, observations, self._state, self._settings, between)
        encoded = taken.encoded
        self._leave_out(taken.reasons, taken.refused)
        if self._state.chains:
            state = self._state.without(taken.reasons)
            require_same(taken, state)
            self._state = state
        else:
            if self._state.parameters is None:
                self._begin(self._recursion.start([*taken.held.values()]))
            parameters = self._state.parameters or {}
            self._state = self._recursion.begin(self._state, encoded, taken.n_records, parameters)
        between()
        return encoded

    def _tell_troubles(self, following: SAEMState) -> None:
        for name in sorted(following.troubles.keys() - self._state.troubles.keys()):
            _log.warning(
                "Iteration %d: %s. Further ones are only counted, in history.",
                following.n_iterations,
                name,
            )

    @property
    def parameters(self) -> xr.Dataset:
        """Parameters θ by name, with the model's dims.

        Raises
        ------
        ValueError
            If there are none yet.
        """
        if self._state.parameters is None:
            raise ValueError(
                "parameters: there are none, since nothing was fitted and none were given; call "
                "fit first, or pass parameters= to SAEM."
            )
        return self.family.to_dataset(self._state.parameters)

    @property
    def n_iterations(self) -> int:
        """Iterations made."""
        return self._state.n_iterations

    @property
    def history(self) -> xr.DataTree:
        """What happened so far, in the form of `OnlineEM.history`.

        Returns
        -------
        xarray.DataTree
            As `OnlineEM.history`; a step is an iteration, ``observation`` counts visits, and a
            ``position`` among ``skipped`` is one among the observations given to `fit`.
        """
        return self._history_at(self._state)

    def _history_at(self, state: SAEMState) -> xr.DataTree:
        attributes = run_attributes("SAEM", self._entropy, self._settings)
        return self._history.to_datatree(state, attributes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the run to a netCDF file, whole or not at all; the observations are not in it.

        Parameters
        ----------
        path : path-like
            Where to; a file that is there is replaced.

        Raises
        ------
        FileNotFoundError
            If the folder does not exist.
        OSError
            If it cannot be written, as where the disk is full. Nothing is left of it then, and the
            run is as it was.
        """
        target = require_file_name(path)
        write_whole(target, self._content("save"))
        self._own.add(target)

    def _content(self, written_by: str = "checkpoint") -> bytes:
        state = self._state  # once: another thread may be at work
        return saem_bytes(
            state,
            self._settings,
            self._entropy,
            self.family,
            self._history,
            self._history_at(state),
            written_by,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], family: Family, **overrides: Any) -> Self:
        """Read a saved run, which goes on to the same numbers as if never stopped.

        Parameters
        ----------
        path : path-like
            What `save` wrote.
        family : Family
            Of the kind and size that the run was saved with.
        **overrides
            Arguments of `SAEM` that take the place of saved ones, or that a file cannot hold. With
            another `e_step` than the saved one, as far as the file can tell, all chains begin anew:
            step sizes of one move are none of another.

        Raises
        ------
        FileNotFoundError, ValueError, TypeError
            If there is no such file, it is no saved run of `SAEM`, is damaged or of another
            family, or an argument is unknown or missing.

        Examples
        --------
        >>> import tempfile
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> saem = SAEM(mixture, parameters=mixture.parameters, random_seed=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saem.save(f"{folder}/run.nc")
        ...     SAEM.load(f"{folder}/run.nc", mixture)
        SAEM(TemplateMixture, n_iterations=0)
        """
        tree = read_saem(path)
        check_family(family)
        with named_damage(path):
            described = dict(json.loads(tree.attrs["family"]))
            stored = stored_settings(tree.attrs["settings"], SAEMSettings)
        require_family(path, described, family)
        settings = settings_of(stored, overrides)
        with named_damage(path, given=("family", *overrides)):
            state = state_from(tree, family)
            if not stored_alike(tree.attrs["settings"], settings, "e_step"):
                state = state.with_new_chains()
            settings["e_step"] = on_backend(settings["e_step"], str(tree.attrs.get("backend", "")))
            saem = cls(family, random_seed=entropy_in(tree), **settings)
            strides = json.loads(tree.attrs["strides"])
            saem._history.restore(tree, path_stride=strides[0], observation_stride=strides[1])
            saem._state = state
            saem._history.to_datatree(state, {})
        saem._own.add(Path(path))
        return saem

    def _begin(self, parameters: dict[str, np.ndarray]) -> None:
        self._history.begin(parameters)
        self._state = SAEMState(parameters=parameters)

    def _leave_out(self, reasons: Mapping[int, str], observations: Mapping[int, Any]) -> None:
        lost = [LeftOut(at, reason, observations.get(at)) for at, reason in reasons.items()]
        leave_out(self._history, self._settings.on_error, lost)

    def __repr__(self) -> str:
        """Say what is learnt and how far."""
        kind = type(self.family).__name__
        return f"{type(self).__name__}({kind}, n_iterations={self.n_iterations})"

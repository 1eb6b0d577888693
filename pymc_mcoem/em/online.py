"""Online EM: learn parameters from a stream of observations (label ``alg:MCoEM``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self

import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.em.callbacks import Callback, Update, check_callbacks
from pymc_mcoem.em.checks import check_family, check_start
from pymc_mcoem.em.drift import DriftAlarm
from pymc_mcoem.em.driver import Driver
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.labels import labels_of
from pymc_mcoem.em.online_run import OnlineRun
from pymc_mcoem.em.progress import RunProgress
from pymc_mcoem.em.read_by_workers import looked_at, next_batch, read_held
from pymc_mcoem.em.revival import Revival
from pymc_mcoem.em.run_state import OnlineSettings
from pymc_mcoem.em.schedules import BurstLength, BurstSize, StepSize, UpdateSchedule
from pymc_mcoem.em.stream import check_skip, count_observations, read
from pymc_mcoem.interrupts import deferred
from pymc_mcoem.runs.checkpoint import Checkpoint, Checkpointing, claimed

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import EStep
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import OnlineState, StepReport
    from pymc_mcoem.runs.failed_records import OnError
    from pymc_mcoem.runs.workers import Workers

__all__ = ["OnlineEM"]


class OnlineEM(Driver[OnlineRun]):
    """Learn the parameters of a family from a stream in a single pass.

    For each observation, a burst of a sampler, or another E-step, estimates the posterior means of
    the family's statistics at the present parameters θ. They are blended into running means with
    gain ϱ_n. When the update schedule says so, θ is maximized given these.

    Parameters
    ----------
    family : Family
        The model, its statistics and its M-step.
    parameters : mapping of str to array_like, or xarray.Dataset, optional
        θ to start from. By default, the first `n_start` observations are held, set the start, and
        are then learned in order.
    start : {"kmeans", "random", "exemplars"}
        How the family finds a start.
    n_start : int
        Number of first observations, which are held and set the start.
    step_size : StepSize or callable
        ϱ_n as a function of the step number n; the first must be 1. Default: n^−0.6.
    update_schedule : UpdateSchedule or callable
        Whether θ is maximized after observation n. Default: after 10, 15, 20, and every observation
        from there. A class that is not ready (see `Family.ready`) keeps all parameters but its
        weight.
    burst_length : BurstLength or callable
        `BurstSize` for observation n.
    e_step : EStep, optional
        Default: `CarlinChibBurst`.
    batch_size : int
        Number of observations per step, whose statistics are averaged. An incomplete mini-batch
        is held. If one observation fails, the E-step runs again for the others and the next one,
        with the generators of a stream without the one that failed.
    executor : concurrent.futures.Executor, int or Workers, optional
        Executor that runs the E-steps of a mini-batch: a process pool, Dask's
        ``client.get_executor(pure=False)``, mpi4py's ``MPIPoolExecutor``; a number stands for a
        pool of as many processes that the driver makes itself. `batch_size` should be at least the
        number of workers. The parameters are bitwise identical for any number of workers.
        `Workers` ends those that hang. Not saved with a run.
    on_error : {"raise", "skip"}, callable or pathlib.Path
        How to handle a record that cannot be read, that the family refuses or that cannot be
        learned: the call ends with an error, or the stream goes on without it. In both cases the
        history has its position and the reason. A function is called with each skipped record,
        which has ``position``, ``reason`` and ``observation`` (None if it could not be read), and
        the stream goes on; an exception in the function ends the call, and the next call reads the
        record again. A folder gets a file for each record, ``000000000017.npz`` for record 17, with
        the same three names. Functions and folders are not saved with a run. A record that was used
        for the start and cannot be learned later stays in the start.
    refuse_beyond : float, optional
        A finite record is refused if its largest distance from the median of the last hundred
        records is more than this many times the median of their own distances. Records held for
        the start are checked again before they set it. While there are fewer than ten records, or
        if all are alike, only records 10¹² times as large as others are refused (as the declared
        parameters, if one or two records set the start). None accepts all.
    average_from : int, optional
        Number of observations after which θ is averaged (Polyak and Ruppert): `parameters` is
        then the average, `last_parameters` the last θ.
    revival : Revival, optional
        When and how empty classes get half of another's observations. Default: they stay empty.
    random_seed : int or sequence of int, optional
        Seed; None takes one from the operating system. It is kept with the run.
    callbacks : sequence of callable
        Functions that are called in order after each step, in the driver's process and thread,
        with an `Update`: the driver, and the records of the step's observations. If one raises
        StopIteration, the call ends after that step as it does after the last observation. Any
        other exception is raised, and nothing that was learned is lost. `LivePlot` draws the
        templates. A `DriftAlarm` replaces the one that each run has and that warns when the
        evidence of observations falls. Not saved with a run, nor copied with a driver.
    progressbar : bool
        Whether calls with more than one observation show a progress bar.
    keep : int, optional
        Number of steps at which the history keeps θ. Default: as many as fit into a million
        numbers, at least 200 and at most 10,000. A longer history keeps every second, fourth, ...
        step.
    thin : int
        The history keeps every `thin`-th step and observation from the beginning.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of its range or the family is not complete.

    Notes
    -----
    The result of a run depends only on the seed and the sequence of observations, not on how the
    stream is divided into calls. Memory does not grow with the stream.

    References
    ----------
    Maire, Moulines and Lefebvre (2017), *Online EM for functional data*, algorithm 1.

    Examples
    --------
    Two normals around unknown locations, with a closed-form E-step:

    >>> import numpy as np, pymc as pm
    >>> from pymc_mcoem.em.esteps.exact import Exact
    >>> from pymc_mcoem.em.family import Family
    >>> class Locations(Family):
    ...     observation = ("y",)
    ...
    ...     def __init__(self):
    ...         with pm.Model() as self.model:
    ...             locations = pm.Data("locations", [-1.0, 1.0])
    ...             y = pm.Data("y", 0.0)
    ...             self.class_index = pm.Categorical("class_index", p=[0.5, 0.5])
    ...             pm.Normal("value", locations[self.class_index], 1.0, observed=y)
    ...         self.statistics = {"y": y}
    ...
    ...     def maximize(self, statistics, *, effective_size):
    ...         return {"locations": statistics["y"] / statistics["class_weight"]}
    ...
    ...     def exact(self, data, parameters):
    ...         odds = np.exp(-0.5 * (data["y"] - parameters["locations"]) ** 2)
    ...         return {"class_weight": odds / odds.sum(), "y": odds / odds.sum() * data["y"]}
    >>> rng = np.random.default_rng(0)
    >>> stream = rng.choice([-2.0, 2.0], size=500) + rng.normal(size=500)
    >>> em = OnlineEM(Locations(), e_step=Exact(), random_seed=1, progressbar=False)
    >>> em.partial_fit(stream[:400]).partial_fit(stream[400:]).n_seen
    500
    >>> em.parameters["locations"].values.round()
    array([-2.,  2.])
    """

    def __init__(
        self,
        family: Family,
        *,
        parameters: Mapping[str, Any] | xr.Dataset | None = None,
        start: Literal["kmeans", "random", "exemplars"] = "kmeans",
        n_start: int = 50,
        step_size: Callable[[int], float] | None = None,
        update_schedule: Callable[[int], bool] | None = None,
        burst_length: Callable[[int], BurstSize] | None = None,
        e_step: EStep | None = None,
        batch_size: int = 1,
        average_from: int | None = None,
        revival: Revival | None = None,
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
        settings = OnlineSettings(
            step_size=StepSize() if step_size is None else step_size,
            update_schedule=UpdateSchedule() if update_schedule is None else update_schedule,
            burst_length=BurstLength() if burst_length is None else burst_length,
            e_step=CarlinChibBurst() if e_step is None else e_step,
            start=start,
            n_start=n_start,
            batch_size=batch_size,
            average_from=average_from,
            keep=keep,
            thin=thin,
            on_error=on_error,
            refuse_beyond=refuse_beyond,
            revival=revival,
        )
        check_start(family, start)
        self.family = family
        self.progressbar = progressbar
        self.callbacks = check_callbacks(callbacks)
        self._alarm: DriftAlarm | None = DriftAlarm.of_run(n_start)
        self.run = OnlineRun(family, settings, random_seed, executor)
        if parameters is not None:
            self.run.begin(family.check_parameters(parameters))

    _run_class = OnlineRun

    @classmethod
    def as_in_paper(cls, family: Family, **overrides: Any) -> Self:
        """Return a driver with the paper's kernel, pseudo-priors, schedules and random start.

        Parameters
        ----------
        family : Family
            The model.
        **overrides
            Arguments of `OnlineEM` that replace the paper's.

        Notes
        -----
        Sections ``subsec:5:1`` and ``subsec:5:2`` of the paper. For images: M-steps at 50, 75, and
        every observation from 100 on; pilot moments; 200 sweeps per burst up to n = 100, then 500,
        each with 100 sweeps of tuning. For curves: 300 sweeps, 100 of them tuning, and
        pseudo-priors with the prior covariance around the mode (`Family.paper_settings`). The
        paper gives no step size; here it is n^−0.6. Its model of images has variances of motions
        that are not learned, and no priors: ``rigid_weight=None, priors=TemplatePriors()``, which
        are weak.

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture, TemplatePriors
        >>> mixture = TemplateMixture.for_images(
        ...     (3, 3), 2, n_landmarks=2, rigid_weight=None, priors=TemplatePriors()
        ... )
        >>> em = OnlineEM.as_in_paper(mixture, random_seed=1, burst_length=BurstLength(20))
        >>> "PilotMoments" in em.history.attrs["settings"]
        True
        """
        check_family(family)
        paper: dict[str, Any] = {
            "start": "random",
            "step_size": StepSize.paper(),
            "update_schedule": UpdateSchedule.paper(),
            "burst_length": BurstLength.paper(),
        }
        if "e_step" not in overrides:
            paper["e_step"] = CarlinChibBurst.as_in_paper()
        return cls(family, **(paper | family.paper_settings() | overrides))

    def prepare(self, observation: Any = None) -> Self:
        """Compile everything that learning needs, without learning.

        Parameters
        ----------
        observation : array_like, optional
            If given, one step is run with it and discarded, so that code that compiles at its
            first call is compiled too.

        Returns
        -------
        OnlineEM
            The driver itself, unchanged.
        """
        with telling(self.progressbar):
            self.run.prepare(observation)
        return self

    def partial_fit(
        self,
        observations: Any,
        labels: Any = None,
        *,
        skip: int = 0,
        checkpoint: Checkpoint | str | os.PathLike[str] | None = None,
    ) -> Self:
        """Learn observations, each once, in the given order.

        Parameters
        ----------
        observations : array_like, DataArray, or iterable
            One observation, an array of shape ``(n, *grid)``, or any iterable of observations,
            which is consumed lazily, never read ahead.
        labels : sequence, optional
            For each observation the number of its class, counted from 0, or several such numbers of
            which one is right, or None, NaN or -1 where the class is unknown. The posterior is then
            conditional on the label too. A k-means start also uses the labels.
        skip : int
            Number of records of `observations` to skip: ``skip=em.position`` continues a stream
            that is given again from its beginning. In arrays, sequences and `Passes`, skipped
            records are not read, except the first; streams of batches and other iterables are
            iterated over.
        checkpoint : Checkpoint or path-like, optional
            Where the run is saved as it goes on; a path alone means every 100 observations.
            Ctrl-C then ends the call after the current observation and saves the run. A run that
            has learned nothing yet does not replace the file of another run.

        Returns
        -------
        OnlineEM
            The driver itself. The model's ``pm.Data`` hold the last θ, once there is one.

        Raises
        ------
        ValueError, TypeError
            If there is no observation at all, or `labels` do not match them or the classes; then
            nothing changes. If the family refuses an observation: the error names it, those before
            it stay learned, and the next call goes on after it.
        FileExistsError
            If a run that has learned nothing would be saved over files of another.
        BlockingIOError
            If another run is being saved in the same file.
        OSError
            If a checkpoint cannot be written, for example because the disk is full. The run has
            learned the last observation; nothing is lost as long as the driver is kept.
        FloatingPointError
            If statistics or parameters are not finite. The observation is skipped.
        RuntimeError
            If a step fails for another reason. The observation is skipped. Also if another thread,
            or the source, calls the driver during a call; then nothing changes.
        MemoryError, OSError
            If memory, a disk or a network fails three times in a row. The observation is held.
        ExecutorError
            If workers fail for reasons other than an observation. Their observations are held.
        Exception
            Any exception of the source; the record is not counted. Any exception of a callback;
            the step before it is learned.

        Notes
        -----
        With ``on_error="skip"`` errors of a record raise nothing. In the main thread, an interrupt
        (Ctrl-C) ends the call after the current observation. A second one ends it at once; the
        current observation is then held, and learned with the next one. Neither loses anything.

        Examples
        --------
        The first 50 observations are held for the start, and counted:

        >>> import numpy as np
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> em = OnlineEM(mixture, random_seed=1, progressbar=False)
        >>> em.partial_fit(np.zeros((3, 3))).partial_fit(np.ones((4, 3, 3))).n_seen
        5

        Of the next three, one is of class 1, and the second of class 0 or 1:

        >>> em.partial_fit(np.ones((3, 3, 3)), [1, {0, 1}, None]).n_seen
        8
        """
        check_skip(skip)
        saved_in = Checkpoint.of(checkpoint)
        run, n_new = self.run, 0
        total = count_observations(self.family, observations)
        allowed = labels_of(self.family, labels, total)
        if labels is not None:
            # observations with labels have more evidence: what follows them would be a fall
            self._alarm = None
        left = None if total is None else max(total - skip, 0)
        whole = None if left is None else left + len(run.state.pending)
        with (
            deferred("observations") as interrupts,
            run.alone.call(),
            telling(self.progressbar),
            claimed(saved_in, None if run.state.position else run.files),
            RunProgress(self.progressbar and left != 1, whole) as progress,
            Checkpointing(saved_in, run.file_content, lambda: run.state) as saving,
        ):

            def learn() -> bool:
                """Learn what is held, and return whether a callback ends the call."""
                for report in run.learn():
                    progress.learned(report)
                    ends = self.tell(report)
                    interrupts.between()
                    if ends:
                        return True
                return False

            try:
                # observations held since an interrupt, a callback or the loss of an executor
                ends = learn()
                look = partial(
                    looked_at,
                    executor=run.executor,
                    wanted=lambda: next_batch(run.state, run.settings),
                )
                source = read(
                    self.family, observations, skip, look if run.executor.is_remote else None
                )
                given = () if ends else zip(source, islice(allowed, skip, None), strict=False)
                for observation, classes in given:
                    run.accept(observation, n_new, classes)
                    n_new += 1
                    progress.seen(run.state, n_new)
                    ends = learn()
                    interrupts.between()
                    saving.took()
                    if ends:
                        break
                run.state = read_held(run.state, run.executor)
            finally:
                run.show_parameters()
        if not (n_new or skip or ends):
            raise ValueError("observations: got none; pass at least one observation.")
        return self

    def tell(self, report: StepReport[OnlineState]) -> bool:
        """Call the callbacks after a step, and the run's own alarm if there is none among them."""
        given = any(isinstance(callback, DriftAlarm) for callback in self.callbacks)
        if self._alarm is not None and not given:
            self._alarm(Update(self, report.observations))
        return super().tell(report)

    @property
    def parameters(self) -> xr.Dataset:
        """Parameters θ by name, with the model's dims; the average, if averaging has begun.

        While observations are held, or before the first update, these are the parameters as if
        the stream ended here, and otherwise those of the last update; reading them changes
        nothing.
        """
        state = self.run.ended_state()
        return self.family.to_dataset(state.average or state.parameters or {})

    @property
    def last_parameters(self) -> xr.Dataset:
        """The last θ instead of the average, otherwise like `parameters`."""
        return self.family.to_dataset(self.run.ended_state().parameters or {})

    @property
    def n_seen(self) -> int:
        """Number of observations seen: learned, or held for the start or a mini-batch."""
        return self.run.state.n_seen

    @property
    def position(self) -> int:
        """Number of records taken from streams, including refused ones."""
        return self.run.state.position

    def __repr__(self) -> str:
        """Return the family and the number of observations seen."""
        return f"{type(self).__name__}({type(self.family).__name__}, n_seen={self.n_seen})"

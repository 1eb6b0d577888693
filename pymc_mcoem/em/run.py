"""Base classes of drivers and their runs: history, files, generators and E-steps."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.arithmetic import strict_arithmetic
from pymc_mcoem.compiling.threads import OneAtATime, one_blas_thread
from pymc_mcoem.em.checks import check_family, check_layout, check_shapes
from pymc_mcoem.em.esteps.worker_calls import Explainer
from pymc_mcoem.em.family_record import describe_family, require_family
from pymc_mcoem.em.history import History
from pymc_mcoem.em.run_state import ObservationRecord, Pending, RunSettings, RunState, StepReport
from pymc_mcoem.em.storage import SavedRun, read_run, run_bytes, settings_of
from pymc_mcoem.em.stream import Unreadable
from pymc_mcoem.interrupts import patiently, raise_if_interrupted, require_own_fault
from pymc_mcoem.runs.atomic_files import write_whole
from pymc_mcoem.runs.datatree_files import named_damage, require_file_name
from pymc_mcoem.runs.executor import Dispatcher, Workers
from pymc_mcoem.runs.failed_records import FailedRecord, leave_out, named
from pymc_mcoem.runs.settings import on_backend, run_attributes, seed_entropy
from pymc_mcoem.runs.workers import ExecutorError, Order

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pymc_mcoem.em.esteps.base import CompiledEStep, EStepResult
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.labelling import Arrays

__all__ = ["Driver", "Run", "added", "blended", "timed"]

_log = logging.getLogger("pymc_mcoem")


class Run[State: RunState, Settings: RunSettings]:
    """A run: its settings, its state and its history.

    The state is never changed in place. A step makes a new one, so that a step that fails or is
    interrupted leaves the old one as it was.

    Parameters
    ----------
    family : Family
        The model.
    settings : RunSettings
        Settings of the run.
    random_seed : int, sequence of int, or None
        Every observation has its own generator, made from the seed and the observation's number,
        so that a run can be continued from these two.
    executor : concurrent.futures.Executor, int, Workers or None
        Executor that runs the E-steps; see `Dispatcher`.
    """

    #: The driver's name, its method that takes observations, and the classes of settings and state.
    driver: ClassVar[str]
    method: ClassVar[str]
    settings_class: ClassVar[type[RunSettings]]
    state_class: ClassVar[type[Any]]
    #: Unit that log messages count in.
    unit: ClassVar[str]

    def __init__(
        self,
        family: Family,
        settings: Settings,
        random_seed: int | Sequence[int] | None,
        executor: Executor | int | Workers | None = None,
    ) -> None:
        self.family = family
        self.settings = settings
        self.state: State = self.state_class()
        self.random_seed = seed_entropy(random_seed)
        self.executor = Dispatcher(partial(Explainer.of, family, settings.e_step), executor)
        self.history = History(family, settings.keep, settings.thin)
        self.alone = OneAtATime(f"{self.driver}.{self.method}")
        #: Files that this run is saved in.
        self.files: set[Path] = set()

    @property
    def e_step(self) -> CompiledEStep:
        """The E-step, compiled in this process at its first use, which can take seconds."""
        compiled: CompiledEStep = self.executor.compiled.e_step
        return compiled

    def generator(self, *key: int) -> np.random.Generator:
        """Return the generator of an observation by its number; number 0 is for the start."""
        return np.random.default_rng(np.random.SeedSequence(self.random_seed, spawn_key=key))

    def begin(self, parameters: Arrays) -> None:
        """Start from `parameters`."""
        self.history.begin(parameters)
        self.state = replace(self.state, parameters=parameters)

    def initial_parameters(
        self, observations: list[Any], allowed: np.ndarray | None = None
    ) -> Arrays:
        """Return the family's starting parameters, found from some observations.

        `allowed`, ``(n_observations, n_classes)``, says which classes may have made each; None: all
        of them.
        """
        given = observations, self.generator(0), self.settings.start
        with strict_arithmetic(), one_blas_thread():
            if allowed is None:
                found = self.family.initialize(*given)
            else:
                found = self.family.initialize_labeled(*given, allowed)
        return self.family.check_parameters(found)

    def admit(self, observation: Any, position: int) -> tuple[Pending, Arrays]:
        """Return an observation in the form to hold and in encoded form.

        Raises
        ------
        Exception
            Any exception of `Family.encode`, which refuses an observation.
        """
        encoded = patiently(partial(self.family.encode, observation))
        # the result of an interrupted call may look complete
        raise_if_interrupted()
        if isinstance(observation, Mapping) and len(self.family.observation) == 1:
            (observation,) = observation.values()
        return Pending.of(observation, position), encoded

    def explained[Item](
        self,
        items: Sequence[Item],
        order: Callable[[int, Item], Order],
        running: Mapping[str, np.ndarray] | None,
    ) -> Iterator[tuple[Item, EStepResult | Exception, float]]:
        """Yield the E-step's result for each observation, and how long it took.

        Parameters
        ----------
        items : sequence
            Identify the observations.
        order : callable
            Takes the number of items that have failed so far and a later item, and returns the
            call to be made. The item has the generator of a run without the failed ones.
        running : mapping of str to ndarray, or None
            Statistics of earlier observations. The results must have the same shapes.

        Yields
        ------
        item : object
        result : EStepResult or Exception
            The exception if the E-step failed.
        seconds : float
            0 with workers, whose times overlap.

        Raises
        ------
        ExecutorError, KeyboardInterrupt, SystemExit, MemoryError, OSError
            Failures that are not due to an observation.
        """
        waiting, failed = deque(items), 0
        while waiting:
            orders = map(partial(order, failed), tuple(waiting))
            answers = self.executor.answers(orders, window=len(items))
            while waiting:
                begun = perf_counter()
                item = waiting.popleft()
                try:
                    result: EStepResult = next(answers)
                    check_shapes(result.statistics, running)
                except ExecutorError:
                    raise
                except Exception as error:
                    require_own_fault(error)
                    failed += 1
                    yield item, error, 0.0
                    break
                running = result.statistics if running is None else running
                yield item, result, 0.0 if self.executor.is_remote else perf_counter() - begun

    def unreadable(self, record: Unreadable, position: int) -> FailedRecord:
        """Return an unreadable record to leave out, or raise the source's exception."""
        if self.settings.on_error == "raise":
            raise record.error
        return FailedRecord(position, f"reading it failed: {named(record.error)}")

    def leave_out(self, *records: FailedRecord) -> None:
        """Pass failed records to `on_error`, keep the reasons, and log the first if not raised."""
        on_error = self.settings.on_error
        leave_out(self.history, on_error, records, tell=on_error != "raise")

    def take(self, report: StepReport[State]) -> None:
        """Move to the state of a step's report, and log new troubles."""
        for name in sorted(report.state.troubles.keys() - self.state.troubles.keys()):
            _log.warning(
                "%s %d: %s. Further ones are only counted, in history.",
                self.unit.capitalize(),
                report.state.n_learned if self.unit == "observation" else report.state.n_steps,
                name,
            )
        self.history.append(report)
        self.state = report.state

    def show_parameters(self) -> None:
        """Write the last θ, once there is one, into the model's ``pm.Data``."""
        if self.state.parameters is not None:
            self.family.set_model_parameters(self.state.parameters)

    def history_at(self, state: State) -> xr.DataTree:
        """Return the history up to a state; see `OnlineEM.history`."""
        attributes = run_attributes(self.driver, self.random_seed, self.settings)
        return self.history.to_datatree(state, attributes)

    def file_content(self, written_by: str = "checkpoint") -> bytes:
        """Return the bytes of a file with the saved run."""
        state = self.state  # read once, because another thread may change it
        strides = {
            "path_stride": self.history.path.stride,
            "observation_stride": self.history.observations.stride,
        }
        saved = SavedRun(state, self.random_seed, describe_family(self.family), strides)
        return run_bytes(self.driver, saved, self.history_at(state), written_by)

    def restore(self, saved: SavedRun, tree: xr.DataTree) -> None:
        """Continue from a saved run.

        Raises
        ------
        ValueError, TypeError
            If parameters or statistics do not match the family, or are not finite.
        """
        state: Any = saved.state
        for arrays in (state.parameters, getattr(state, "average", None)):
            if arrays is not None:
                self.family.check_parameters(arrays)
        if state.statistics:
            check_layout(self.family, state.statistics)
        self.history.restore(tree, **saved.strides)
        self.history.to_datatree(state, {})
        self.state = state


class Driver[AnyRun: Run[Any, Any]]:
    """Base class of `OnlineEM` and `SAEM`: history, saving and loading."""

    _run_class: ClassVar[type[Run[Any, Any]]]

    family: Family
    #: The run, with its ``state``, ``settings`` and ``history``.
    run: AnyRun

    @property
    def history(self) -> xr.DataTree:
        """The history of the run so far.

        Returns
        -------
        xarray.DataTree
            Group ``steps``, dim ``step``: θ after each step that is kept (the start is step
            0), with ``observation`` (how many were learned), ``gain``, ``effective_size``,
            ``updated`` (0 or 1), ``waiting`` (classes not ready at the update), ``seconds``,
            ``acceptance``, ``log_evidence`` and ``class_weight``; the last three are means over
            the step's observations. Group ``observations``, dim ``observation``: the same for
            each observation, without θ. ``troubles`` counts problems by name, from the beginning;
            it exists once there was one. Attributes: ``library``, ``version``, ``versions`` of its
            dependencies, ``backend``, ``driver``, ``random_seed``, ``settings``.
            Group ``skipped``, dim ``position`` (in the stream, counted from 0): ``reason`` for
            each of the last 1,000 records that were left out; it exists once there was one.

        Notes
        -----
        A step of `SAEM` is an iteration; ``observation`` then counts visits, and a ``position`` is
        one among the observations given to `SAEM.fit`.

        The last step is always kept, besides at most `keep` others and at most 10,000
        observations. `DataTree.to_netcdf` and `DataTree.to_zarr` write it to disk (Zarr needs the
        extra ``zarr``). See `stopping_hint` for when to stop. There are no standard errors of θ,
        because the score covariance that they need is not kept; repeat the run on bootstrapped
        streams instead.

        Examples
        --------
        >>> from pymc_mcoem import OnlineEM
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> history = OnlineEM(mixture, parameters=mixture.parameters, random_seed=1).history
        >>> history["steps"]["weights"].values
        array([[0.5, 0.5]])
        >>> history.attrs["random_seed"]
        '1'
        """
        return self.run.history_at(self.run.state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the run to a netCDF file, completely or not at all.

        Parameters
        ----------
        path : path-like
            Name of the file; an existing file is replaced.

        Raises
        ------
        FileNotFoundError
            If the folder does not exist.
        OSError
            If the file cannot be written, for example because the disk is full. No partial file
            is left, and the run is unchanged.

        Notes
        -----
        `xarray.open_datatree` opens the file, which contains the groups of `history`. Observations
        that `OnlineEM` holds are saved too; those of `SAEM` are not.

        Examples
        --------
        >>> import tempfile, numpy as np
        >>> from pymc_mcoem import OnlineEM
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> em = OnlineEM(mixture, random_seed=1, progressbar=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     em.partial_fit(np.ones((4, 3, 3))).save(f"{folder}/run.nc")
        ...     OnlineEM.load(f"{folder}/run.nc", mixture).n_seen
        4
        """
        target = require_file_name(path)
        write_whole(target, self.run.file_content("save"))
        self.run.files.add(target)

    @classmethod
    def load(cls, path: str | os.PathLike[str], family: Family, **overrides: Any) -> Self:
        """Return a driver that continues where the saved one stopped, with the same results.

        Parameters
        ----------
        path : path-like
            A file that `save` wrote.
        family : Family
            A family like that of the run. Its priors and other settings are not in the file and
            must be the same.
        **overrides
            Settings that replace those in the file, by the names of the driver's arguments. They
            are needed for functions and for classes from outside this package; ``progressbar`` is
            optional.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If the file is not a saved run, is damaged, has another format version, belongs to
            another family (the error says what differs), or has settings that must be given again.
        TypeError
            If a name in `overrides` is not a setting.

        Notes
        -----
        If the newest file of a checkpoint is damaged, the one before it is read, and the log says
        so: `OnlineEM.position` is then that of the older one. Any other damaged file is refused.
        If `e_step` differs from the saved one, as far as the file can tell, all chains of `SAEM`
        start anew, because step sizes of one move do not fit another.

        Examples
        --------
        Settings that a file cannot hold, such as functions, must be given again:

        >>> import tempfile, numpy as np
        >>> from pymc_mcoem import OnlineEM
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> em = OnlineEM(mixture, step_size=lambda n: 1 / n, random_seed=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     em.partial_fit(np.ones((3, 3))).save(f"{folder}/run.nc")
        ...     OnlineEM.load(f"{folder}/run.nc", mixture, step_size=lambda n: 1 / n)
        OnlineEM(TemplateMixture, n_seen=1)
        """
        kind = cls._run_class
        saved, tree = read_run(path, kind.driver)
        check_family(family)
        require_family(path, saved.family, family)
        settings = settings_of(path, tree.attrs["settings"], kind.settings_class, overrides)
        settings["e_step"] = on_backend(settings["e_step"], str(tree.attrs.get("backend", "")))
        made: Any = cls
        with named_damage(path, given=("family", *overrides)):
            driver: Self = made(family, random_seed=saved.random_seed, **settings)
            driver.run.restore(saved, tree)
        driver.run.files.add(Path(path))
        return driver


def added(total: Arrays, statistics: Mapping[str, np.ndarray]) -> Arrays:
    """Return `total`, which may be empty, plus the statistics of an observation."""
    with np.errstate(over="ignore"):  # overflow is refused when all are added
        return {
            name: total[name] + value if name in total else np.array(value, dtype=np.float64)
            for name, value in statistics.items()
        }


def blended(
    running: Arrays | None, total: Mapping[str, np.ndarray], size: int, gain: float
) -> Arrays:
    """Return running means of the statistics after a step of stochastic approximation.

    Parameters
    ----------
    running : dict of str to ndarray, or None
        Running means before the step, each ``(n_classes, *shape)``; None before the first step.
    total : mapping of str to ndarray
        Sums over the observations of the step.
    size : int
        Number of observations in the step.
    gain : float

    Raises
    ------
    FloatingPointError
        If a mean is not finite.
    """
    found: Arrays = {}
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused below
        for name, value in total.items():
            mean = value / size
            if running is not None:
                mean -= running[name]
                mean *= gain
                mean += running[name]
            found[name] = mean
    # The statistics of each observation are finite, but their sum may not be, and there may be no
    # M-step in this step to notice it.
    for name, value in found.items():
        if not np.isfinite(value).all():
            raise FloatingPointError(
                f"the running mean of the statistics {name!r} is not finite; its terms are "
                "finite but too large: scale the observations."
            )
    return found


def timed(records: Sequence[ObservationRecord], begun: float) -> tuple[ObservationRecord, ...]:
    """Return records with the rest of the step's time added to their seconds in equal parts."""
    raise_if_interrupted()
    rest = (perf_counter() - begun - sum(record.seconds for record in records)) / len(records)
    return tuple(replace(record, seconds=record.seconds + rest) for record in records)

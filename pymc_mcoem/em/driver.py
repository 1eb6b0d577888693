"""Base class of `OnlineEM` and `SAEM`: history, callbacks, saving and loading."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import cloudpickle

from pymc_mcoem.em.callbacks import Callback, Update, call_all
from pymc_mcoem.em.checks import check_family
from pymc_mcoem.em.family_record import describe_family, differences, require_same_family
from pymc_mcoem.em.run import Run
from pymc_mcoem.em.storage import read_run, stored_settings, with_overrides
from pymc_mcoem.runs.atomic_files import write_whole
from pymc_mcoem.runs.datatree_files import named_damage, require_file_name
from pymc_mcoem.runs.settings import on_backend

if TYPE_CHECKING:
    import xarray as xr

    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import StepReport

__all__ = ["Driver"]


class Driver[AnyRun: Run[Any, Any]]:
    """Base class of `OnlineEM` and `SAEM`: history, callbacks, saving and loading."""

    _run_class: ClassVar[type[Run[Any, Any]]]

    family: Family
    #: The run, with its ``state``, ``settings`` and ``history``.
    run: AnyRun
    #: Functions that are called after each step.
    callbacks: tuple[Callback, ...] = ()

    @property
    def n_learned(self) -> int:
        """Number of observations learned; for `SAEM`, number of visits to observations."""
        learned: int = self.run.state.n_learned
        return learned

    @property
    def learned_parameters(self) -> xr.Dataset | None:
        """Parameters θ, or their average, from learned observations only; None before the start.

        Unlike `OnlineEM.parameters`, they do not include held observations, and reading them is
        cheap, also in a callback.
        """
        state = self.run.without_held()
        if state is None or state.parameters is None:
            return None
        return self.family.to_dataset(getattr(state, "average", None) or state.parameters)

    def tell(self, report: StepReport[Any]) -> bool:
        """Call the callbacks after a step, and return whether one ends the call."""
        return call_all(self.callbacks, Update(self, report.observations))

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
            it exists only if there were any. Attributes: ``library``, ``version``, ``versions`` of
            its dependencies, ``backend``, ``driver``, ``random_seed``, ``settings``. Group
            ``skipped``, dim ``position`` (in the stream, counted from 0): ``reason`` for each of
            the last 1,000 skipped records; it exists only if there were any.

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
            are needed for functions and for classes from outside this package; ``progressbar``,
            ``executor`` and ``callbacks`` are never in a file.

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
        own = describe_family(family)
        with named_damage(path):
            others = differences(saved.family, own)
            stored = stored_settings(tree.attrs["settings"], kind.settings_class)
        require_same_family(path, others)
        settings = with_overrides(stored, overrides)
        settings["e_step"] = on_backend(settings["e_step"], str(tree.attrs.get("backend", "")))
        held = {name: value for name, value in settings.items() if name not in overrides}
        made: Any = cls
        make = functools.partial(made, family, random_seed=saved.random_seed)
        with named_damage(path):  # errors of settings that were not given are damage of the file
            driver: Self = make(**held)
        if overrides:
            driver = make(**settings)
        with named_damage(path):
            driver.run.restore(saved, tree)
        driver.run.files.add(Path(path))
        return driver

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to rebuild the driver as it stands while no other thread is at work.

        Its content is pickled by cloudpickle, because pickle does not take PyMC's models. A copy
        has no callbacks: these may hold files, figures or locks.
        """
        with self.run.alone.call(within=True):
            content = {name: value for name, value in vars(self).items() if name != "callbacks"}
            return _restored, (type(self), cloudpickle.dumps(content))


def _restored(kind: type[Any], content: bytes) -> Any:
    driver = object.__new__(kind)
    vars(driver).update(cloudpickle.loads(content))
    return driver

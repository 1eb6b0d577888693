"""History of a run, kept in bounded memory and returned as a DataTree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.family import CLASS_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.run_state import RunState, StepReport
    from pymc_mcoem.labeling import Arrays

__all__ = ["History", "ThinnedSeries", "recorded_names"]

#: Number of observations whose records are kept before they are thinned.
MAX_OBSERVATIONS = 10_000
#: Scalars that are kept for every step and observation, besides class weights and troubles.
SCALARS = (
    "observation",
    "gain",
    "effective_size",
    "updated",
    "waiting",
    "seconds",
    "acceptance",
    "log_evidence",
)
#: Number of skipped records whose reasons are kept, the last ones.
MAX_SKIPPED = 1_000
DTYPES: dict[str, Any] = {"observation": np.int64, "updated": np.int64, "waiting": np.int64}
#: Most numbers that the path of the parameters holds, unless `keep` sets the number of steps.
MAX_PATH_SIZE = 1_000_000


def recorded_names() -> frozenset[str]:
    """Return the names of the variables that a history keeps besides the parameters.

    Examples
    --------
    >>> "gain" in recorded_names()
    True
    """
    return frozenset({*SCALARS, CLASS_WEIGHT, "step", "troubles"})


@dataclass
class ThinnedSeries:
    """Rows of numbers at increasing indices: at most `keep` of them, plus the last one.

    Rows at multiples of `stride` are kept. Whenever there are more than `keep`, `stride` doubles
    and every other row is dropped.

    Parameters
    ----------
    keep : int
        Number of rows to keep, at least 2.
    stride : int
        Initial stride.

    Examples
    --------
    >>> series = ThinnedSeries(keep=4)
    >>> for index in range(1, 10):
    ...     series.append(index, np.array([float(index)]))
    >>> series.rows().indices
    array([2, 4, 6, 8, 9])
    """

    keep: int
    stride: int = 1
    thinned: dict[int, np.ndarray] = field(default_factory=dict)
    last: tuple[int, np.ndarray] | None = None

    def append(self, index: int, row: np.ndarray) -> None:
        """Add `row` at `index`; drop rows at this or a later index, left by an interrupted step."""
        if self.last is not None and self.last[0] >= index:
            self.thinned = {old: each for old, each in self.thinned.items() if old < index}
        self.last = (index, row)
        if index % self.stride:
            return
        self.thinned[index] = row
        while len(self.thinned) > self.keep:
            stride = 2 * self.stride
            thinned = {old: each for old, each in self.thinned.items() if not old % stride}
            # assigned together, so that an interrupt does not fall between them
            self.stride, self.thinned = stride, thinned

    def rows(self, until: int | None = None) -> Rows:
        """Return the rows up to index `until`, with shorter rows padded with zeros at the end.

        Rows of a series may become longer at their end only.
        """
        # each read once, because another thread may add rows
        rows, last = dict(self.thinned), self.last
        if last is not None:
            rows[last[0]] = last[1]
        indices = sorted(index for index in rows if until is None or index <= until)
        width = max((rows[index].size for index in indices), default=0)
        values = np.zeros((len(indices), width))
        for line, index in zip(values, indices, strict=True):
            line[: rows[index].size] = rows[index]
        return Rows(indices=np.array(indices, dtype=np.int64), values=values)

    @classmethod
    def from_rows(cls, rows: Rows, *, keep: int, stride: int) -> ThinnedSeries:
        """Return the series that `rows` came from."""
        series = cls(keep=keep, stride=stride)
        for index, row in zip(rows.indices.tolist(), rows.values, strict=True):
            series.last = (index, row)
            if not index % stride:
                series.thinned[index] = row
        return series


@dataclass(frozen=True)
class Rows:
    """Rows of a series: `indices` of shape ``(n_rows,)``, `values` ``(n_rows, width)``."""

    indices: np.ndarray
    values: np.ndarray


class History:
    """Path of the parameters and records of the observations in one run.

    Parameters
    ----------
    keep : int or None
        Number of steps at which the parameters are kept. None: as many as fit a million numbers,
        from 200 to 10,000.
    thin : int
        Every `thin`-th step and observation is kept from the beginning.

    Notes
    -----
    Memory is bounded, since both series are a `ThinnedSeries`. Counts of troubles are cumulative,
    so that thinning loses none.
    """

    def __init__(self, family: Family, keep: int | None = None, thin: int = 1) -> None:
        labeled = family.to_dataset(family.model_parameters())
        self.parameters = [
            Column(str(name), tuple(map(str, array.dims)), array.shape)
            for name, array in labeled.data_vars.items()
        ]
        self.shared = [
            *(Column(name, (), ()) for name in SCALARS),
            Column(CLASS_WEIGHT, (family.class_dim,), (family.n_classes,)),
        ]
        taken = sorted(recorded_names() & {column.name for column in self.parameters})
        if taken:
            raise ValueError(
                f"family: the parameters {taken} have names that the history uses; rename their "
                "pm.Data."
            )
        self.coordinates = {
            str(name): (tuple(map(str, array.dims)), array.values)
            for name, array in labeled.coords.items()
        }
        size = sum(column.size for column in self.parameters)
        if keep is None:
            keep = int(np.clip(MAX_PATH_SIZE // max(size, 1), 200, MAX_OBSERVATIONS))
        self.path = ThinnedSeries(keep, thin)
        self.observations = ThinnedSeries(MAX_OBSERVATIONS, thin)
        self.trouble_names: list[str] = []
        self.skipped: dict[int, str] = {}

    def skip(self, position: int, reason: str) -> None:
        """Record why the record at `position` of the stream was skipped."""
        self.skipped[position] = reason
        while len(self.skipped) > MAX_SKIPPED:
            del self.skipped[min(self.skipped)]

    def begin(self, parameters: Arrays) -> None:
        """Record the start as step 0, which has parameters and nothing else."""
        nothing = np.full(sum(column.size for column in self.shared), np.nan)
        nothing[:5] = 0, np.nan, 0, 0, 0
        self.path.append(0, np.concatenate([self._raveled(parameters), nothing]))

    def append(self, report: StepReport[Any]) -> None:
        """Record a step and its observations.

        This comes before the run moves to the report's state. If an interrupt falls between the
        two, the rows are written again later.
        """
        state = report.state
        self.trouble_names += [name for name in state.troubles if name not in self.trouble_names]
        counts = [float(state.troubles.get(name, 0)) for name in self.trouble_names]
        step = [report.gain, state.effective_size, report.updated, report.waiting]
        records = [
            np.array([record.seconds, record.acceptance, record.log_evidence, *record.class_weight])
            for record in report.observations
        ]
        for record, values in zip(report.observations, records, strict=True):
            row = np.concatenate([[record.number], step, values, counts])
            self.observations.append(record.number, row)
        mean = np.mean(records, axis=0)
        mean[0] *= len(records)  # seconds are summed, everything else is a mean
        parameters = self._raveled(state.parameters or {})
        row = np.concatenate([parameters, [state.n_learned], step, mean, counts])
        self.path.append(state.n_steps, row)

    def evidence_before(self, number: int) -> Iterator[tuple[int, float]]:
        """Yield the numbers and the log-evidence of kept observations before `number`."""
        rows = self.observations.rows(number - 1)
        if len(rows.indices):
            evidence = rows.values[:, SCALARS.index("log_evidence")]
            yield from zip(rows.indices.tolist(), evidence.tolist(), strict=True)

    def to_datatree(self, state: RunState, attributes: Mapping[str, Any]) -> xr.DataTree:
        """Return the history up to `state`, with labels."""
        path = self._labeled(
            self.path.rows(state.n_steps), [*self.parameters, *self.shared], "step"
        )
        observations = self._labeled(
            self.observations.rows(state.n_learned), self.shared[1:], "observation", skip=1
        )
        nodes = {
            "/": xr.Dataset(attrs=dict(attributes)),
            "/steps": path,
            "/observations": observations,
        }
        # a file's state may be older, and its run meets later records again
        end = getattr(state, "position", np.inf)
        skipped = dict(self.skipped)  # at once, because another thread may skip more
        positions = sorted(position for position in skipped if position < end)
        if positions:
            reasons = [skipped[position] for position in positions]
            nodes["/skipped"] = xr.Dataset(
                {"reason": ("position", np.array(reasons, dtype=np.str_))},
                coords={"position": np.array(positions, dtype=np.int64)},
            )
        return xr.DataTree.from_dict(nodes)

    def restore(self, tree: xr.DataTree, *, path_stride: int, observation_stride: int) -> None:
        """Restore the history of another run from its `to_datatree`, thinned by these strides."""
        path, observations = tree["steps"].to_dataset(), tree["observations"].to_dataset()
        if "trouble" in path.coords:
            self.trouble_names = [str(name) for name in path.coords["trouble"].values]
        self.path = ThinnedSeries.from_rows(
            self._unlabeled(path, [*self.parameters, *self.shared], "step"),
            keep=self.path.keep,
            stride=path_stride,
        )
        self.observations = ThinnedSeries.from_rows(
            self._unlabeled(observations, self.shared, "observation"),
            keep=self.observations.keep,
            stride=observation_stride,
        )
        if "skipped" in tree.children:
            reasons = tree["skipped"].to_dataset()["reason"]
            positions = reasons["position"].values.tolist()
            self.skipped = dict(zip(positions, map(str, reasons.values), strict=True))

    def _raveled(self, parameters: Arrays) -> np.ndarray:
        return np.concatenate([np.ravel(parameters[column.name]) for column in self.parameters])

    def _labeled(self, rows: Rows, columns: list[Column], dim: str, skip: int = 0) -> xr.Dataset:
        variables: dict[str, Any] = {}
        position = skip
        for column in columns:
            values = rows.values[:, position : position + column.size]
            position += column.size
            values = values.reshape(len(values), *column.shape).astype(
                DTYPES.get(column.name, np.float64)
            )
            variables[column.name] = ((dim, *column.dims), values)
        coordinates: dict[str, Any] = {dim: rows.indices}
        used = {label for labels, _ in variables.values() for label in labels}
        for name, (dims, labels) in self.coordinates.items():
            if set(dims) <= used:
                coordinates[name] = (dims, labels)
        names = list(self.trouble_names)
        if names:
            counts = np.zeros((len(rows.indices), len(names)), dtype=np.int64)
            found = rows.values[:, position:]
            counts[:, : found.shape[1]] = found
            variables["troubles"] = ((dim, "trouble"), counts)
            coordinates["trouble"] = names
        return xr.Dataset(variables, coords=coordinates)

    def _unlabeled(self, dataset: xr.Dataset, columns: list[Column], dim: str) -> Rows:
        indices = dataset[dim].values
        blocks = [
            np.asarray(dataset[column.name].values, dtype=np.float64).reshape(
                len(indices), column.size
            )
            for column in columns
        ]
        if "troubles" in dataset:
            blocks.append(dataset["troubles"].values.astype(np.float64))
        return Rows(indices=indices.astype(np.int64), values=np.concatenate(blocks, axis=1))


@dataclass(frozen=True)
class Column:
    """Name, dims and shape of a variable that is stored in rows."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values in one row."""
        return int(np.prod(self.shape, dtype=int))

"""Chains of a class index, read from a DataTree, Dataset or DataArray."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from pymc_mcoem.carlin_chib.step_statistics import is_recorded, read_statistics

__all__ = ["IndexChains", "read_chains"]

_SAMPLE_DIMS = ("chain", "draw")


@dataclass(frozen=True)
class IndexChains:
    """Chains of one class index, or of a plate of indices, as arrays.

    Attributes
    ----------
    name : str
        Name of the variable.
    codes : ndarray of int, shape (n_rows, n_chains, n_draws)
        Positions in `classes`. One row without a plate.
    classes : ndarray of shape (n_classes,)
        Labels of the classes as the chains have them.
    log_weight : ndarray of shape (n_rows, n_chains, n_draws, n_classes), or None
        Log-probabilities from which the index was drawn, if the step recorded them.
    plate : DataArray
        Carries the plate's dimensions and coordinates; it has no dimension without a plate.
    chain, draw : ndarray
        Coordinates of chains and draws.
    equalizing_log_weight : ndarray of shape (n_chains, n_draws, n_classes), or None
        Terms added to the logarithms of the classes' prior probabilities, if its
        visits were equalized; it then has one row.
    log_importance : ndarray of shape (n_chains, n_draws), or None
        Logarithms of the weights of draws, up to a constant for each chain, if visits of
        this or another index of the chains were equalized.
    believed : ndarray of shape (n_chains, n_draws), or None
        Probability of the other classes according to the evidence of the step's pseudo-priors.
    unvisited_log_odds : ndarray of shape (n_chains, n_classes), or None
        Log-odds of classes that a chain hardly visited in tuning, by a search over all
        variables; nan for the others.
    unvisited_mode_log_odds : ndarray of shape (n_chains,), or None
        Log-odds of modes, of the variables that other steps draw, that a chain did not visit in
        tuning; nan without an answer.
    missed_share : ndarray of shape (n_chains, n_draws, n_classes), or None
        Share of each class's evidence in modes that the step's pseudo-priors miss.
    acceptance : ndarray of shape (n_chains, n_draws), or None
        Share of moves within the class that were accepted; on a plate the mean of all rows.
    companions : dict of str to ndarray of bool, shape (n_rows,)
        Other discrete variables, and the rows in which they never visited or never left a class;
        all rows for a variable of another shape.
    """

    name: str
    codes: np.ndarray
    classes: np.ndarray
    log_weight: np.ndarray | None
    plate: xr.DataArray
    chain: np.ndarray
    draw: np.ndarray
    equalizing_log_weight: np.ndarray | None = None
    log_importance: np.ndarray | None = None
    believed: np.ndarray | None = None
    unvisited_log_odds: np.ndarray | None = None
    unvisited_mode_log_odds: np.ndarray | None = None
    missed_share: np.ndarray | None = None
    acceptance: np.ndarray | None = None
    companions: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def weights(self) -> np.ndarray:
        """Return the weight of each draw, (n_chains, n_draws), with mean one in each chain.

        Weights are ones unless visits were equalized. Each chain is scaled separately, because it
        has its own equalizing weights.
        """
        return self._scaled(self.log_importance)

    @property
    def weights_within_classes(self) -> np.ndarray:
        """Return the weight of each draw given its class, (n_chains, n_draws).

        Within a class, draws of a chain differ in weight only by the equalizing weights of
        other indices.
        """
        if self.log_importance is None or self.equalizing_log_weight is None:
            return self.weights
        own = np.take_along_axis(self.equalizing_log_weight, self.codes[0][..., None], axis=-1)[
            ..., 0
        ]
        return self._scaled(self.log_importance + own)

    def _scaled(self, log_weight: np.ndarray | None) -> np.ndarray:
        if log_weight is None:
            return np.ones((len(self.chain), len(self.draw)))
        weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
        scaled: np.ndarray = weight / weight.mean(axis=1, keepdims=True)
        return scaled

    @property
    def n_classes(self) -> int:
        """Number of classes, visited or not."""
        return len(self.classes)

    def require_log_weight(self) -> np.ndarray:
        """Return the log-weights.

        Raises
        ------
        ValueError
            If there are none.
        """
        if self.log_weight is None:
            raise ValueError(
                f"chains: {self.name} came without the classes' log-weights; give a DataTree of a "
                "run with CarlinChib."
            )
        return self.log_weight

    @property
    def consecutive(self) -> bool:
        """Whether draws are consecutive, not thinned."""
        return bool(len(self.draw) > 1 and np.all(np.diff(self.draw.astype(np.int64)) == 1))

    def label(self, values: np.ndarray, *dims: str) -> xr.DataArray:
        """Return values of shape (n_rows, ...) as a DataArray with named axes.

        Parameters
        ----------
        values : ndarray of shape (n_rows, ...)
        *dims : str
            Names of the axes after the first.

        Returns
        -------
        DataArray
            Its dimensions are those of the plate, none without a plate, then `dims`.
        """
        array = values.reshape(self.plate.shape + values.shape[1:])
        whole = (*self.plate.dims, *dims)
        return xr.DataArray(array, dims=whole, coords=self._coordinates(dims))

    def labeled(self, values: Mapping[str, tuple[Any, ...]]) -> xr.Dataset:
        """Return a Dataset of values, each given with the names of its axes, as to `label`.

        This takes a fraction of the time of labeling each and merging them.
        """
        found: dict[str, Any] = {}
        for name, (array, *dims) in values.items():
            shape = self.plate.shape + array.shape[1:]
            found[name] = (*self.plate.dims, *dims), array.reshape(shape)
        names = {dim for _, *dims in values.values() for dim in dims}
        return xr.Dataset(found, coords=self._coordinates(sorted(names)))

    def _coordinates(self, dims: Iterable[Hashable]) -> dict[Hashable, Any]:
        """Return the coordinates of the plate and those along dimensions."""
        known = {"chain": self.chain, "class": self.classes}
        known |= {"class_from": self.classes, "class_to": self.classes}
        own: dict[Hashable, Any] = {key: value for key, value in self.plate.coords.items()}
        return own | {dim: known[dim] for dim in dims if dim in known}

    def row_label(self, row: int) -> str:
        """Return the name of a plate's row for messages; empty without a plate."""
        if not self.plate.ndim:
            return ""
        position = np.unravel_index(row, self.plate.shape)
        places = [
            f"{dim}={self.plate[dim].values[i] if dim in self.plate.coords else i}"
            for dim, i in zip(self.plate.dims, position, strict=True)
        ]
        return "[" + ", ".join(places) + "]"


def read_chains(
    data: Any,
    var_name: str | None = None,
    *,
    classes: Sequence[Hashable] | None = None,
    group: str = "posterior",
) -> IndexChains:
    """Read the chains of a class index.

    Parameters
    ----------
    data : DataTree, Dataset or DataArray
        With dimensions ``chain`` and ``draw``; all others are the plate.
    var_name : str, optional
        Default: ``class_index``, or else the only integer variable.
    classes : sequence, optional
        Labels of all classes, or names for the codes 0, 1, ... Default: 0 to n_classes - 1 if the
        step recorded the classes' weights, else the labels that were visited, in order.
    group : str
        Group of the DataTree.

    Returns
    -------
    IndexChains

    Raises
    ------
    TypeError
        If `data` has another type, or the variable is not categorical.
    ValueError
        If there is no such variable, a dimension is missing, there are fewer than two draws, or a
        draw is not among `classes`.

    Examples
    --------
    >>> chains = read_chains(xr.DataArray([[2, 7, 7]], dims=("chain", "draw")))
    >>> chains.classes, chains.codes
    (array([2, 7]), array([[[0, 1, 1]]]))
    """
    index, stats = find_index(data, var_name, group)
    missing = [dim for dim in _SAMPLE_DIMS if dim not in index.dims]
    if missing:
        raise ValueError(
            f"data: {index.name} has dimensions {index.dims}; name those of chains and draws "
            "'chain' and 'draw'."
        )
    plate_dims = [dim for dim in index.dims if dim not in _SAMPLE_DIMS]
    index = index.transpose(*plate_dims, *_SAMPLE_DIMS)
    if index.sizes["draw"] < 2 or index.sizes["chain"] < 1:
        raise ValueError(
            f"data: {index.name} has {index.sizes['chain']} chains of {index.sizes['draw']} draws; "
            "give at least one chain of two draws."
        )
    values = _categories(index)
    values = values.reshape(-1, *values.shape[-2:])
    statistics = read_statistics(stats, values, None if index.name is None else str(index.name))
    log_weight = statistics.log_weight
    if classes is not None:
        labels = np.asarray(classes)
    elif log_weight is not None:
        labels = np.arange(log_weight.shape[-1])
    else:
        labels = np.unique(values)
    if log_weight is not None and len(labels) != log_weight.shape[-1]:
        log_weight = None
    if labels.dtype.kind == "U" and values.dtype.kind in "iub":
        # names of the codes 0, 1, ...
        named = np.unique(values).tolist()
        if values.min() < 0 or values.max() >= len(labels):
            raise ValueError(
                f"classes: got {labels.tolist()} for draws of {index.name} among {named}; give a "
                "name for each code from 0 on."
            )
        values = labels[values.astype(np.int64)]
    order = np.argsort(labels, kind="stable")
    found = np.searchsorted(labels[order], values).clip(max=len(labels) - 1)
    codes = order[found]
    if len(np.unique(labels)) < len(labels) or not np.array_equal(labels[codes], values):
        odd = sorted(set(np.unique(values).tolist()) - set(labels.tolist()))
        raise ValueError(
            f"classes: got {labels.tolist()}, and the draws of {index.name} also have {odd}; give "
            "every class once."
        )
    plate = index.isel(chain=0, draw=0, drop=True)
    plate = plate.drop_vars([name for name in plate.coords if name not in plate.dims])
    return IndexChains(
        name=str(index.name or "class_index"),
        codes=codes,
        classes=labels,
        log_weight=log_weight,
        plate=plate,
        chain=_coordinate(index, "chain"),
        draw=_coordinate(index, "draw"),
        equalizing_log_weight=None if log_weight is None else statistics.equalizing_log_weight,
        log_importance=statistics.log_importance,
        believed=statistics.believed,
        unvisited_log_odds=None if log_weight is None else statistics.unvisited_log_odds,
        unvisited_mode_log_odds=(
            None if log_weight is None else statistics.unvisited_mode_log_odds
        ),
        missed_share=None if log_weight is None else statistics.missed_share,
        acceptance=statistics.acceptance,
        companions=_companions(data, group, index, stats),
    )


def _coordinate(index: xr.DataArray, dim: str) -> np.ndarray:
    return np.asarray(index[dim].values)


def find_index(data: Any, var_name: str | None, group: str) -> tuple[xr.DataArray, Any]:
    """Return the class index, and a DataTree's sample statistics, if any; see `read_chains`."""
    if isinstance(data, xr.DataArray):
        return data, None
    stats: Any = None
    if isinstance(data, xr.DataTree):
        if group not in data.children:
            raise ValueError(
                f"group: got {group!r}, and the DataTree has {list(data.children)}; name one of "
                "them."
            )
        stats = data["sample_stats"] if "sample_stats" in data.children else None
        variables: Any = data[group].to_dataset()
    elif isinstance(data, xr.Dataset):
        variables = data
    else:
        raise TypeError(
            f"data: got a {type(data).__name__}; give a DataTree as pm.sample returns it, a "
            "Dataset or a DataArray with dimensions chain and draw."
        )
    if var_name is None:
        whole = [name for name, values in variables.items() if values.dtype.kind in "iub"]
        drawn = [name for name in whole if is_recorded(stats, str(name))]
        if "class_index" in variables:
            var_name = "class_index"
        elif len(whole) == 1 or len(drawn) == 1:
            var_name = str((drawn or whole)[0])
        else:
            raise ValueError(
                f"var_name: got none, and there are {len(whole)} integer variables, {whole}; "
                + ("name the class index." if whole else "give draws that have a class index.")
            )
    if var_name not in variables:
        raise ValueError(
            f"var_name: got {var_name!r}, and there are {list(variables)}; name one of them."
        )
    return variables[var_name], stats


def _companions(data: Any, group: str, index: xr.DataArray, stats: Any) -> dict[str, np.ndarray]:
    """Return the other discrete variables that did not visit and leave all classes, and their rows.

    The index may have weight elsewhere together with values that some of their chains missed.
    """
    if stats is None:
        # Without statistics there are no weights that depend on other variables.
        return {}
    plate = index.shape[:-2]
    found = {}
    for name, values in data[group].to_dataset().items():
        # PyMC samples integers; booleans are computed from other variables, such as this index.
        is_sampled = {*_SAMPLE_DIMS} <= set(values.dims) and values.dtype.kind in "iu"
        if name == index.name or not is_sampled:
            continue
        draws = values.transpose(..., *_SAMPLE_DIMS).values
        codes = draws.reshape(-1, *draws.shape[-2:]).astype(np.int64)
        log_weight = read_statistics(stats, codes, str(name)).log_weight
        n_classes = None if log_weight is None else log_weight.shape[-1]
        narrow = np.array([not _went_through(each, n_classes) for each in codes])
        if draws.shape[:-2] != plate:
            narrow = np.full(max(int(np.prod(plate)), 1), narrow.any())
        if narrow.any():
            found[str(name)] = narrow
    return found


def _went_through(codes: np.ndarray, n_classes: int | None) -> bool:
    """Return whether chains (n_chains, n_draws) visited all classes and left every class.

    If the number of classes is not known, all classes are those that were visited.
    """
    moved = codes[:, :-1] != codes[:, 1:]
    stayed, left = codes[~moved.any(axis=1), 0], codes[:, :-1][moved]
    is_visited = n_classes is None or len(np.unique(codes)) == n_classes
    return is_visited and bool(np.isin(stayed, left).all())


def _categories(index: xr.DataArray) -> np.ndarray:
    """Return the draws; whole numbers stored as floats become integers."""
    values = np.asarray(index.values)
    if values.dtype.kind == "b":
        return values.astype(np.int64)
    if values.dtype.kind == "f":
        if not np.array_equal(values, np.floor(values)):
            raise TypeError(
                f"data: {index.name} has values that are not whole numbers; give the draws of a "
                "class index."
            )
        return values.astype(np.int64)
    return values

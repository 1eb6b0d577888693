"""Saved runs of `SAEM`: one netCDF file, laid out as those of `OnlineEM`.

Beside the history there is a group each for parameters, statistics, the mean that mini-batches
keep, the chains of all observations, stacked where they are alike, and what each contributed. The
observations themselves are not in the file, only a fingerprint of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.em.checks import check_layout, check_statistics
from pymc_mcoem.em.contributions import Contribution
from pymc_mcoem.em.family_record import describe_family
from pymc_mcoem.em.saem_state import SAEMState
from pymc_mcoem.em.storage import require_counts
from pymc_mcoem.runs.datatree_files import (
    arrays_of,
    bytes_of,
    dataset_of,
    read_datatree,
)
from pymc_mcoem.runs.settings import encode_settings
from pymc_mcoem.validation import is_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.family import Family
    from pymc_mcoem.em.history import History
    from pymc_mcoem.em.saem_state import SAEMSettings
    from pymc_mcoem.labelling import Arrays

__all__ = ["read_saem", "saem_bytes", "state_from"]

FORMAT = "pymc_mcoem SAEM run"
FORMAT_VERSION = 9
COUNTERS = ("n_iterations", "n_visits", "n_records", "troubles")
GROUPS = ("parameters", "statistics", "mean")
#: Of each observation, beside its chain and what it contributed.
OWN = ("n_sweeps", "positions", "fingerprints", "kinds")


def saem_bytes(
    state: SAEMState,
    settings: SAEMSettings,
    entropy: int | list[int],
    family: Family,
    history: History,
    shown: xr.DataTree,
    written_by: str,
) -> bytes:
    """Return a file that holds a run.

    Parameters
    ----------
    state, settings, entropy, family, history
        Of the run.
    shown : xarray.DataTree
        The history as people see it.
    written_by : {"checkpoint", "save"}
        Who asks for it.
    """
    nodes: dict[str, xr.Dataset] = {
        "/": xr.Dataset(
            attrs={
                **shown.attrs,
                "format": FORMAT,
                "format_version": FORMAT_VERSION,
                "written_by": written_by,
                "seed": json.dumps(entropy),
                "settings": encode_settings(settings),
                "family": json.dumps(describe_family(family)),
                "counters": json.dumps({name: getattr(state, name) for name in COUNTERS}),
                "strides": json.dumps([history.path.stride, history.observations.stride]),
            }
        ),
        "/online_em": shown["online_em"].to_dataset(),
        "/observations": shown["observations"].to_dataset(),
    }
    if "skipped" in shown.children:
        nodes["/skipped"] = shown["skipped"].to_dataset()
    for name in GROUPS:
        arrays = getattr(state, name)
        if arrays is not None:
            nodes[f"/run/{name}"] = dataset_of(arrays)
    if state.chains:
        digests = b"".join(map(bytes.fromhex, state.fingerprints))
        kinds = _kinds(state.chains)
        nodes["/run/observations"] = dataset_of(
            {
                "n_sweeps": np.array(state.n_sweeps),
                "positions": np.array(state.positions),
                "fingerprints": np.frombuffer(digests, np.uint8).reshape(len(state.chains), -1),
                "kinds": kinds,
            }
        )
        for kind in range(1 + int(kinds.max())):
            alike = [state.chains[i] for i in np.flatnonzero(kinds == kind)]
            nodes[_group(kind)] = dataset_of(
                {name: np.stack([chain[name] for chain in alike]) for name in alike[0]}
            )
    if state.contributions:
        nodes["/run/contributions"] = dataset_of(Contribution.joined(state.contributions))
    return bytes_of(xr.DataTree.from_dict(nodes))


def read_saem(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read what `saem_bytes` gave, as it lies in the file.

    Raises
    ------
    FileNotFoundError, ValueError
        As `read_datatree`.
    """
    return read_datatree(path, "SAEM", FORMAT, FORMAT_VERSION)


def state_from(tree: xr.DataTree, family: Family) -> SAEMState:
    """Return the state in a file, if a run of a family can have come to it.

    Raises
    ------
    Exception
        Of many kinds, if it cannot.
    """
    counters: dict[str, Any] = json.loads(tree.attrs["counters"])
    if set(counters) != set(COUNTERS):
        raise ValueError(f"its counters are {sorted(counters)}, expected {sorted(COUNTERS)}")
    groups: dict[str, Any] = {name: arrays_of(tree, f"/run/{name}") for name in GROUPS}
    own = arrays_of(tree, "/run/observations") or dict.fromkeys(OWN, np.zeros(0, np.uint8))
    lengths = {name: len(own[name]) for name in OWN}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"what it holds of each observation differs in length: {lengths}")
    joined = arrays_of(tree, "/run/contributions")
    state = SAEMState(
        **groups,
        **counters,
        n_sweeps=tuple(own["n_sweeps"].tolist()),
        positions=tuple(own["positions"].tolist()),
        fingerprints=tuple(row.tobytes().hex() for row in own["fingerprints"]),
        chains=_chains_in(tree, own["kinds"]),
        contributions=() if joined is None else Contribution.parted(joined),
    )
    _require_sound(state, family)
    return state


def _require_sound(state: SAEMState, family: Family) -> None:
    require_counts(state, [name for name in COUNTERS if name.startswith("n_")])
    if state.parameters is not None:
        family.check_parameters(state.parameters)
    if state.statistics is not None:
        check_layout(family, state.statistics)
    places, n = state.positions, len(state.chains)
    agree = {
        "parameters": state.parameters is not None or not n,
        "statistics": (state.statistics is not None) == bool(state.n_iterations),
        "positions": all(is_whole(at) and 0 <= at < state.n_records for at in places)
        and list(places) == sorted(set(places)),
        "sweeps": all(is_whole(made) and made >= 0 for made in state.n_sweeps),
        "chains": all(_goes_on(chain, family.n_classes) for chain in state.chains),
        "contributions": len(state.contributions) == (0 if state.mean is None else n),
    }
    wrong = [name for name, is_so in agree.items() if not is_so]
    if wrong:
        raise ValueError(f"its {', '.join(wrong)} are such as no run has")
    if state.mean is not None:
        check_statistics(family, state.mean)
        _require_mean(state.mean, state.contributions)


def _goes_on(chain: Arrays, n_classes: int) -> bool:
    """Say whether a chain can be gone on with, as far as can be told without its E-step."""
    # Pseudo-priors may have no evidence. Compiled code takes the index on trust.
    finite = (np.isfinite(v).all() for name, v in chain.items() if name != "log_evidence")
    return all(finite) and bool(np.isin(chain.get("class_index", 0), range(n_classes)).all())


def _require_mean(mean: Arrays, contributions: Sequence[Contribution]) -> None:
    """Refuse contributions that do not have this mean, up to rounding in exchanging them."""
    total = {name: np.zeros_like(value) for name, value in mean.items()}
    for each in contributions:
        if (each.classes < 0).any() or each.rows.keys() != mean.keys():
            raise ValueError("its contributions are such as no run has")
        each.add_to(total, 1 / len(contributions))
    for name, value in mean.items():
        if not np.allclose(total[name], value, rtol=0, atol=1e-6 * (1 + np.abs(value).max())):
            raise ValueError(f"its contributions to {name!r} do not have the mean that it has")


def _kinds(chains: Sequence[Arrays]) -> np.ndarray:
    """Return numbers that are the same for chains of the same arrays, ``(n,)``, from 0.

    Chains are alike until a run goes on with other settings: those that were visited since hold
    other things than those that were not.
    """
    known: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
    layouts = (tuple((name, value.shape) for name, value in chain.items()) for chain in chains)
    return np.array([known.setdefault(layout, len(known)) for layout in layouts])


def _group(kind: int) -> str:
    """Return where chains of a kind are in a file."""
    return f"/run/chains_{kind}" if kind else "/run/chains"


def _chains_in(tree: xr.DataTree, kinds: np.ndarray) -> tuple[Arrays, ...]:
    """Return the chains in a file, in the order of their observations."""
    parts: dict[int, Arrays] = {}
    for kind in set(kinds.tolist()):
        found = arrays_of(tree, _group(kind))
        if found is None:
            raise ValueError(f"chains of kind {kind} are not in it")
        parts[kind] = found
    places = dict.fromkeys(parts, -1)
    chains: list[Arrays] = []
    for kind in kinds.tolist():
        places[kind] += 1
        chains.append({name: np.array(value[places[kind]]) for name, value in parts[kind].items()})
    return tuple(chains)

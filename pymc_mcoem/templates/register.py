"""`TemplateMixture.register`: one observation or many, registered and labeled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from pymc_mcoem.compiling.messages import telling
from pymc_mcoem.compiling.threads import one_blas_thread
from pymc_mcoem.em.progress import CountProgress
from pymc_mcoem.em.stream import Unreadable, count_observations, read
from pymc_mcoem.interrupts import deferred, require_own_fault, require_readable
from pymc_mcoem.runs.failed_records import refusal
from pymc_mcoem.runs.settings import seed_entropy
from pymc_mcoem.templates.family import TemplateFamily
from pymc_mcoem.templates.registration import Registered, Registrar, averaged_moments
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
    from pymc_mcoem.templates.settings import TemplateSettings

__all__ = ["RegisteringFamily", "encoded", "own_failure", "seed_of"]

type Arrays = Mapping[str, np.ndarray]


class RegisteringFamily(TemplateFamily):
    """The family behind `TemplateMixture`, with the registration of observations."""

    def register(
        self,
        observation: Any,
        parameters: Mapping[str, Any] | xr.Dataset | None = None,
        *,
        reference: Any = None,
        draws: int = 200,
        tune: int = 100,
        e_step: CarlinChibBurst | None = None,
        random_seed: int | Sequence[int] = 0,
        progressbar: bool = True,
    ) -> xr.Dataset:
        """Register observations: estimate the class of each and, for each class, warp and scale.

        Parameters
        ----------
        observation : array_like of the shape of one observation, or several of them
            NaN where points are missing. One observation as `encode` takes it, nested lists
            included; everything else that `OnlineEM.partial_fit` takes is several: an array
            ``(n, *grid)``, a DataArray or DataFrame, a list of arrays, an iterator. With
            ``own_points`` a list of pairs ``(points, values)`` is several, one such pair, or two
            rows that could be one, is a single curve.
        parameters : Dataset or mapping of str to array_like, optional
            θ; by default the current values in `model`.
        reference : array_like of shape (n_parameters,) or (n_classes, n_parameters), optional
            β of the frame on which observations are aligned, one for all classes or one for each:
            of curves the common clock. Default: the prior mean, the frame of `template_images`.
        draws, tune : int
            Sweeps that each burst keeps, and sweeps before them.
        e_step : CarlinChibBurst, optional
            Settings of the bursts. Default: as in `OnlineEM`.
        random_seed : int or sequence of int
            Not None by default, so that the same observation is registered the same twice.
        progressbar : bool
            Whether a progress bar is shown for more than one observation.

        Returns
        -------
        Dataset
            ``class_probability`` (class), p(I = j | y), and pairs of posterior mean and standard
            deviation, ``*_mean`` and ``*_sd`` given each class, with the dim ``class`` first, and
            ``*_mean_averaged`` and ``*_sd_averaged`` over the classes:

            - ``warp`` D(u_s, β) at the mixture's points, on the template's axis, with the
              observation's dims (``row``, ``column``; ``time``), and for images the dim
              ``coordinate``, in the unit of the points;
            - ``inverse`` D⁻¹(D(u_s, reference), β), the place in the observation of what lies at
              u_s on the common frame, in the unit of the points, with the dims of ``warp``;
            - ``aligned``, the observation on the common frame, y at ``inverse`` over λ, with
              straight lines between its points;
            - ``template`` λ f_j(D(u_s, β)), the template as it lies over the observation, also at
              missing points and beyond the end of a curve. It and ``aligned`` have the dim of
              channels last, if there are some, which share their warp;
            - ``scale`` λ, if the mixture has one, the same for all channels;
            - ``offset``, the observation's own constant, if the mixture has one: ``template`` is
              with it, ``aligned`` without;
            - ``deformation`` β (deformation_coordinate).

            ``predicted_sd`` and ``predicted_sd_averaged`` are the standard deviations of an
            observation around ``template_mean``, noise included: bands for values that are missing
            or still to come. ``inverse`` and ``aligned`` are NaN where less than half of the draws
            have a value.

            Several observations have a dim in front of all these: the leading one of a DataArray
            or the named index of a DataFrame, with its labels, otherwise ``observation`` with the
            labels or numbers of the observations. It is ``observation`` too where the result has a
            variable of the other name.

            The attribute ``troubles`` names problems, such as a mode search that did not
            converge; each kind is logged once.

        Raises
        ------
        ValueError, TypeError
            If an argument is out of its range, as `encode` and `check_parameters` say, or there is
            no observation. Of several, the error names the one that was refused.
        FloatingPointError, RuntimeError
            If one of several cannot be registered; the error names it.
        Exception
            Any exception that the source raises.

        Notes
        -----
        Labels ``modelFunc`` and ``locDef_H`` of the paper. Standard deviations are those of the
        registration: noise of the observation is neither added to ``template`` nor removed from
        ``aligned``. The moments of each class come from a burst in that class alone, so that an
        improbable class is registered as accurately as the others. The cost of an observation is a
        burst that jumps between the classes and one of the same length for each class, and of
        images a fifth of a second for each class to invert 200 draws at 16 × 16 pixels; the first
        call compiles. Memory holds the result, and no draws but those of one observation.

        Each of several observations has a generator of its own, seeded by `random_seed` and its
        values: its numbers depend neither on its place nor on the others, and Monte Carlo errors
        of different observations are independent. One observation alone has the generator of
        `random_seed` itself, so that ``register([y])`` differs from ``register(y)`` by Monte Carlo
        error.

        The inverse of a `TimeWarp` is exact. Other warps are inverted on the grid of the points
        (`pymc_mcoem.templates.alignment.GridFrame`), and where they fold or lead out of it they
        have no inverse. Points that make no grid have neither ``inverse`` nor ``aligned``. A pixel
        is aligned from the known pixels around its place, if they have half of the weight. Under
        a `noise_correlation` known values say more on missing ones than ``predicted_sd`` does.

        Examples
        --------
        >>> from pymc_mcoem.templates import TemplateMixture
        >>> mixture = TemplateMixture.for_curves([0, 1, 2, 3], 1, n_landmarks=5, n_warp_kernels=2)
        >>> theta = mixture.parameters
        >>> theta["templates"] += np.array([0.0, 1.0, 4.0, 1.0, 0.0])
        >>> found = mixture.register([1.0, np.nan, 4.0, 1.0], theta, draws=50, tune=10)
        >>> found.warp_mean.dims, found.attrs["draws"]
        (('class', 'time'), 50)
        >>> bool((found.warp_mean.diff("time") > 0).all())
        True

        Two curves, of which the second has not ended yet:

        >>> curves = [[1.0, 2.0, 4.0, 1.0], [1.0, 2.0, np.nan, np.nan]]
        >>> both = mixture.register(curves, theta, draws=5, tune=5, progressbar=False)
        >>> both.template_mean.dims
        ('observation', 'class', 'time')
        >>> bool((both.predicted_sd > both.template_sd).all())
        True
        """
        if e_step not in self._registrars:
            with telling(progressbar):
                alone = self.with_classes(1, priors=None)
                self._registrars[e_step] = Registrar(self, alone, e_step)
        registrar = self._registrars[e_step]
        for name, count, least in (("draws", draws, 2), ("tune", tune, 0)):
            require_whole(name, count, least)
        entropy = seed_entropy(random_seed)
        clocks = registrar.clocks(reference)
        theta = self.model_parameters() if parameters is None else self.check_parameters(parameters)

        def register(data: Arrays, seed: np.random.SeedSequence) -> Registered:
            with telling(progressbar), one_blas_thread():
                return registrar(data, theta, seed, clocks, draws=draws, tune=tune)

        if self.is_single(observation):
            found = [register(self.encode(observation), np.random.SeedSequence(entropy))]
            result = _labeled(self.settings, found).isel(observation=0)
            troubles = found[0].troubles
        else:
            found = self._registered(
                observation, lambda data: register(data, seed_of(entropy, data)), progressbar
            )
            result = _labeled(self.settings, found)
            name, labels = _names(self, observation, len(found))
            result["observation"] = labels
            if name is not None and name not in result.variables and name not in result.dims:
                result = result.rename(observation=name)
            troubles = [
                f"observation {index}: {trouble}"
                for index, each in enumerate(found)
                for trouble in each.troubles
            ]
        result.attrs = {"draws": draws, "tune": tune, "troubles": "; ".join(troubles)}
        return result

    def _registered(
        self, observations: Any, register: Callable[[Arrays], Registered], progressbar: bool
    ) -> list[Registered]:
        """Return several observations registered; errors name the one that they are of."""
        found: list[Registered] = []
        total = count_observations(self, observations)
        with (
            deferred("observations") as interrupts,
            CountProgress(progressbar, total, "Registered") as progress,
        ):
            for index, data in encoded(self, observations):
                try:
                    found.append(register(data))
                except Exception as error:
                    raise own_failure(error, index, "cannot be registered") from error
                progress.advance()
                interrupts.between()
        if not found:
            raise ValueError("observation: got none; pass at least one.")
        return found

    @cached_property
    def _registrars(self) -> dict[CarlinChibBurst | None, Registrar]:
        return {}


def seed_of(
    random_seed: int | Sequence[int], data: Mapping[str, np.ndarray]
) -> np.random.SeedSequence:
    """Return the seed of an encoded observation, which depends on a seed and its values alone.

    Examples
    --------
    >>> curves = [{"y": np.array([1.0, last])} for last in (2.0, 2.0, 2.5)]
    >>> one, same, other = (seed_of(7, curve).generate_state(2).tolist() for curve in curves)
    >>> one == same, one == other
    (True, False)
    """
    digest = hashlib.sha256()
    for name in sorted(data):
        # zero is added because it has two signs, and bytes are those of any machine
        digest.update((np.asarray(data[name]) + 0.0).astype("<f8").tobytes())
    words = np.frombuffer(digest.digest()[:16], dtype="<u4")
    return np.random.SeedSequence(random_seed, spawn_key=tuple(int(word) for word in words))


def own_failure(error: Exception, index: int, what: str) -> Exception:
    """Return the error that names an observation; raise those that are not its own fault."""
    require_own_fault(error)
    kind = FloatingPointError if isinstance(error, ArithmeticError) else RuntimeError
    return kind(f"observation {index}, counted from 0, {what}: {error} Leave it out.")


def encoded(
    mixture: TemplateFamily, observations: Any
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield the number and the encoded values of each observation."""
    for index, observation in enumerate(read(mixture, observations)):
        if isinstance(observation, Unreadable):
            raise observation.error
        try:
            data = mixture.encode(observation)
        except Exception as error:
            require_readable(error)
            raise refusal(error, index) from error
        yield index, data


def _names(mixture: TemplateFamily, observations: Any, n: int) -> tuple[Any, np.ndarray]:
    """Return name and labels of n observations: the source's own, or None and numbers."""
    found: Any = getattr(observations, "index", None)
    name = getattr(found, "name", None)
    if isinstance(observations, xr.DataArray):
        dim = mixture.in_order(observations).dims[0]
        found = observations[dim].values
        # what xarray calls a dim without a name
        name = None if dim == "dim_0" else dim
    if hasattr(found, "to_numpy"):
        found = found.to_numpy()
    has_labels = isinstance(found, np.ndarray) and found.shape == (n,)
    return None if name is None else str(name), found if has_labels else np.arange(n)


def _labeled(settings: TemplateSettings, found: Sequence[Registered]) -> xr.Dataset:
    """Return moments by class and averaged over the classes, with the dim ``observation``."""
    n_classes = len(found[0].probability)
    grid, shape = settings.dim_names, settings.grid_shape
    dims: dict[str, tuple[str, ...]] = dict.fromkeys(found[0].moments, grid)
    dims |= dict.fromkeys({"template", "predicted", "aligned"} & dims.keys(), settings.value_dims)
    dims |= {"deformation": ("deformation_coordinate",), "scale": ()}
    dims["offset"] = settings.channel_dims
    coords: dict[str, Any] = {
        "class": np.arange(n_classes),
        "deformation_coordinate": list(settings.deformation.labels),
        **settings.labeled_coords,
    }
    n_dims = settings.points.shape[1]
    if n_dims > 1:
        dims["warp"] = dims["inverse"] = (*grid, "coordinate")
        coords["coordinate"] = list(grid) if len(grid) == n_dims else np.arange(n_dims)
        # Points in the unit of the warp; labels of the axes may have another unit. A dim of points
        # that make no grid has their name.
        name = "place" if "point" in grid else "point"
        coords[name] = (dims["warp"], settings.points.reshape(*shape, n_dims))
    lengths = {
        **dict(zip(settings.value_dims, settings.value_shape, strict=True)),
        "coordinate": n_dims,
    }
    lengths["deformation_coordinate"] = len(settings.deformation.labels)
    of_values = settings.value_attributes
    attributes = dict.fromkeys(("template", "predicted", "aligned", "offset"), of_values)
    if n_dims == len(grid) == 1:
        attributes |= dict.fromkeys(("warp", "inverse"), settings.attributes_of(grid[0]))
    probability = np.stack([each.probability for each in found])
    variables: dict[str, Any] = {"class_probability": (("observation", "class"), probability)}
    for name in found[0].moments:
        sizes, about = [lengths[dim] for dim in dims[name]], attributes.get(name, {})
        mean, sd = (
            np.stack([each.moments[name][part] for each in found]).reshape(-1, n_classes, *sizes)
            for part in (0, 1)
        )
        averages = [averaged_moments(*each) for each in zip(probability, mean, sd, strict=True)]
        pairs = {"mean": mean, "sd": sd}
        # what is predicted has the mean of the template
        for part, moment in enumerate(pairs):
            if (name, moment) == ("predicted", "mean"):
                continue
            variables[f"{name}_{moment}"] = (
                ("observation", "class", *dims[name]),
                pairs[moment],
                about,
            )
            variables[f"{name}_{moment}_averaged"] = (
                ("observation", *dims[name]),
                np.stack([each[part] for each in averages]),
                about,
            )
    return xr.Dataset(variables, coords=coords)

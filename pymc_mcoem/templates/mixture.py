"""`TemplateMixture`: a mixture of warped templates for curves and images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from typing import Any, Self

import numpy as np
import pymc as pm
import xarray as xr

from pymc_mcoem.carlin_chib.moves.within_class import RandomWalk
from pymc_mcoem.carlin_chib.pseudo_priors.prior_covariance import PriorCovariance
from pymc_mcoem.density.geometry import declare_geometry
from pymc_mcoem.em.esteps.carlin_chib import CarlinChibBurst
from pymc_mcoem.em.schedules import BurstLength
from pymc_mcoem.templates.bases.factors import BasisWithFactors
from pymc_mcoem.templates.bases.gaussian import GaussianBasis
from pymc_mcoem.templates.curves import CurveGrid, CurveSource, curve_priors, starting_slopes
from pymc_mcoem.templates.images import ImageGrid, image_priors, split_shape
from pymc_mcoem.templates.model import build_template_model
from pymc_mcoem.templates.priors import TemplatePriors
from pymc_mcoem.templates.register import RegisteringFamily
from pymc_mcoem.templates.starts import start_variance
from pymc_mcoem.templates.warps.deformations import Deformation
from pymc_mcoem.templates.warps.displacement_field import DisplacementField
from pymc_mcoem.templates.warps.scores import DeformationWithScores
from pymc_mcoem.templates.warps.time_warp import TimeWarp
from pymc_mcoem.validation import require_whole

__all__ = ["TemplateMixture"]


class TemplateMixture(RegisteringFamily):
    """Observations that are warped, scaled and noisy copies of one of several templates.

    Y | I = j, λ, β ~ Normal(λ f_j(D(u_s, β)), σ²) at the points u_s, with f_j = Σ_l α_jl φ_l,
    β | I = j ~ Normal(m, Γ_j), λ ~ Gamma(a, b) and I ~ Categorical(ω).

    Parameters
    ----------
    points : array_like of shape (n_points, n_dims)
        The design points u_s, in C order of the observation's axes. A vector means points on the
        line.
    basis : GaussianBasis
        The dictionary φ_l.
    deformation : Deformation
        The warp D and the prior of β.
    n_classes : int
        Number of templates, at least one.
    scale : tuple of (float, float) or None, default None
        Shape a and rate b of the Gamma prior of λ; None for a model without λ.
    coefficients : {"real", "nonnegative"}, default "real"
        Range of the coefficients α. With ``"nonnegative"`` templates are nowhere negative, and
        the M-step is a small quadratic program.
    covariance : {"scaled", "diagonal", "full"}, default "scaled"
        The learned block of Γ_j: γ_j² M with the deformation's base covariance M, or
        diag(γ_jk²), or any matrix.
    noise : {"shared", "class"}, default "shared"
        One σ² for all classes or one for each class.
    noise_correlation : array_like of shape (n_points, n_points) or None, default None
        Known correlation of the noise, the same in each channel. If points of an observation are
        missing, the submatrix of the others is used.
    own_points : int or None, default None
        Largest number of points that an observation may bring with it; for one dimension and
        uncorrelated noise. An observation is then either the values at `points`, or points above
        values, (2, n), with several channels (1 + n_channels, n); see `encode`. None: all
        observations are at `points`.
    priors : TemplatePriors or None
        Priors on θ that keep the M-step closed; None for the weak defaults.
    grid_shape : tuple of int or None
        Shape of one observation; None for ``(n_points,)``.
    dim_names : sequence of str or None
        Names of the observation's axes; None for ``("point",)``, or ``("row", "column")`` if the
        grid has two axes.
    dim_coords : sequence of array_like or None
        Labels along those axes; None for counts from zero.
    units : mapping of str to str, optional
        Units by name, of the axes and, under one name more, of the values, as ``{"time": "ms",
        "potential": "mV"}``. Channels may have their own, by label. Results and plots have them.
    channels : int, sequence, mapping, or None, default None
        Several values at each point, moved by one warp, as the colors of a pixel or the leads of
        an ECG: their number, or their labels, or either under the name of their axis, as
        ``{"lead": ["II", "V1"]}``; the name is ``channel`` otherwise. It is the last axis of an
        observation, ``(*grid_shape, n_channels)``. Each class has a template for each channel, λ is
        one for all channels, and each channel has a noise variance of its own, as channels may
        differ in what they measure. Values may be missing in some channels only. With `own_points`
        an observation brings points that all its channels have in common. None: one value at each
        point, without that axis.
    offset : float or None, default None
        Standard deviation r of a constant that each observation adds to its values, such as the
        baseline of a recording, in standard deviations of the noise: o ~ Normal(0, r²σ²), for each
        channel of its own. Constants that stray by more than the noise, as 10, are best told to
        stray too far rather than too little. They are summed out: `noise_variance` is that of the
        noise alone, and `register` gives the constants. Within a class they have mean zero, up to
        where templates are told to be nonnegative or cannot have that level. A curve takes a tenth
        longer, but an image of 16 × 16 pixels five times as long, as by `noise_correlation` of so
        many points. None: no constant.

    Attributes
    ----------
    model : pymc.Model
        Model of one observation: the free variables ``class_index``, ``deformation`` and, with a
        scale, ``scale``; the observed variable ``observation``; ``pm.Data`` for θ (``weights``
        (class), ``templates`` (class, basis), with channels (class, channel, basis),
        ``noise_variance``, with channels (channel) or (class, channel), ``deformation_variance``
        (class) or (class, learned_coordinate) or ``deformation_covariance`` (class,
        learned_coordinate, learned_coordinate_column), and ``rigid_variance`` (class,
        rigid_coordinate) where a `RigidMotion` has a weight) and for the observation
        (``observed_values`` with zeros where points are missing, ``observed_mask``, and
        ``own_points`` if observations bring theirs).
    parameters : xarray.Dataset
        Current values of θ in the model.

    Raises
    ------
    ValueError
        If shapes do not fit one another or a value is out of range.
    TypeError
        If `basis`, `deformation` or `priors` has another type.

    Notes
    -----
    Labels ``modelFunc``, ``mixtModelVect`` and ``exp_model`` of the paper. Statistics, each
    multiplied by δ_{I,j} by the driver: ``template_projection`` λΦᵀΣ⁻¹Y, ``template_gram``
    λ²ΦᵀΣ⁻¹Φ, ``deformation_outer`` (β−m)(β−m)ᵀ of the learned coordinates, ``squared_norm``
    YᵀΣ⁻¹Y, ``observed_points``, with learned rigid motions ``rigid_squares``, the squares of their
    (β−m), and with a scale ``scale`` and ``log_scale``; Σ is the
    correlation of the observed points. On an evenly spaced grid in the plane, under uncorrelated
    noise, ``template_gram`` is stored as the sums of `GaussianBasis.gram_sums`, 961 numbers
    instead of 65,536; `GaussianBasis.unpack_gram` turns them into matrices. With channels the first
    two, ``squared_norm`` and ``observed_points`` have an axis of channels, and the density is the
    product over channels: Y_c = λ f_jc(D(u_s, β)) + ε_c with Var ε_c = σ_c². With an offset Σ is
    the correlation plus r² in all its entries, and the prior of templates leaves their level free.

    Examples
    --------
    >>> mixture = TemplateMixture.for_images((5, 5), n_classes=2, n_landmarks=2)
    >>> [variable.name for variable in mixture.model.free_RVs]
    ['class_index', 'deformation']
    >>> dict(mixture.parameters.sizes)
    {'class': 2, 'basis': 25, 'rigid_coordinate': 4}

    Colors, whose templates are moved together:

    >>> mixture = TemplateMixture.for_images((5, 5, 3), n_classes=2, n_landmarks=2)
    >>> mixture.parameters.templates.dims, mixture.parameters.noise_variance.dims
    (('class', 'channel', 'basis'), ('channel',))
    """

    @classmethod
    def for_images(
        cls,
        shape: tuple[int, ...],
        n_classes: int,
        *,
        channels: int | Sequence[Any] | Mapping[str, Any] | None = None,
        rigid_variance: float = 0.1,
        rigid: Mapping[str, float] | None = None,
        rigid_weight: float | None = 3.0,
        n_landmarks: int | tuple[int, int] | None = None,
        landmark_correlation: float = 0.2,
        n_kernels: int | tuple[int, int] | str | None = None,
        n_factors: int = 0,
        priors: TemplatePriors | None = None,
        **options: Any,
    ) -> Self:
        """Return a mixture for gray or color images.

        At 16 × 16 this is the paper's mixture with a prior of γ² and learned variances of motions:
        pixels equally spaced from −1 to 1 on each axis, ends included; a kernel on each pixel,
        ν = 0.2; a rigid motion plus 6 × 6 landmarks on [−0.5, 0.5]² with kernels
        exp(−|u − q|² / 0.16). At other sizes the longer side spans −1 to 1 and the shorter one in
        proportion, ν is 1.5 kernel spacings, the landmarks fill the inner half of each side, and
        their kernels' width is two landmark spacings. From 21 pixels a side on, templates have
        fewer kernels than pixels.

        Parameters
        ----------
        shape : tuple of (int, int) or (int, int, int)
            Rows and columns, at least two each, and of color images channels, as NumPy arrays of
            images have them.
        n_classes : int
            Number of templates.
        channels : int, sequence or mapping, optional
            Channels by another way, with labels; see `TemplateMixture`. Observations then have the
            shape (rows, columns, n_channels). Three are drawn as red, green and blue.
        rigid_variance : float, default 0.1
            Prior variance of angle, zoom, center and translation, in squared radians and squared
            halves of the longer side. The paper has 0.1.
        rigid : mapping of str to float, optional
            How far images are turned, shifted and enlarged, as ``{"degrees": 40, "pixels": 2,
            "percent": 10}``: 95 of 100 by less. It is learned from there; see `rigid_weight`. What
            is left out has `rigid_variance`. 0 is not at all. Above 40 degrees mode searches start
            from several angles, three up to 120 degrees and five for a whole turn, and an image
            takes up to as many times as long.
        rigid_weight : float or None, default 3
            How far images are turned, shifted and enlarged is learned, one variance of each for all
            classes: the parameter ``rigid_variance``, whose rows are the same. What `rigid` or
            `rigid_variance` says is the mode of a prior that counts as so many images. None: the
            variances stay as they are given, as in the paper.
        n_landmarks : int or tuple of (int, int) or None
            Landmarks on each side, at least two. None: two more than a quarter of the side, at
            most six, that is 6 for 16 pixels, 4 for 8, 3 for 5.
        landmark_correlation : float, default 0.2
            Correlation of neighboring landmarks' displacements.
        n_kernels : int or tuple of (int, int) or "pixels", optional
            Kernels of a template on each side, at least two. A number is that of the longer side.
            "pixels": one on each pixel, as in the paper; an M-step then solves as many equations
            a class as there are pixels. Default: one on each pixel, but at most twenty on the
            longer side. An image then takes time in proportion to its pixels. Give more to see
            details finer than a twentieth of the image.
        n_factors : int, default 0
            Number of factors of each template. A factor is a template that is added to it, with a
            score of each image, Normal(0, 1): it follows what no warp can, as the thickness of
            strokes. Coefficients of factors come after those of the template in the parameter
            ``templates``, and their prior is ten times as strong; scores are the last coordinates
            of ``deformation``. `template_images` draws templates for given scores. Two factors
            about double the time of an image. Not with ``coefficients="nonnegative"``, `scale`,
            `offset` or `noise_correlation`; `merge_runs` and `refine_templates` refuse them.
        priors : TemplatePriors, optional
            Default: `image_priors`, which hold γ² near 0.0008: landmarks stray by 4 % of the longer
            side. ``TemplatePriors()``, which are weak, let γ² follow the images, as in the
            paper.
        **options
            Further options of `TemplateMixture`: `scale`, `covariance`, `noise`,
            `noise_correlation`, `offset`.

        Returns
        -------
        TemplateMixture

        Raises
        ------
        ValueError
            If the shape or the number of landmarks or kernels is too small, `rigid` has another
            unit or a number that cannot be, `rigid_weight` is not positive, `n_factors` is
            negative, or another option does not go with factors.

        Notes
        -----
        Section ``subsec:5:2`` of the paper.

        Examples
        --------
        >>> TemplateMixture.for_images((8, 8), n_classes=3).settings.deformation.n_parameters
        38
        >>> mixture = TemplateMixture.for_images((8, 8), n_classes=3, n_factors=2)
        >>> mixture.parameters.templates.sizes["basis"], mixture.model["deformation"].type.shape
        (192, (40,))
        """
        _refuse_unknown(cls, cls.for_images, options)
        sides, channels = split_shape(shape, channels)
        grid = ImageGrid(sides, n_landmarks, n_kernels)
        basis = GaussianBasis.regular(grid.kernel_axes, grid.bandwidth)
        field = DisplacementField.on_grid(grid.landmarks, grid.width, landmark_correlation)
        deformation: Deformation = grid.rigid_motion(rigid_variance, rigid, rigid_weight) + field
        require_whole("n_factors", n_factors, 0)
        if n_factors:
            basis = BasisWithFactors(basis, n_factors)
            deformation = DeformationWithScores(deformation, n_factors)
        if priors is None:
            priors = image_priors(field, options.get("covariance", "scaled"))
        return cls(
            grid.points,
            basis,
            deformation,
            n_classes,
            priors=priors,
            grid_shape=grid.shape,
            dim_names=("row", "column"),
            channels=channels,
            **options,
        )

    @classmethod
    def for_curves(
        cls,
        points: Any,
        n_classes: int,
        *,
        channels: int | str | Sequence[Any] | Mapping[str, Any] | None = None,
        interval: tuple[float, float] | None = None,
        n_landmarks: int = 35,
        n_warp_kernels: int = 20,
        warp_mean: float | np.ndarray = 1.0,
        bandwidth: float | None = None,
        scale: tuple[float, float] | None = (10.0, 10.0),
        coefficients: str | None = None,
        priors: TemplatePriors | None = None,
        **options: Any,
    ) -> Self:
        """Return a mixture for curves that each have a clock, with the paper's settings.

        Points alone make a mixture for values of the order of one that are not negative. Curves
        bring their points, names and units, and the first fifty of them their sign and size, so
        that volts and millivolts give the same templates, each in its unit.

        At ages from 2 to 18 these are the paper's for growth velocities: templates of 35 kernels
        six months apart from 1.5 to 18.5 with coefficients that are not negative, a `TimeWarp`
        with 20 kernels on 0 to 20 and β ~ Normal(1, γ_j² Id), and a scale λ ~ Gamma(10, 10). For
        another interval they are moved and stretched with it. Two settings differ from the paper:
        the bandwidth, 1.5 landmark spacings (see `CurveGrid`), and a prior on γ² (see
        `curve_priors`).

        Parameters
        ----------
        points : array_like of shape (n_points,), or DataArray of shape (n_curves, n_points)
            Increasing design points, at least four, or curves that are measured there, as
            `pymc_mcoem.datasets.read_curves` returns them. The axis is named as they are,
            otherwise ``time``. Curves of several channels are (n_curves, n_points, n_channels).
        n_classes : int
            Number of templates.
        channels : int, sequence, mapping, or str, optional
            Several curves under one clock, as the leads of an ECG or the angles of a gait; see
            `TemplateMixture`. An observation is (n_points, n_channels). Of curves with three dims
            it is the name of the dim of channels, by default the last one.
        interval : tuple of (float, float), optional
            Ends of the templates' axis. Default: the first and the last point. Points may lie
            outside by up to an eighth of its length.
        n_landmarks : int
            Kernels of a template, at least four: one beyond either end of the interval.
        n_warp_kernels : int
            Kernels of the warp's speed.
        warp_mean : float or array_like of shape (n_warp_kernels,)
            Prior mean of β.
        bandwidth : float, optional
            ν, in the unit of the points: how smooth templates are.
        scale : tuple of (float, float) or None
            Shape and rate of the Gamma prior of λ; None for a model without λ.
        coefficients : {"nonnegative", "real"}, optional
            Range of the templates' coefficients. Default: "real" for curves that go below zero,
            "nonnegative" for others and for points alone.
        priors : TemplatePriors, optional
            Default: `curve_priors`, which hold γ² near 0.0124 with these kernels: clocks stray by
            a fortieth of the interval. With looser clocks one template imitates another. They are
            in the unit of the curves (`TemplatePriors.in_unit`) and, with a file of the run, the
            same when it is loaded.
        **options
            Further options of `TemplateMixture`: `covariance`, `noise`, `noise_correlation`,
            `offset`, `own_points`, `units`.

        Returns
        -------
        TemplateMixture

        Raises
        ------
        ValueError
            If the points do not increase, are too few or lie outside the interval, or an option is
            out of its range.

        Notes
        -----
        Section ``subsec:5:1`` of the paper, labels ``modelFunc`` and ``locDef_H``. Curves have
        shape (n_points,), NaN where a value is missing. With ``own_points=n`` a curve may also
        bring up to n points of its own, which all its channels share, without compiling again.

        Examples
        --------
        >>> mixture = TemplateMixture.for_curves(np.linspace(2, 18, 31), n_classes=2)
        >>> mixture.settings.basis
        GaussianBasis(35 kernels in 1 dimensions, bandwidth=0.75)
        >>> own = TemplateMixture.for_curves([2, 8, 14, 18], n_classes=2, own_points=6)
        >>> own.encode(([3.0, 4.5, 9.0], [7.0, 6.0, 5.5]))["own_points"]
        array([3. , 4.5, 9. , 3. , 3. , 3. ])

        Curves of another field:

        >>> place = np.arange(0, 600, 20)
        >>> beats = xr.DataArray(
        ...     300 * np.sin(place / 90)[None], {"ms": place}, ("beat", "ms"), name="potential"
        ... )
        >>> mixture = TemplateMixture.for_curves(beats, n_classes=1)
        >>> mixture.settings.dim_names, mixture.settings.coefficients
        (('ms',), 'real')

        Recordings whose baselines are arbitrary:

        >>> mixture = TemplateMixture.for_curves(beats, n_classes=1, offset=12)
        >>> mixture.register(beats[0] + 50, draws=5, tune=5).offset_mean.dims
        ('class',)

        Two leads under one clock:

        >>> leads = xr.concat([beats, -2 * beats], "lead").assign_coords(lead=["II", "V1"])
        >>> mixture = TemplateMixture.for_curves(leads, n_classes=3, channels="lead")
        >>> mixture.parameters.templates.sizes["lead"], mixture.settings.observation_dims
        (2, ('ms', 'lead'))
        """
        taken = sorted({"dim_names", "dim_coords", "grid_shape"} & set(options))
        if taken:
            raise TypeError(
                f"{taken[0]}: the axis of curves is named as the points are; give them a name, as "
                "xarray.DataArray(points, name='age')."
            )
        _refuse_unknown(cls, cls.for_curves, options)
        source = CurveSource.of(points, channels)
        grid = CurveGrid(source.points, interval, n_landmarks, bandwidth)
        basis = GaussianBasis.regular([grid.landmarks], grid.bandwidth)
        coefficients = source.coefficients if coefficients is None else coefficients
        try:
            warp = TimeWarp(grid.interval, n_kernels=n_warp_kernels, mean=warp_mean)
        except ValueError as error:
            raise ValueError(f"n_warp_kernels or warp_mean: {error}") from error
        if priors is None:
            weak = curve_priors(warp, options.get("covariance", "scaled"))
            has_offset = options.get("offset") is not None
            priors = source.fit_priors(weak, basis, coefficients, has_offset)
        if isinstance(priors, TemplatePriors):  # others are refused below
            warp.slopes = starting_slopes(warp, start_variance(priors))
        return cls(
            grid.points,
            basis,
            warp,
            n_classes,
            scale=scale,
            coefficients=coefficients,
            priors=priors,
            dim_names=(source.name,),
            dim_coords=(grid.points[:, 0],),
            channels=source.channels,
            **{"own_points": source.own_points, "units": source.units, **options},
        )

    @property
    def parameters(self) -> xr.Dataset:
        """Current values of θ in the model, labeled."""
        return self.to_dataset(self.model_parameters())

    def paper_settings(self) -> dict[str, Any]:
        """Return settings of `OnlineEM.as_in_paper` that differ for time-warped curves."""
        if not isinstance(self.settings.deformation, TimeWarp):
            return {}
        return {
            "e_step": CarlinChibBurst(
                pseudo_priors=PriorCovariance(),
                within_class=RandomWalk(n_moves=20, target_acceptance=0.4),
            ),
            "burst_length": BurstLength(draws=200, tune=100),
        }

    def condition(
        self, observation: Any, parameters: Mapping[str, Any] | xr.Dataset | None = None
    ) -> pm.Model:
        """Return an independent model of one observation, with its data set.

        Parameters
        ----------
        observation : array_like of the shape of one observation
            NaN where points are missing.
        parameters : Dataset or mapping of str to array_like, optional
            θ; by default the current values in `model`.

        Returns
        -------
        pymc.Model
            It shares nothing with `model`: setting the data of one does not change the other.

        Examples
        --------
        >>> mixture = TemplateMixture.for_images((3, 3), n_classes=2, n_landmarks=2)
        >>> model = mixture.condition(np.ones((3, 3)), mixture.parameters)
        >>> float(model["observed_values"].get_value().sum())
        9.0
        """
        values = (
            self.model_parameters() if parameters is None else self.check_parameters(parameters)
        )
        encoded = self.encode(observation)
        built = build_template_model(self.settings, values)
        declare_geometry(built.model, replace(built.geometry, **self._own_hints()))
        model = built.model
        for name, value in encoded.items():
            model.set_data(name, value)
        return model

    def __repr__(self) -> str:
        """Return the sizes, the basis and the deformation."""
        settings = self.settings
        return (
            f"TemplateMixture({settings.n_classes} classes, observations of shape "
            f"{settings.value_shape}, {settings.basis!r}, {settings.deformation!r})"
        )


def _refuse_unknown(
    kind: type[TemplateMixture], make: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    """Raise a TypeError that names what a way to make mixtures takes, if it does not take all."""
    own = signature(kind.__init__).parameters.values()
    if any(each.kind is Parameter.VAR_KEYWORD for each in own):
        return  # a derived class may take anything
    ways = {each.name for each in own if each.kind is Parameter.KEYWORD_ONLY}
    fixed = {"options", "grid_shape", "dim_names"}
    fixed.add("dim_coords" if make.__name__ == "for_curves" else "own_points")
    known = sorted((ways | set(signature(make).parameters)) - fixed)
    for name in options:
        if name not in known:
            missing = "; mark values that are missing with NaN" if "mask" in name else ""
            raise TypeError(f"{name}: {make.__name__} does not take it{missing}. It takes {known}.")

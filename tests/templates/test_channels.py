"""Several channels under one warp: colors of images, and curves that share a clock."""

import pickle
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from scipy.optimize import minimize
from scipy.stats import gamma, multivariate_normal, norm
from sklearn.metrics import adjusted_rand_score

from pymc_mcoem import OnlineEM, TemplateClustering, TemplateMixture, template_images
from pymc_mcoem.compiling.backends import interpreted_mode
from pymc_mcoem.datasets import read_curves, simulate_images
from pymc_mcoem.esteps import LaplaceGaussian
from pymc_mcoem.plots import plot_registration, plot_template_history, plot_templates
from pymc_mcoem.templates import TemplatePriors
from pymc_mcoem.templates.maximization import maximize_templates
from tests.helpers.interpreted import interpreted

TIMES = np.linspace(0.0, 1.0, 12)


def leads(n_classes=2, **options):
    settings = {"coefficients": "real", "n_landmarks": 8, "n_warp_kernels": 4}
    given = {"channels": {"lead": ["II", "V1"]}, **settings, **options}
    return TemplateMixture.for_curves(TIMES, n_classes, **given)


def colors(n_classes=2, **options):
    return TemplateMixture.for_images(
        (5, 4, 3), n_classes, rigid_weight=None, n_landmarks=2, **options
    )


MIXTURES = {
    "leads": leads,
    "leads with a noise for each class": lambda: leads(noise="class"),
    "colors": colors,
    "scaled colors": lambda: colors(scale=(20.0, 20.0), noise="class"),
}


def theta_of(mixture, rng):
    theta = {name: np.array(value) for name, value in mixture.model_parameters().items()}
    theta["templates"] = rng.normal(size=theta["templates"].shape)
    theta["noise_variance"] = rng.uniform(0.1, 0.5, size=theta["noise_variance"].shape)
    theta["weights"] = np.array([0.3, 0.7])
    return theta


def observation_of(mixture, rng):
    """Return an observation with values missing in all channels, and in one of them."""
    found = rng.normal(size=mixture.settings.observation_shape)
    found[1] = np.nan
    found[2, ..., 0] = np.nan
    return found


@pytest.mark.parametrize("name", MIXTURES)
def test_density_is_the_product_over_channels(name, rng):
    mixture = MIXTURES[name]()
    settings, theta = mixture.settings, theta_of(mixture, rng)
    y = observation_of(mixture, rng)
    model = mixture.condition(y, theta)
    logp = model.compile_logp(mode=interpreted_mode())
    beta = settings.deformation.mean + 0.1 * rng.normal(size=settings.deformation.n_parameters)
    for k in range(2):
        point, scale, expected = {"class_index": k, "deformation": beta}, 1.0, 0.0
        if settings.scale is not None:
            a, b = settings.scale
            scale, point["scale_log__"] = 1.2, np.log(1.2)
            expected = gamma.logpdf(scale, a, scale=1 / b) + np.log(scale)
        design = settings.basis.matrix(settings.deformation.warp(settings.points, beta).eval())
        noise = theta["noise_variance"]
        noise = noise[k] if settings.noise == "class" else noise
        values = y.reshape(-1, settings.n_channels)
        mean = scale * design @ theta["templates"][k].T
        expected += np.nansum(norm.logpdf(values, mean, np.sqrt(noise)))
        deviations = np.ones(len(beta))
        deviations[settings.learned] = np.sqrt(theta["deformation_variance"][k])
        covariance = settings.whole_covariance * np.outer(deviations, deviations)
        expected += multivariate_normal.logpdf(beta, settings.deformation.mean, covariance)
        assert logp(point) == pytest.approx(expected + np.log(theta["weights"][k]), rel=1e-11)


@pytest.mark.parametrize("name", MIXTURES)
def test_statistics_are_the_sums_of_each_channel(name, rng):
    mixture = MIXTURES[name]()
    settings, y = mixture.settings, observation_of(mixture, rng)
    known, data = mixture.written_out, mixture.encode(y)
    n_parameters = settings.deformation.n_parameters
    size = n_parameters + (settings.scale is not None)
    positions = 0.1 * rng.normal(size=(3, size))
    positions[:, :n_parameters] += settings.deformation.mean
    weights = np.array([0.2, 0.5, 0.3])
    found = dict(zip(mixture.statistics, known.sums(weights, positions, data), strict=True))
    seen = ~np.isnan(y.reshape(-1, settings.n_channels))
    values = np.where(seen, y.reshape(seen.shape), 0.0)
    projection = gram = 0.0
    for weight, x in zip(weights, positions, strict=True):
        scale = np.exp(x[-1]) if settings.scale is not None else 1.0
        warped = settings.deformation.warp(settings.points, x[:n_parameters]).eval()
        design = settings.basis.matrix(warped)
        projection = projection + weight * scale * values.T @ design
        gram = gram + weight * scale**2 * np.einsum("sl,sc,sk->clk", design, seen, design)
    np.testing.assert_allclose(found["template_projection"], projection, rtol=1e-9, atol=1e-12)
    packed = settings.basis.unpack_gram(found["template_gram"])
    np.testing.assert_allclose(packed, gram, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["squared_norm"], np.square(values).sum(axis=0))
    np.testing.assert_allclose(found["observed_points"], seen.sum(axis=0))


def statistics_of(rng, n_channels, is_complete):
    """Running means of two classes, with four kernels and six points a channel."""
    designs, labels = rng.normal(size=(30, 6, 4)), rng.integers(2, size=30)
    values = rng.normal(size=(30, 6, n_channels)) + designs @ rng.normal(size=(4, n_channels))
    seen = rng.random(values.shape) < (2.0 if is_complete else 0.7)
    values = values * seen
    away = rng.normal(size=(30, 3))
    each = {
        "class_weight": np.ones(30),
        "template_projection": np.einsum("nsl,nsc->ncl", designs, values),
        "template_gram": np.einsum("nsl,nsc,nsk->nclk", designs, seen, designs),
        "deformation_outer": np.einsum("nk,nl->nkl", away, away),
        "squared_norm": np.square(values).sum(axis=1),
        "observed_points": seen.sum(axis=1).astype(float),
    }
    member = (labels[:, None] == np.arange(2)) / 30
    return {name: np.tensordot(member.T, value, axes=1) for name, value in each.items()}


OF_CHANNELS = ("template_projection", "template_gram", "squared_norm", "observed_points")


@pytest.mark.parametrize("noise", ["shared", "class"])
@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("coefficients", ["real", "nonnegative"])
def test_m_step_is_that_of_each_channel_alone(noise, is_complete, coefficients, rng):
    statistics = statistics_of(rng, 3, is_complete)
    rates = np.array([0.1, 0.7, 3.0])
    settings = {
        "effective_size": 9.0,
        "gram": np.eye(4),
        "base_covariance": np.eye(3),
        "noise": noise,
        "coefficients": coefficients,
    }
    mean = rng.normal(size=(3, 1))
    together = maximize_templates(
        statistics, priors=TemplatePriors(template_mean=mean, noise_rate=rates), **settings
    )
    assert together["templates"].shape == (2, 3, 4)
    for c in range(3):
        own = {
            name: value[:, c] if name in OF_CHANNELS else value
            for name, value in statistics.items()
        }
        priors = TemplatePriors(template_mean=float(mean[c, 0]), noise_rate=float(rates[c]))
        alone = maximize_templates(own, priors=priors, **settings)
        np.testing.assert_array_equal(together["templates"][:, c], alone["templates"])
        np.testing.assert_allclose(
            together["noise_variance"][..., c], alone["noise_variance"], rtol=1e-13
        )
        np.testing.assert_array_equal(
            together["deformation_variance"], alone["deformation_variance"]
        )


@pytest.mark.parametrize("is_complete", [True, False])
def test_m_step_is_the_direct_maximum(is_complete, rng):
    statistics, n = statistics_of(rng, 2, is_complete), 7.0
    priors = TemplatePriors(template_strength=0.5, noise_rate=np.array([0.3, 1.0]), noise_shape=2.0)
    gram = np.eye(4) + 0.2
    found = maximize_templates(
        statistics, effective_size=n, priors=priors, gram=gram, base_covariance=np.eye(3)
    )
    precision = priors.precision(gram)

    def negative(x):
        alpha, variance = x[:16].reshape(2, 2, 4), np.exp(x[16:])
        total = 0.0
        for j, c in np.ndindex(2, 2):
            a = alpha[j, c]
            squares = statistics["squared_norm"][j, c] + a @ (
                statistics["template_gram"][j, c] @ a - 2 * statistics["template_projection"][j, c]
            )
            points = statistics["observed_points"][j, c]
            total += squares / (2 * variance[c]) + points * np.log(variance[c]) / 2
            total += (a @ precision @ a / variance[c] + 4 * np.log(variance[c])) / (2 * n)
        prior = (priors.noise_shape + 1) * np.log(variance) + priors.noise_rate / variance
        return total + prior.sum() / n

    best = minimize(negative, rng.normal(size=18), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(best.x[:16].reshape(2, 2, 4), found["templates"], atol=1e-5)
    np.testing.assert_allclose(np.exp(best.x[16:]), found["noise_variance"], rtol=1e-5)


def bump(times, middle):
    return np.exp(-np.square((times - middle) / 0.1))


def ambiguous_curves(n, rng):
    """Return curves (n, 25, 2) of three kinds, of which each channel tells only two apart."""
    times = np.linspace(0.0, 1.0, 25)
    kinds = rng.integers(3, size=n)
    early, late = 0.3, 0.7
    middles = np.array([[early, early], [early, late], [late, late]])
    shift = 0.03 * rng.normal(size=(n, 1, 1))
    height = 1.0 + 0.1 * rng.normal(size=(n, 1, 1))
    clean = height * bump(times[:, None] - shift, middles[kinds][:, None])
    return times, kinds, clean + 0.05 * rng.normal(size=clean.shape), middles


def test_kinds_that_no_channel_tells_apart_alone_are_learned(rng):
    times, kinds, curves, middles = ambiguous_curves(150, rng)
    mixture = TemplateMixture.for_curves(
        times, 3, channels=["a", "b"], coefficients="real", n_landmarks=20, n_warp_kernels=6
    )
    em = OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(curves)
    found = mixture.register(curves[:60], em.parameters, draws=20, tune=10, progressbar=False)
    labels = found.class_probability.values.argmax(axis=1)
    assert adjusted_rand_score(kinds[:60], labels) > 0.95
    templates = template_images(em.parameters, mixture)
    assert templates.dims == ("class", "time", "channel")
    for j in range(3):
        kind = np.bincount(kinds[:60][labels == j]).argmax()
        expected = bump(times[:, None], middles[kind])
        assert np.abs(templates.values[j] - expected).max() < 0.15
    noise = em.parameters.noise_variance
    assert noise.dims == ("channel",)
    np.testing.assert_allclose(np.sqrt(noise), 0.05, rtol=0.2)
    for channel in "ab":
        alone = curves[:60, :, "ab".index(channel)]
        assert adjusted_rand_score(kinds[:60], np.argmax(alone, axis=1) > 12) < 0.7


def test_channels_in_other_units_are_learned_alike(rng):
    times, _, curves, _ = ambiguous_curves(60, rng)
    found = []
    for unit in (1.0, 1024.0):
        values = xr.DataArray(
            curves * np.array([1.0, unit]),
            {"time": times, "lead": ["II", "V1"]},
            ("beat", "time", "lead"),
        )
        mixture = TemplateMixture.for_curves(values, 3, n_landmarks=20, n_warp_kernels=6)
        em = OnlineEM(mixture, random_seed=1, progressbar=False).partial_fit(values)
        found.append(em.parameters)
    one, other = found
    units = np.array([1.0, 1024.0])
    np.testing.assert_allclose(one.weights, other.weights, rtol=1e-6)
    np.testing.assert_allclose(one.templates * units[:, None], other.templates, rtol=1e-6)
    np.testing.assert_allclose(one.noise_variance * units**2, other.noise_variance, rtol=1e-6)


def test_a_channel_without_values_changes_nothing(rng):
    mixture, alone = leads(), leads(channels=None)
    theta = theta_of(mixture, rng)
    own = theta | {"templates": theta["templates"][:, 0], "noise_variance": np.array(0.2)}
    theta["noise_variance"] = np.array([0.2, 0.4])
    y = rng.normal(size=12)
    point = {"class_index": 1, "deformation": 1 + 0.1 * rng.normal(size=4), "scale_log__": 0.1}
    both = mixture.condition(np.column_stack([y, np.full(12, np.nan)]), theta)
    one = alone.condition(y, own)
    first, second = (model.compile_logp(mode=interpreted_mode())(point) for model in (both, one))
    assert first == pytest.approx(second, rel=1e-13)


def test_runs_of_colors_go_on_from_a_file(rng, tmp_path):
    mixture = colors()
    with interpreted():
        theta = theta_of(mixture, rng)
        simulated = simulate_images(mixture, theta, 30, random_seed=1, missing=0.05)
    images = simulated["images"]
    assert images.dims == ("observation", "row", "column", "channel")
    whole = OnlineEM(mixture, random_seed=2, n_start=10, progressbar=False).partial_fit(images)
    half = OnlineEM(mixture, random_seed=2, n_start=10, progressbar=False)
    half.partial_fit(images.values[:17]).save(tmp_path / "run.nc")
    again = pickle.loads(pickle.dumps(mixture))
    half = OnlineEM.load(tmp_path / "run.nc", again).partial_fit(images.transpose(..., "row")[17:])
    xr.testing.assert_identical(half.parameters, whole.parameters)
    with pytest.raises(ValueError, match="channels"):
        OnlineEM.load(tmp_path / "run.nc", colors(channels=["red", "green", "blue"]))
    assert mixture.with_classes(3).parameters.templates.shape == (3, 3, 20)


def test_registrations_have_the_channels(rng):
    mixture = leads()
    theta = theta_of(mixture, rng)
    curve = observation_of(mixture, rng)
    found = mixture.register(curve, theta, draws=5, tune=5)
    assert found.template_mean.dims == found.aligned_mean.dims == ("class", "time", "lead")
    assert found.warp_mean.dims == ("class", "time")
    assert found.scale_mean.dims == ("class",)
    noise = np.square(found.predicted_sd) - np.square(found.template_sd)
    np.testing.assert_allclose(noise.mean(("class", "time")), theta["noise_variance"])
    assert found.lead.values.tolist() == ["II", "V1"]


def test_three_channels_are_drawn_in_color(rng):
    mixture = colors()
    theta = mixture.to_dataset(theta_of(mixture, rng))
    collection = plot_templates(theta, mixture, backend="none")
    image = collection.viz["image"]["template"].values[0]
    templates = template_images(theta, mixture).values
    low, high = templates.min(), templates.max()
    expected = np.round(255 * (templates[0] - low) / (high - low))
    assert np.abs(image["pixels"][..., :3] - expected).max() <= 1
    assert (image["pixels"][..., 3] == 255).all()
    found = mixture.register(rng.normal(size=(5, 4, 3)), theta, draws=5, tune=5)
    picture = plot_registration(
        found, rng.normal(size=(5, 4, 3)), template_images(theta, mixture), backend="none"
    )
    assert picture.viz["plot"].sizes == {"class": 2, "panel": 4}


@pytest.mark.parametrize("backend", ["matplotlib", "bokeh", "plotly"])
def test_back_ends_draw_the_same_pixels(backend, rng):
    if backend != "matplotlib":
        pytest.importorskip(backend)
    mixture = colors(n_classes=2)
    theta = mixture.to_dataset(theta_of(mixture, rng))
    flat = plot_templates(theta, mixture, backend="none").viz["image"]["template"]
    expected = flat.values[0]["pixels"]
    drawn = plot_templates(theta, mixture, backend=backend).viz["image"]["template"].values[0]
    if backend == "matplotlib":
        found = drawn.get_array()
        assert tuple(drawn.get_extent()) == (-0.5, 3.5, -4.5, 0.5)
    elif backend == "bokeh":
        packed = np.ascontiguousarray(drawn.data_source.data["image"][0])
        found = packed.view(np.uint8).reshape(5, 4, 4)[::-1]
    else:
        found = np.asarray(drawn.z) * np.array([1, 1, 1, 255])
        assert (drawn.y0, drawn.dy, drawn.x0, drawn.dx) == (0.0, -1.0, 0.0, 1.0)
    np.testing.assert_array_equal(found, expected)


def test_other_channels_have_a_plot_each(rng):
    mixture = TemplateMixture.for_images(
        (5, 4), 2, channels={"band": ["red", "infrared"]}, n_landmarks=2
    )
    theta = mixture.to_dataset(theta_of(mixture, rng))
    collection = plot_templates(theta, mixture, backend="none")
    assert collection.viz["plot"].sizes == {"class": 2, "band": 2}
    titles = [each["string"] for each in collection.viz["title"]["template"].values.ravel()]
    assert titles[:2] == ["class 0, weight 0.3\nband red", "band infrared"]
    curves = leads()
    theta = curves.to_dataset(theta_of(curves, rng))
    collection = plot_templates(theta, curves, backend="none")
    assert collection.viz["plot"].sizes == {"lead": 2}
    path = theta.expand_dims(step=[0, 1]).assign_coords(observation=("step", [0, 1]))
    history = xr.DataTree.from_dict({"steps": path})
    collection = plot_template_history(history, curves, backend="none")
    assert collection.viz["plot"].sizes == {"class": 2, "lead": 2}
    found = curves.register(rng.normal(size=(12, 2)), theta, draws=5, tune=5)
    with pytest.raises(ValueError, match=r"registration\.sel\(lead='II'\)"):
        plot_registration(found)
    plot_registration(found.sel(lead="V1"), rng.normal(size=12), backend="none")


def test_estimators_take_rows_of_color_images(rng):
    mixture = colors()
    rows = template_images(theta_of(mixture, rng), mixture).values.reshape(2, -1)
    rows = np.tile(rows, (10, 1)) + 0.1 * rng.normal(size=(20, 60))
    clustering = TemplateClustering(
        2, shape=(5, 4, 3), draws=5, tune=2, random_seed=1, em_options={"n_start": 10}
    )
    assert clustering.fit(rows).predict(rows).shape == (20,)
    assert clustering.transform(rows).shape == rows.shape


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: leads(channels=0), "give their number"),
        (lambda: leads(channels=["II", "II"]), "different labels"),
        (lambda: leads(channels="lead"), "points are no curves"),
        (lambda: leads(channels={"time": 2}), "'time'"),
        (lambda: leads(channels={"class": 2}), "'class'"),
        (lambda: leads(own_points=20).encode((TIMES, TIMES)), "give a row of 2 channels for each"),
        (lambda: leads(own_points=20).encode(np.ones((2, 9))), r"points above values, \(3, n\)"),
        (lambda: colors(channels=4), "as many channels as the shape has"),
        (lambda: leads(priors=TemplatePriors(noise_rate=np.ones(3))), "noise_rate has shape"),
        (lambda: colors().encode(np.ones((5, 4))), "all its 3 channels along the last axis"),
        (lambda: colors().encode(np.ones((3, 5, 4))), "moveaxis"),
        (lambda: leads().encode(np.ones((2, 12))), "moveaxis"),
        (lambda: leads().encode(np.ones(12)), "all its 2 channels"),
        (
            lambda: TemplateMixture.for_images((5, 4), 1, n_landmarks=2).encode(np.ones((5, 4, 3))),
            "channels=3",
        ),
    ],
)
def test_errors_say_what_to_write(make, match):
    with pytest.raises(ValueError, match=match):
        make()


class TestReadingCurves:
    """`read_curves` of several channels."""

    values = np.arange(24.0).reshape(2, 4, 3)

    def test_arrays_of_either_order(self):
        own, swapped = read_curves(self.values), read_curves(self.values.swapaxes(1, 2))
        xr.testing.assert_identical(own, swapped)
        assert own.dims == ("curve", "time", "channel")
        points = [0.0, 1.0, 3.0]
        found = read_curves(self.values, points=points, channel="lead")
        assert found.sizes == {"curve": 2, "time": 3, "lead": 4}
        with pytest.raises(ValueError, match="cannot be told apart"):
            read_curves(np.ones((2, 4, 4)))

    def test_labeled_arrays(self):
        given = xr.DataArray(self.values, dims=("beat", "ms", "lead"))
        found = read_curves(given.transpose("lead", "ms", "beat"), time="ms", channel="lead")
        np.testing.assert_array_equal(found.transpose(*given.dims), self.values)
        assert found.dims == ("beat", "ms", "lead")
        assert TemplateMixture.for_curves(found, 1).settings.observation_dims == ("ms", "lead")
        with pytest.raises(ValueError, match="channel='lead'"):
            read_curves(given)

    def test_columns_of_a_table(self):
        table = pd.DataFrame(
            {"who": [1, 1, 2, 2], "s": [0, 1, 0, 1], "knee": [1.0, 2, 3, 4], "hip": [5.0, 6, 7, 8]}
        )
        found = read_curves(table, curve="who", time="s", value=["knee", "hip"])
        assert found.channel.values.tolist() == ["knee", "hip"]
        np.testing.assert_array_equal(found.sel(who=2, channel="hip"), [7, 8])
        both = read_curves(
            table.set_index(["who", "s"]).to_xarray(), value=["knee", "hip"], time="s"
        )
        np.testing.assert_array_equal(both.transpose(*found.dims), found)

    def test_pairs(self):
        pairs = [([0, 1], [[1.0, 2.0], [3.0, np.nan]]), ([0, 1, 2], np.ones((3, 2)))]
        found = read_curves(pairs)
        assert found.sizes == {"curve": 2, "time": 3, "channel": 2}
        assert np.isnan(found[0]).sum() == 3
        with pytest.raises(ValueError, match="different numbers of channels"):
            read_curves([pairs[0], ([0, 1], np.ones((2, 3)))])
        own = read_curves([pairs[0], ([0.5, 1.5, 2.5], np.ones((3, 2)))], channel="lead")
        assert own.dims == ("curve", "part", "own_point")
        assert own.part.values.tolist() == ["time", "0", "1"]
        np.testing.assert_array_equal(own[0], [[0, 1, np.nan], [1, 3, np.nan], [2, np.nan, np.nan]])
        mixture = TemplateMixture.for_curves(own, 1)
        assert mixture.parameters.templates.dims == ("class", "lead", "basis")

    def test_functions_with_several_values_and_lists_of_arrays(self):
        given = SimpleNamespace(
            argument_names=("s",),
            coordinate_names=("hip", "knee"),
            sample_names=("a", "b"),
            dim_domain=1,
            dim_codomain=2,
            data_matrix=self.values[..., :2],
            grid_points=(np.arange(4.0),),
        )

        class Functions(SimpleNamespace):
            def __len__(self):
                return 2

        found = read_curves(Functions(**vars(given)), channel="joint")
        assert found.dims == ("curve", "s", "joint")
        assert found.joint.values.tolist() == ["hip", "knee"]
        np.testing.assert_array_equal(found, self.values[..., :2])
        listed = read_curves([*self.values])
        np.testing.assert_array_equal(listed, self.values)


class TestPointsOfTheirOwn:
    """Channels of curves that are measured at different times."""

    def test_the_grid_and_own_points_are_one_model(self, rng, without_compiler):
        mixture, plain = leads(own_points=15), leads()
        theta, values = theta_of(plain, rng), observation_of(plain, rng)
        known = ~np.isnan(values).all(axis=1)
        given = {
            "grid": values,
            "pair": (TIMES, values),
            "rows": np.vstack([TIMES[known], values[known].T]),
            "mapping": {"points": TIMES, "values": np.ma.masked_invalid(values)},
            "encoded": mixture.encode(values),
        }
        point = {
            "class_index": np.array(1),
            "deformation": rng.normal(1, 0.2, 4),
            "scale_log__": np.array(0.1),
        }
        expected = plain.condition(values, theta).compile_logp()(point)
        for name, observation in given.items():
            found = mixture.condition(observation, theta).compile_logp()(point)
            assert found == pytest.approx(expected, rel=1e-12), name

    def test_pairs_are_learned_as_mappings_are(self, rng, without_compiler):
        mixture = leads(own_points=15)
        pairs = [(TIMES[:n], rng.normal(1.0, 0.3, (n, 2))) for n in (12, 9, 10)]
        named = [{"points": points, "values": values} for points, values in pairs]
        found = []
        for given in (pairs, named, iter(pairs)):
            em = OnlineEM(mixture, e_step=LaplaceGaussian(), random_seed=1, progressbar=False)
            found.append(em.partial_fit(given).parameters)
        xr.testing.assert_identical(found[0], found[1])
        xr.testing.assert_identical(found[0], found[2])

    def test_what_is_one_curve_and_what_several(self):
        mixture = leads(own_points=9)
        times, values = np.linspace(0, 1, 9), np.ones((9, 2))
        assert mixture.is_single([times, values])
        assert mixture.is_single({"points": times, "values": values})
        assert mixture.is_single(np.vstack([times, values.T]))
        assert not mixture.is_single([(times, values)])
        assert not mixture.is_single([(times, values), (times[:5], values[:5])])
        assert not mixture.is_single(np.ones((4, 3, 9)))
        with pytest.raises(TypeError, match="list of"):
            mixture.as_source((times, values))

    @pytest.mark.parametrize("start", ["kmeans", "exemplars"])
    def test_from_a_table_to_the_last_plot(self, start, rng):
        """Two kinds of walks at times of their own, with names and units kept."""
        kinds, rows = rng.integers(2, size=40), []
        for walk, kind in enumerate(kinds):
            for s in np.sort(rng.uniform(0, 1, size=10)):
                knee = 60 * np.exp(-((s - 0.3 - 0.4 * kind) ** 2) / 0.02) + rng.normal()
                hip = 30 * np.cos(3 * s) + rng.normal() if rng.random() < 0.9 else np.nan
                rows.append((walk, s, knee, hip))
        table = pd.DataFrame(rows, columns=["walk", "s", "knee", "hip"])
        curves = read_curves(
            table,
            curve="walk",
            time="s",
            value=["knee", "hip"],
            channel="joint",
            units={"value": "degrees"},
        )
        mixture = TemplateMixture.for_curves(curves, 2, n_landmarks=12, n_warp_kernels=3)
        em = OnlineEM(mixture, start=start, n_start=20, random_seed=1, progressbar=False)
        em.partial_fit(curves)
        assert em.n_seen == 40
        assert em.parameters.templates.joint.values.tolist() == ["knee", "hip"]
        found = mixture.register(curves[30:], em.parameters, draws=20, tune=5, progressbar=False)
        assert found.aligned_mean.dims == ("walk", "class", "s", "joint")
        assert found.template_mean.attrs == {"long_name": "value", "units": "degrees"}
        labels = found.class_probability.argmax("class")
        assert adjusted_rand_score(kinds[30:], labels) == 1.0
        drawn = plot_templates(em.parameters, mixture, backend="none").viz
        assert drawn["xlabel"]["template"].values.ravel()[0]["string"] == "s"
        one = mixture.register(curves[30], em.parameters, draws=20, tune=5)
        plot_registration(one.sel(joint="hip"), curves[30].values[[0, 2]], backend="none")
        assert mixture.is_single(curves[0])
        assert em.partial_fit(curves[0]).n_seen == 41


def test_a_class_without_values_of_a_channel_has_the_noise_of_all_classes_there(rng):
    mixture = leads(noise="class")
    em = OnlineEM(mixture, n_start=4, random_seed=1, progressbar=False)
    values = rng.normal(0.0, 0.1, size=(8, 12, 2))
    em.partial_fit(values)
    statistics = {name: np.array(value) for name, value in em.run.state.statistics.items()}
    for name in ("observed_points", "squared_norm", "template_gram", "template_projection"):
        statistics[name][1, 0] = 0.0
    found = {
        noise: leads(noise=noise).maximize(statistics, effective_size=8.0)["noise_variance"]
        for noise in ("class", "shared")
    }
    assert found["class"][1, 0] == found["shared"][0]
    assert found["class"][1, 1] != found["shared"][1]


@pytest.mark.parametrize("missing", [0.0, np.nan])
def test_a_channel_without_two_values_at_first_leaves_the_others_their_unit(missing, rng):
    given = 1e-3 * rng.normal(size=(60, 12, 2))
    given[:50, :, 1] = missing
    curves = xr.DataArray(given, {"time": TIMES}, ("curve", "time", "lead"))
    options = {"coefficients": "real", "n_landmarks": 8, "n_warp_kernels": 4}
    rate = TemplateMixture.for_curves(curves, 2, channels="lead", **options).priors.noise_rate
    unit = np.std(given[:50, :, 0])
    np.testing.assert_allclose(rate, 0.01 * unit**2, rtol=1e-12)


@pytest.mark.parametrize("labels", [["V1", "II"], ["aVR", "aVL"]])
def test_channels_of_other_labels_are_refused(labels, rng):
    mixture = leads()
    values = xr.DataArray(
        rng.normal(size=(12, 2)), {"time": TIMES, "lead": labels}, ("time", "lead")
    )
    with pytest.raises(
        ValueError, match=rf"along lead .*{labels[0]}.*the model has \['II', 'V1'\]"
    ):
        mixture.encode(values)
    assert mixture.encode(values.assign_coords(lead=["II", "V1"]))


@pytest.mark.parametrize("name", ["step", "seconds", "basis_row", "deformation_mean"])
def test_channels_are_not_named_as_what_stands_beside_them(name):
    with pytest.raises(ValueError, match=f"their axis is called '{name}'"):
        TemplateMixture.for_images((4, 4), 2, channels={name: 2}, n_landmarks=2)

"""Starts from exemplars: the choice of templates, and what mixtures of every kind get."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import pymc_mcoem as mcoem
from pymc_mcoem.em.esteps.laplace_gaussian import LaplaceGaussian
from pymc_mcoem.em.merge_and_split import best_columns
from pymc_mcoem.templates import exemplars
from pymc_mcoem.templates.exemplars import exemplar_evidence, n_exemplars
from tests.helpers.toy_families import NormalMixture


@pytest.fixture(scope="module")
def curves():
    """Curves of three kinds, one to three bumps, whose clocks differ much."""
    return mcoem.datasets.simulate_curves(60, 3, deformation_variance=0.08, random_seed=3)


def make(curves, n_classes=3, **options):
    return mcoem.TemplateMixture.for_curves(
        curves.point.values, n_classes, scale=None, coefficients="real", **options
    )


def classes_of(mixture, parameters, observations):
    """Return the most probable class of each observation."""
    e_step, rng = LaplaceGaussian().compile(mixture), np.random.default_rng(1)
    found = [
        e_step(mixture.encode(each), parameters, rng, {}, draws=1, tune=0) for each in observations
    ]
    return np.array([each.statistics["class_weight"].argmax() for each in found])


def test_the_best_templates_of_few_are_those_of_enumeration(rng):
    """Give every third observation to a column that is far better than all others."""
    for _ in range(20):
        evidence = rng.normal(size=(12, 7)) - 5.0
        own = rng.choice(7, 3, replace=False)
        for j, column in enumerate(own):
            evidence[j::3, column] += 10.0
        totals = {
            columns: evidence[:, columns].max(axis=1).sum() for columns in combinations(range(7), 3)
        }
        assert sorted(best_columns(evidence, 3)) == sorted(own)
        assert max(totals, key=totals.get) == tuple(sorted(own))


def test_no_exchange_of_one_template_is_better(rng):
    for _ in range(20):
        evidence = rng.normal(size=(15, 8))
        found = best_columns(evidence, 3)
        values = np.maximum(evidence, np.quantile(evidence, 0.05))
        total = values[:, found].max(axis=1).sum()
        assert len(set(found)) == 3
        assert total >= values[:, :3].max(axis=1).sum()
        for out in range(3):
            for other in set(range(8)) - set(found):
                columns = [*found[:out], other, *found[out + 1 :]]
                assert values[:, columns].max(axis=1).sum() <= total + 1e-9


def test_an_odd_observation_does_not_decide():
    """Let one that only the last column explains be a thousand nats from all others."""
    evidence = np.full((40, 3), -20.0)
    evidence[:20, 0] = evidence[20:39, 1] = 0.0
    evidence[39], evidence[39, 2] = -1_000.0, 0.0
    assert sorted(best_columns(evidence, 2)) == [0, 1]
    # nor does one that nothing explains, or that nothing is known of
    evidence[38] = -np.inf
    assert sorted(best_columns(evidence, 2)) == [0, 1]
    assert len(best_columns(np.full((5, 3), -np.inf), 2)) == 2


def test_curves_of_one_kind_are_found_whatever_their_clocks(curves, rng):
    mixture, observations = make(curves), list(curves.curves.values)
    rand = {}
    for start in ("kmeans", "exemplars"):
        theta = mixture.initialize(observations, np.random.default_rng(1), start)
        assert set(theta) == set(mixture.parameter_names)
        mixture.check_parameters(theta)
        named = classes_of(mixture, theta, observations)
        rand[start] = adjusted_rand_score(curves.class_index.values, named)
    assert rand["exemplars"] > 0.85
    assert rand["kmeans"] < 0.7


def peaks_with_and_without_a_bump(n, rng):
    """Return points, curves with a tall peak anywhere, and which have a small bump after it."""
    u, kinds = np.linspace(0, 1, 50), np.arange(n) % 2
    place = rng.uniform(0.25, 0.5, size=(n, 1))
    found = 4.0 * np.exp(-(((u - place) / 0.06) ** 2))
    found += 0.4 * kinds[:, None] * np.exp(-(((u - place - 0.3) / 0.05) ** 2))
    return u, found + 0.05 * rng.normal(size=found.shape), kinds


@pytest.fixture(scope="module")
def peaks():
    """How to make a mixture, curves of two kinds with tall peaks anywhere, and their kinds."""
    points, values, kinds = peaks_with_and_without_a_bump(40, np.random.default_rng(5))
    priors = mcoem.TemplatePriors().with_deformation_variance(0.1, weight=200)

    def make(**options):
        return mcoem.TemplateMixture.for_curves(
            points, 2, n_landmarks=30, scale=None, coefficients="real", priors=priors, **options
        )

    return make, values, kinds


def test_small_differences_count_beside_what_warps_explain(peaks, monkeypatch):
    """Under the noise of k-means, which has in it how far peaks move, they do not."""
    make, values, kinds = peaks
    mixture = make()
    by_kmeans = mixture.initialize(list(values), np.random.default_rng(1), "kmeans")
    noises = []

    def spied(mixture, encoded, parameters, *given):
        noises.append(float(parameters["noise_variance"]))
        return exemplar_evidence(mixture, encoded, parameters, *given)

    monkeypatch.setattr(exemplars, "exemplar_evidence", spied)

    def start():
        theta = mixture.initialize(list(values), np.random.default_rng(1), "exemplars")
        return theta["noise_variance"], adjusted_rand_score(
            kinds, classes_of(mixture, theta, values)
        )

    noise, rand = start()
    assert rand > 0.85
    assert noise in by_kmeans["noise_variance"] * 0.25 ** np.arange(1, 9)
    assert noises[-1] == noise  # templates are chosen under it
    monkeypatch.setattr(exemplars, "_LEAST_GAIN", np.inf)
    noise, rand = start()
    assert rand < 0.5
    assert noise == by_kmeans["noise_variance"]


def test_noise_by_class_is_divided_where_it_is_more_than_the_mean_then(peaks):
    """Divide the noise of moving peaks beside curves whose noise k-means finds."""
    make, values, _ = peaks
    quiet = 8.0 + 0.1 * np.random.default_rng(6).normal(size=values.shape)
    mixture, observations = make(noise="class"), [*values, *quiet]
    by_kmeans, found = (
        mixture.initialize(observations, np.random.default_rng(1), start)["noise_variance"]
        for start in ("kmeans", "exemplars")
    )
    assert by_kmeans.max() > 10 * by_kmeans.min()
    share = 0.25 ** round(np.log(found.max() / by_kmeans.mean()) / np.log(0.25))
    assert share < 0.1
    expected = np.minimum(by_kmeans, share * by_kmeans.mean())
    for noise in found:  # the mean is that of exemplars
        assert np.isclose(noise, [*expected, expected.mean()]).any()


def test_where_the_noise_is_not_divided_nothing_else_changes(curves, monkeypatch):
    """Not even what is drawn afterwards."""
    mixture, observations = make(curves), list(curves.curves.values)

    def start():
        rng = np.random.default_rng(1)
        return mixture.initialize(observations, rng, "exemplars") | {"drawn": rng.random()}

    found = start()

    def unjudged(choice, encoded, *given):
        nothing = np.empty((0, choice.n_classes))
        return exemplars._Judged(1.0, np.arange(0), np.arange(len(encoded)), nothing)

    monkeypatch.setattr(exemplars, "_judge_noise", unjudged)
    for name, value in start().items():
        np.testing.assert_array_equal(found[name], value)


def test_the_evidence_is_that_of_a_class_alone(curves):
    """Compare with a mixture of one class whose template it is."""
    mixture, observations = make(curves), curves.curves.values[:4]
    theta = mixture.initialize(list(curves.curves.values), np.random.default_rng(1), "kmeans")
    encoded = [mixture.encode(each) for each in observations]
    found = exemplar_evidence(mixture, encoded, theta, theta["templates"], np.random.default_rng(2))
    single = make(curves, 1)
    for j in range(3):
        alone = single.declared_parameters() | {
            "templates": theta["templates"][[j]],
            "noise_variance": theta["noise_variance"],
            "deformation_variance": theta["deformation_variance"][[j]],
        }
        e_step = LaplaceGaussian().compile(single)
        expected = [
            e_step(data, alone, np.random.default_rng(3), {}, draws=1, tune=0).log_evidence
            for data in encoded
        ]
        # the classes of the others have a third of the weight each
        np.testing.assert_allclose(found[:, j] + np.log(3), expected, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"noise": "class"},
        {"covariance": "full"},
        {"covariance": "diagonal"},
        {"offset": 1.0},
        {"own_points": 40},
        {"channels": 2},
    ],
    ids=lambda options: "=".join(map(str, *options.items())),
)
def test_mixtures_of_every_kind_start(curves, options, rng):
    values = curves.curves.values[:20].copy()
    if "channels" in options:
        values = np.stack([values, 2.0 - values], axis=-1)
    else:
        values[3, 5:9] = np.nan  # missing
    mixture = make(curves, 2, **options)
    if "own_points" in options:
        points = curves.point.values
        chosen = [np.sort(rng.choice(50, rng.integers(20, 41), replace=False)) for _ in values]
        observations = [
            (points[at], np.nan_to_num(row[at])) for at, row in zip(chosen, values, strict=True)
        ]
    else:
        observations = list(values)
    theta = mixture.initialize(observations, np.random.default_rng(1), "exemplars")
    mixture.check_parameters(theta)
    np.testing.assert_allclose(theta["weights"].sum(), 1.0)
    assert not np.allclose(theta["templates"][0], theta["templates"][1])


def test_noise_by_class_stays_with_its_template(curves):
    mixture, observations = make(curves, noise="class"), list(curves.curves.values)
    by_kmeans, found = (
        mixture.initialize(observations, np.random.default_rng(1), start)
        for start in ("kmeans", "exemplars")
    )
    mean = by_kmeans["noise_variance"].mean()
    assert np.ptp(by_kmeans["noise_variance"]) > 0
    for template, noise in zip(found["templates"], found["noise_variance"], strict=True):
        same = (by_kmeans["templates"] == template).all(axis=1)
        expected = by_kmeans["noise_variance"][same].item() if same.any() else mean
        assert noise == pytest.approx(expected)


@pytest.mark.parametrize("what", ["weight_concentration", "template_mean"])
def test_priors_of_each_class_are_shared_among_exemplars(curves, what):
    n_basis = make(curves).settings.basis.n_basis
    value = np.array([2.0, 3.0, 4.0])
    priors = mcoem.TemplatePriors(**{what: value if "weight" in what else np.ones((3, n_basis))})
    mixture = make(curves, priors=priors)
    observations = list(curves.curves.values[:20])
    mixture.check_parameters(
        mixture.initialize(observations, np.random.default_rng(1), "exemplars")
    )


def test_of_many_observations_some_are_compared(curves, monkeypatch):
    monkeypatch.setattr(exemplars, "_MOST_COMPARED", 12)
    monkeypatch.setattr(exemplars, "_FEW", 10)
    compared = []

    def spied(mixture, encoded, *given):
        compared.append(len(encoded))
        return exemplar_evidence(mixture, encoded, *given)

    monkeypatch.setattr(exemplars, "exemplar_evidence", spied)
    mixture = make(curves)
    mixture.initialize(list(curves.curves.values), np.random.default_rng(1), "exemplars")
    assert compared == [10, 10, 2]  # the noise is judged twice, and not divided


def share_of_noise(squares, monkeypatch, sizes=None, prior=1e-9, unit=1.0, n_kinds=2):
    """Return the share for two classes and observations with these mean squares.

    There is a template for each kind, which is right for every second observation, or every third.
    The last template is that observation itself, and explains it without an error.
    """
    squares = np.asarray(squares)
    sizes = np.full(len(squares), 50) if sizes is None else np.asarray(sizes)
    kinds = np.arange(len(squares)) % n_kinds

    def evidence(mixture, encoded, parameters, *given):
        noise = float(parameters["noise_variance"])
        places = [data["place"] for data in encoded]
        own = squares[places, None] + 1e6 * (kinds[places, None] != np.arange(n_kinds))
        own = np.column_stack([own, np.zeros(len(places))])
        return -0.5 * sizes[places, None] * (own / noise + np.log(noise * unit))

    monkeypatch.setattr(exemplars, "exemplar_evidence", evidence)
    mixture = SimpleNamespace(
        settings=SimpleNamespace(noise="shared"), priors=SimpleNamespace(noise_variance=prior)
    )
    clustered = {"weights": np.full(2, 0.5), "noise_variance": np.array(1.0)}
    encoded = [{"observed_mask": np.arange(60) < size, "place": i} for i, size in enumerate(sizes)]
    is_other = np.ones((len(squares), n_kinds + 1), dtype=bool)
    is_other[:, -1] = False
    found = exemplars._judge_noise(
        mixture,
        encoded,
        clustered,
        np.zeros((n_kinds + 1, 3)),
        is_other,
        np.random.default_rng(1),
    )
    assert sorted([*found.rows, *found.others]) == list(range(len(squares)))
    under = clustered | {"noise_variance": np.array(found.share)}
    judged = [encoded[place] for place in found.rows]
    np.testing.assert_array_equal(found.evidence, evidence(None, judged, under))
    return found.share


@pytest.mark.parametrize(
    ("squares", "expected"),
    [
        (np.full(60, 1.0), 1.0),
        (np.full(60, 0.24), 1.0),  # a fourth would explain more, but too little
        (np.full(60, 0.22), 0.25),
        (np.full(60, 0.22 / 16), 0.25**3),
        (np.where(np.arange(60) % 20 == 0, 1e9, 0.22 / 16), 0.25**3),  # odd ones
        (np.where(np.arange(60) % 3 == 0, 0.5, 0.25**5), 0.25),  # a kind with more noise
        (np.full(60, np.inf), 1.0),  # nothing is explained
        (np.full(1, 0.22 / 16), 0.25**3),
    ],
    ids=["right", "near", "small", "smaller", "odd", "of a kind", "none", "one"],
)
def test_the_noise_is_divided_while_much_is_gained(squares, expected, monkeypatch):
    assert share_of_noise(squares, monkeypatch) == expected


def test_no_more_templates_than_classes_have_a_say(monkeypatch):
    """Let two classes leave a kind of three that no template explains."""
    assert share_of_noise(np.full(60, 0.01), monkeypatch, n_kinds=3) == 1.0


@pytest.mark.parametrize("prior", [0.2, 0.03, np.array([0.5, 0.03])], ids=str)
def test_the_noise_is_not_divided_below_the_mode_of_its_prior(prior, monkeypatch):
    expected = {0.2: 0.25, 0.03: 0.25**2}[float(np.min(prior))]
    assert share_of_noise(np.full(60, 0.0), monkeypatch, prior=prior) == expected


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_the_unit_does_not_matter_where_numbers_of_values_differ(unit, monkeypatch):
    """Let few have more values, of which each is explained worse."""
    sizes = np.where(np.arange(60) % 20 == 0, 55, 8)
    squares = np.where(sizes == 55, 0.5, 0.2)
    assert share_of_noise(squares, monkeypatch, sizes=sizes, unit=unit) == 0.25


@pytest.mark.parametrize("n", [59, 60, 61, 88])
def test_every_kind_has_a_say_whatever_their_order(n, monkeypatch):
    """Let every second observation be of a kind with more noise."""
    assert share_of_noise(np.where(np.arange(n) % 2, 1.0, 1e-4), monkeypatch) == 1.0


def test_one_class_and_known_labels_start_by_k_means(curves):
    observations = list(curves.curves.values[:20])
    one = make(curves, 1)
    allowed = np.ones((20, 3), dtype=bool)
    allowed[:10] = curves.class_index.values[:10, None] == np.arange(3)
    for mixture, given in ((one, None), (make(curves), allowed)):
        start = partial(mixture.initialize_labeled, observations)
        found = start(np.random.default_rng(1), "exemplars", given)
        expected = start(np.random.default_rng(1), "kmeans", given)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


def test_the_number_of_exemplars_grows_with_the_classes():
    assert [n_exemplars(c, 100) for c in (2, 6, 50)] == [14, 30, 100]


def test_a_run_says_how_it_started_and_repeats(curves, tmp_path):
    mixture = make(curves)
    runs = [
        mcoem.OnlineEM(
            mixture,
            start="exemplars",
            n_start=30,
            e_step=mcoem.esteps.FixedLatents(),
            random_seed=5,
            progressbar=False,
        ).partial_fit(curves.curves.values[:40])
        for _ in range(2)
    ]
    runs[0].save(tmp_path / "run.nc")
    loaded = mcoem.OnlineEM.load(tmp_path / "run.nc", mixture)
    assert loaded.run.settings.start == "exemplars"
    for other in (runs[1], loaded):
        np.testing.assert_array_equal(
            runs[0].parameters["templates"].values, other.parameters["templates"].values
        )


def test_a_start_that_is_unknown_is_refused(curves):
    mixture = make(curves)
    with pytest.raises(ValueError, match=r"start is 'medoids'; give one of \('kmeans', 'random'"):
        mixture.initialize(list(curves.curves.values[:5]), np.random.default_rng(1), "medoids")
    with pytest.raises(ValueError, match="start: got 'medoids'"):
        mcoem.OnlineEM(mixture, start="medoids")
    for driver in (mcoem.OnlineEM, mcoem.SAEM):
        with pytest.raises(ValueError, match="'exemplars', which NormalMixture does not know"):
            driver(NormalMixture(), start="exemplars")

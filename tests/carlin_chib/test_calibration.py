"""Bayes factors of two models, seen from outside, over many data: calibrated, as the ranks are.

Simulation-based calibration: if parameters are drawn from the prior and data given them, the rank
of each parameter among independent draws of its posterior is uniform, and a model has made the data
as often as the Bayes factor and the prior odds say. Chains are those of ``pm.sample``, with a step
that judges its pseudo-priors and learns better ones as it does for any user.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import expit, logsumexp
from scipy.stats import binom

import pymc_mcoem as mcoem
from pymc_mcoem.diagnostics import log_odds, model_comparison
from tests.helpers.checks import LIMIT
from tests.helpers.representatives import by_default

N_REPLICATES, N_CHAINS, N_RANKS = 500, 2, 10

#: A right step has a smaller p once in 20,000 runs of these tests.
LEAST_P = 1e-5

X = np.linspace(-1.0, 1.0, 6)
#: Unequal, so that Bayes factors from which they are not taken out are wrong.
PRIOR = np.array([0.7, 0.3])
#: Of the intervals. Wrong errors show sooner than at 0.94.
PROBABILITY = 0.8
#: Larger Bayes factors are cut in Turing's identity, because few of them would make its error.
LARGEST = 10.0

pytestmark = pytest.mark.filterwarnings("ignore::pymc_mcoem.diagnostics.ClassIndexWarning")


# -- two pairs of models ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Two models of six values.

    Attributes
    ----------
    model : pymc.Model
        Its data are called "seen" and its index "k".
    step : CarlinChib
    simulate : callable
        Of a generator: class, latents of that class ``(n_quantities,)`` and data ``(6,)``.
    latents : callable
        Of a posterior with dimension "sample": the same of its draws, ``(n_draws, n_quantities)``.
    log_evidence : callable
        Of data ``(n, 6)``: log-evidences ``(n, 2)``.
    """

    model: pm.Model
    step: mcoem.CarlinChib
    simulate: Callable[[np.random.Generator], tuple[int, np.ndarray, np.ndarray]]
    latents: Callable[[Any], np.ndarray]
    log_evidence: Callable[[np.ndarray], np.ndarray]


def evidence_of_level(y):
    """Return the log-evidence of a standard normal level with standard normal errors, ``(n,)``."""
    return stats.multivariate_normal.logpdf(y, np.zeros(len(X)), np.eye(len(X)) + 1)


def log_spaced(low, high, n=400):
    """Return points, and the logarithms of their weights in a sum that stands for an integral."""
    points, gap = np.linspace(np.log(low), np.log(high), n, retstep=True)
    return np.exp(points), points + np.log(gap)


@pytest.fixture(scope="module")
def lines():
    """Return a level, or a line with a spread of its own."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(len(X)))
        k = pm.Categorical("k", PRIOR)
        level = pm.Normal("level", 0.0, 1.0)
        line = pm.Normal("line", 0.0, 1.0, shape=2)
        spread = pm.Gamma("spread", 3.0, 3.0)
        is_line = pm.math.eq(k, 1)
        mean = pm.math.switch(is_line, line[0] + line[1] * X, level)
        pm.Normal("y", mean, pm.math.switch(is_line, spread, 1.0), observed=seen)
        step = mcoem.CarlinChib(blocks={0: [level], 1: [line, spread]})

    def simulate(rng):
        if rng.random() < PRIOR[0]:
            level = rng.standard_normal()
            return 0, np.array([level, 0.0, 0.0]), rng.normal(level, 1.0, len(X))
        line, spread = rng.standard_normal(2), rng.gamma(3.0, 1 / 3)
        y = rng.normal(line[0] + line[1] * X, spread)
        return 1, np.array([*line, spread]), y

    def latents(draws):
        is_line, line = draws["k"].values == 1, draws["line"].transpose("sample", ...).values
        own = np.column_stack([line, draws["spread"].values])
        level = draws["level"].values[:, None] * np.array([1.0, 0.0, 0.0])
        return np.where(is_line[:, None], own, level)

    def log_evidence(y):
        spreads, log_weight = log_spaced(0.005, 10.0)
        design = np.stack([np.ones_like(X), X])
        terms = [
            stats.multivariate_normal.logpdf(y, cov=s**2 * np.eye(len(X)) + design.T @ design)
            + stats.gamma.logpdf(s, 3.0, scale=1 / 3)
            for s in spreads
        ]
        of_line = logsumexp(np.array(terms) + log_weight[:, None], axis=0)
        return np.stack([evidence_of_level(y), of_line], axis=-1)

    return Pair(model, step, simulate, latents, log_evidence)


GROUP = np.repeat(np.arange(3), 2)


@pytest.fixture(scope="module")
def groups():
    """Return a level, or three groups of an unknown width, whose posterior no normal fits."""
    with pm.Model() as model:
        seen = pm.Data("seen", np.zeros(len(X)))
        k = pm.Categorical("k", PRIOR)
        level = pm.Normal("level", 0.0, 1.0)
        width = pm.LogNormal("width", 0.0, 1.0)
        each = pm.Normal("each", 0.0, width, shape=3)
        pm.Normal("y", pm.math.switch(pm.math.eq(k, 1), each[GROUP], level), 1.0, observed=seen)
        step = mcoem.CarlinChib(blocks={0: [level], 1: [width, each]})

    def simulate(rng):
        if rng.random() < PRIOR[0]:
            level = rng.standard_normal()
            return 0, np.array([level, 0.0]), rng.normal(level, 1.0, len(X))
        width = rng.lognormal()
        each = rng.normal(0.0, width, 3)
        return 1, np.array([width, each[0]]), rng.normal(each[GROUP], 1.0)

    def latents(draws):
        first = draws["each"].transpose("sample", ...).values[:, 0]
        own = np.column_stack([draws["width"].values, first])
        level = draws["level"].values[:, None] * np.array([1.0, 0.0])
        return np.where(draws["k"].values[:, None] == 1, own, level)

    def log_evidence(y):
        widths, log_weight = log_spaced(np.exp(-8.0), np.exp(8.0))
        together = GROUP[:, None] == GROUP
        terms = [
            stats.multivariate_normal.logpdf(y, cov=np.eye(len(X)) + w**2 * together)
            + stats.lognorm.logpdf(w, 1.0)
            for w in widths
        ]
        of_groups = logsumexp(np.array(terms) + log_weight[:, None], axis=0)
        return np.stack([evidence_of_level(y), of_groups], axis=-1)

    return Pair(model, step, simulate, latents, log_evidence)


# -- replicates, and what is asked of them ---------------------------------------------------------


@dataclass(frozen=True)
class Replicates:
    """Chains given data that were drawn from the prior, and what made the data.

    Attributes
    ----------
    k : ndarray of shape (n_replicates,)
    y : ndarray of shape (n_replicates, 6)
    ranks : ndarray of shape (n_replicates, n_quantities)
        Of the class, of the latents and of one function of both latents and data.
    trees : list of DataTree
    exact : ndarray of shape (n_replicates,)
        Logarithms of the Bayes factors of class 1 against class 0.
    """

    k: np.ndarray
    y: np.ndarray
    ranks: np.ndarray
    trees: list[Any]
    exact: np.ndarray


def replicate(pair, rng, *, tune=100, n_draws=300):
    """Return replicates; ranks are among the same number of draws, however long the chains are."""
    thin = n_draws * N_CHAINS // N_RANKS
    classes, values, ranks, trees = [], [], [], []
    for _ in range(N_REPLICATES):
        k, latents, y = pair.simulate(rng)
        with pair.model:
            pm.set_data({"seen": y})
            tree = pm.sample(
                n_draws,
                tune=tune,
                step=pair.step,
                chains=N_CHAINS,
                cores=1,
                # a generator's children are the same each time, and an integer is not
                random_seed=int(rng.integers(2**32)),
                progressbar=False,
                quiet=True,
                compute_convergence_checks=False,
            )
        thinned = tree["posterior"].to_dataset().isel(draw=slice(thin - 1, None, thin))
        thinned = thinned.stack(sample=["chain", "draw"])
        drawn = pair.latents(thinned)
        found = np.column_stack([thinned["k"].values, drawn, drawn[:, 1] * y[-1]])
        true = np.array([k, *latents, latents[1] * y[-1]])
        below, ties = (found < true).sum(axis=0), (found == true).sum(axis=0)
        ranks.append(below + rng.integers(ties + 1))
        classes.append(k)
        values.append(y)
        trees.append(tree)
    y = np.array(values)
    exact = np.diff(pair.log_evidence(y), axis=1).ravel()
    return Replicates(np.array(classes), y, np.array(ranks), trees, exact)


def least_p_of_ranks(ranks):
    """Return the least p-value of uniform ranks, over quantities."""
    counts = [np.bincount(each, minlength=N_RANKS + 1) for each in ranks.T]
    return min(stats.chisquare(each).pvalue for each in counts)


def log_bayes_factors(trees):
    """Return what `bayes_factors` reports of class 1 against class 0, ``(n_replicates,)`` each."""
    pairs = [
        mcoem.bayes_factors(tree, probability=PROBABILITY).pairs.sel({"class": 1, "against": 0})
        for tree in trees
    ]
    return {
        name: np.array([float(pair[name]) for pair in pairs])
        for name in ("log_bf", "mcse", "lower", "upper")
    }


def largest_score(made, log_bf):
    """Return the largest deviation of classes from their posterior odds, in binomial errors.

    Where classes and data are drawn from the prior, the class less its posterior probability has
    a mean of zero, whatever function of the data it is multiplied with. The functions are here one
    for all data, two statistics, and indicators of five ranges of the probability, each with a
    fifth of the binomial variance. Monte Carlo errors add less than a hundredth to that.
    """
    p = expit(log_bf + np.log(PRIOR[1] / PRIOR[0]))
    variance = p * (1 - p)
    order = np.argsort(p)
    before = np.empty(len(p))
    before[order] = np.cumsum(variance[order]) - variance[order] / 2
    place = (5 * before / variance.sum()).astype(int)
    functions = np.array(
        [
            np.ones(len(p)),
            np.log(made.y.var(axis=1)),
            np.log(np.abs(made.y @ X)),
            *(place == np.arange(5)[:, None]),
        ]
    )
    z = functions @ (made.k - p) / np.sqrt(functions**2 @ variance)
    return np.abs(z).max()


def turing(made, log_bf):
    """Return how far Bayes factors are from Turing's identity, in standard errors.

    Under model 0 the Bayes factor B of model 1 has a mean of one. It is cut at `LARGEST`, and what
    is cut off, the mean of B - LARGEST where that is positive, is the mean of 1 - LARGEST / B under
    model 1.
    """
    kept = np.minimum(np.exp(log_bf[made.k == 0]), LARGEST)
    cut = np.maximum(1 - LARGEST * np.exp(-log_bf[made.k == 1]), 0.0)
    error = np.sqrt(kept.var(ddof=1) / len(kept) + cut.var(ddof=1) / len(cut))
    return (kept.mean() + cut.mean() - 1) / error


def coverage(made, found):
    """Return how many intervals have the exact Bayes factor, of how many with an error."""
    inside = (found["lower"] <= made.exact) & (made.exact <= found["upper"])
    known = ~np.isnan(found["mcse"])
    return int(inside[known].sum()), int(known.sum())


def covers(made, found):
    """Return whether as many intervals have the exact Bayes factor as they say, but for chance."""
    n_inside, n_known = coverage(made, found)
    # an error known to a tenth shifts the coverage by about 0.02
    low = binom.isf(1 - 1e-6, n_known, PROBABILITY - 0.02)
    high = binom.isf(1e-6, n_known, PROBABILITY + 0.02)
    return bool(low <= n_inside <= high)


def mean_error(made, found):
    """Return the mean difference from exact logarithms, in standard errors of that mean."""
    z = (found["log_bf"] - made.exact) / found["mcse"]
    z = z[np.isfinite(z)]
    return np.sqrt(len(z)) * z.mean() / z.std(ddof=1)


def require_calibration(made, found):
    """Fail where ranks, odds, errors or intervals are not as they should be."""
    assert least_p_of_ranks(made.ranks) > LEAST_P
    assert largest_score(made, found["log_bf"]) < LIMIT
    assert abs(turing(made, found["log_bf"])) < LIMIT
    assert abs(mean_error(made, found)) < LIMIT
    assert covers(made, found), coverage(made, found)


@pytest.mark.parametrize("name", by_default(["lines", "groups"], ["lines"]))
def test_exact_bayes_factors_pass_and_others_do_not(name, rng, request):
    """The evidences and the checks themselves, without a chain."""
    pair = request.getfixturevalue(name)
    classes, _, values = zip(*(pair.simulate(rng) for _ in range(5_000)), strict=True)
    y = np.array(values)
    exact = np.diff(pair.log_evidence(y), axis=1).ravel()
    made = Replicates(np.array(classes), y, np.empty(0), [], exact)
    assert largest_score(made, exact) < LIMIT
    assert abs(turing(made, exact)) < LIMIT
    for wrong in (exact + 0.3, exact - 0.3, 2 * exact, exact / 2):
        assert max(largest_score(made, wrong), abs(turing(made, wrong))) > LIMIT


# -- the step and its Bayes factors as they are ----------------------------------------------------


@pytest.fixture(scope="module")
def of_lines(request, lines):
    """Return replicates of the first pair, whose pseudo-priors are good as they are fitted."""
    return replicate(lines, np.random.default_rng(zlib.crc32(request.fixturename.encode())))


@pytest.mark.slow
def test_bayes_factors_of_two_models_are_calibrated(of_lines):
    found = log_bayes_factors(of_lines.trees)
    require_calibration(of_lines, found)
    # chains of 300 draws differ now and then
    assert coverage(of_lines, found)[1] > 0.95 * N_REPLICATES


@pytest.mark.slow
def test_bayes_factors_by_learned_pseudo_priors_are_calibrated(groups, rng, caplog):
    with caplog.at_level(logging.INFO, "pymc_mcoem"):
        made = replicate(groups, rng, tune=500, n_draws=500)
    n_learned = sum("learned a pseudo-prior" in told for told in caplog.messages)
    assert n_learned > 0.2 * N_REPLICATES * N_CHAINS
    found = log_bayes_factors(made.trees)
    require_calibration(made, found)
    assert coverage(made, found)[1] > 0.6 * N_REPLICATES


# -- and broken ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_step_without_the_normalizer_of_a_pseudo_prior_is_not_calibrated(lines, rng, monkeypatch):
    step = lines.step
    fit = step._engine.fit

    def without_normalizer(rng, others):
        found = fit(rng, others)
        shift = np.array([0.0, 1.5])
        wrong = replace(found, log_normalizer=found.log_normalizer + shift)
        if found.mixtures is None:
            return wrong
        log_share = found.mixtures.log_share + shift[:, None]
        return replace(wrong, mixtures=replace(found.mixtures, log_share=log_share))

    monkeypatch.setattr(step._engine, "fit", without_normalizer)
    made = replicate(lines, rng)
    found = log_bayes_factors(made.trees)
    assert least_p_of_ranks(made.ranks) < LEAST_P
    assert largest_score(made, found["log_bf"]) > LIMIT
    assert abs(turing(made, found["log_bf"])) > LIMIT
    assert abs(mean_error(made, found)) > LIMIT
    assert not covers(made, found)


@pytest.mark.slow
@pytest.mark.parametrize("taken_out", [0, 2])
def test_bayes_factors_with_the_prior_odds_in_them_are_not(of_lines, monkeypatch, taken_out):
    """They are left in, or taken out twice."""
    log_prior = model_comparison._log_prior
    monkeypatch.setattr(
        model_comparison, "_log_prior", lambda *given: taken_out * log_prior(*given)
    )
    found = log_bayes_factors(of_lines.trees)
    assert abs(turing(of_lines, found["log_bf"])) > LIMIT
    assert abs(mean_error(of_lines, found)) > LIMIT
    assert not covers(of_lines, found)


@pytest.mark.slow
def test_intervals_of_half_the_error_do_not_cover(of_lines, monkeypatch):
    mcse = log_odds._mcse
    monkeypatch.setattr(log_odds, "_mcse", lambda series: mcse(series) / 2)
    found = log_bayes_factors(of_lines.trees)
    assert abs(turing(of_lines, found["log_bf"])) < LIMIT
    assert not covers(of_lines, found)

"""Gaussian mixtures: against textbook formulas, slow twins, and the truth of simulated tables."""

import itertools
import os
import tracemalloc
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from knothole.columns.columns import Column, Columns, Evidence
from knothole.densities.base import Within
from knothole.densities.gaussian import splits as splitting
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.gaussian.em import (
    GaussianComponents,
    Prior,
    ScoreRows,
)
from knothole.densities.gaussian.learner import sizes_for
from knothole.densities.gaussian.splits import best_cut
from knothole.densities.normal import below, box_mass
from knothole.errors import InvalidInput
from knothole.sobol import (
    COMMON,
    GROUPS,
    SIZE,
    WORD,
    Points,
    row_keys,
    sobol_net,
)

MISSING = np.nan


def mixture(k=3, d=4, seed=0):
    """Weights, means and covariances of a random mixture."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(k, d, d)) / np.sqrt(d)
    covariance = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(d)
    return rng.dirichlet(np.full(k, 5.0)), rng.normal(size=(k, d)), covariance


def simulate(weight, mean, covariance, n, seed=0, rate=0.0):
    rng = np.random.default_rng(seed)
    which = rng.choice(len(weight), size=n, p=weight)
    root = np.linalg.cholesky(covariance)
    x = mean[which] + np.einsum("nij,nj->ni", root[which], rng.normal(size=(n, mean.shape[1])))
    return np.where(rng.random(x.shape) < rate, MISSING, x)


def known(k=3, d=4, seed=0):
    """A density with known parameters, in the columns' own units."""
    weight, mean, covariance = mixture(k, d, seed)
    X = simulate(weight, mean, covariance, 200, seed)
    density = GaussianMixture(1, normal_scores=False, validation_fraction=0).fit(X)
    location, scale = density.scores_.units()
    density.weights_ = weight
    density.means_ = (mean - location) / scale
    density.covariances_ = covariance / np.multiply.outer(scale, scale)
    return density, weight, mean, covariance


def drawn_by(density, evidence, words, keys=COMMON, seed=0):
    """Draws (rows, variables, 64 * words)."""
    points = Points(seed, len(density.coordinate_variables))
    return density.draw(evidence, points.uniform(words, keys)).transpose(0, 2, 1)


def draw_all(density, evidence, seed=0, word=0):
    """64 draws of every missing value, (rows, variables, 64), each row from points of its own."""
    keys = np.arange(len(evidence.points), dtype=np.uint64)
    draws = drawn_by(density, evidence, range(word, word + 1), keys, seed)
    return np.where(np.isnan(evidence.points)[:, :, None], draws, evidence.points[:, :, None])


def mixed_table(n=400, seed=0, rate=0.2):
    """Skewed, whole, zero-inflated, categorical; dependent; with missing values."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 2, n)
    size = rng.normal(group, 0.7)
    table = pd.DataFrame({
        "size": np.exp(size),
        "number": rng.poisson(np.exp(0.5 * size + 0.5)).astype(float),
        "rain": np.where(rng.random(n) < 0.4, 0.0, rng.exponential(np.exp(size))),
        "kind": pd.Categorical(np.where(rng.random(n) < 0.9, group, 1 - group)),
    })  # fmt: skip
    return table.mask(rng.random(table.shape) < rate)


# ---- log densities and moments against textbook formulas ----------------------------------------


def test_log_density_of_what_is_observed():
    density, weight, mean, covariance = known()
    X = simulate(weight, mean, covariance, 60, seed=1, rate=0.4)
    for row, got in zip(X, density.score_samples(X), strict=True):
        o = np.flatnonzero(~np.isnan(row))
        parts = [
            np.log(w) + stats.multivariate_normal(m[o], s[np.ix_(o, o)]).logpdf(row[o])
            if len(o)
            else np.log(w)
            for w, m, s in zip(weight, mean, covariance, strict=True)
        ]
        np.testing.assert_allclose(got, logsumexp(parts), rtol=1e-9, atol=1e-9)


def test_conditional_moments():
    density, weight, mean, covariance = known()
    X = simulate(weight, mean, covariance, 40, seed=2, rate=0.5)
    share, means, covariances = density.conditional(density.evidence(X))
    for n, row in enumerate(X):
        m, o = np.flatnonzero(np.isnan(row)), np.flatnonzero(~np.isnan(row))
        logs = []
        for k in range(len(weight)):
            s = covariance[k]
            gain = s[np.ix_(m, o)] @ np.linalg.inv(s[np.ix_(o, o)])
            expected_mean = mean[k, m] + gain @ (row[o] - mean[k, o])
            expected_cov = s[np.ix_(m, m)] - gain @ s[np.ix_(o, m)]
            np.testing.assert_allclose(means[n, k, m], expected_mean, rtol=1e-8, atol=1e-10)
            np.testing.assert_allclose(means[n, k, o], row[o], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(covariances[n, k][np.ix_(m, m)], expected_cov, rtol=1e-8)
            assert not covariances[n, k][o].any() and not covariances[n, k][:, o].any()
            logs.append(np.log(weight[k]))
            if len(o):
                own = stats.multivariate_normal(mean[k, o], s[np.ix_(o, o)])
                logs[-1] += own.logpdf(row[o])
        np.testing.assert_allclose(share[n], np.exp(logs - logsumexp(logs)), rtol=1e-8)


def slow_sums(rows, components):
    """The twin of EM's expectations: plain formulas, one row and component at a time."""
    k, d = components.mean.shape
    first, second, shares, logs = np.zeros((k, d)), np.zeros((k, d, d)), [], []
    for n in range(len(rows)):
        z, v = rows.z[n], np.diag(rows.variance[n])
        m, o = np.flatnonzero(np.isnan(z)), np.flatnonzero(~np.isnan(z))
        log, moments = [], []
        for c in range(k):
            s, mean = components.covariance[c], components.mean[c]
            inverse = np.linalg.inv(s[np.ix_(o, o)])
            gain = s[np.ix_(m, o)] @ inverse
            residual = z[o] - mean[o]
            spread = v[np.ix_(o, o)]
            normal = -0.5 * (len(o) * np.log(2 * np.pi) + np.linalg.slogdet(s[np.ix_(o, o)])[1])
            normal -= 0.5 * (residual @ inverse @ residual + np.trace(inverse @ spread))
            log.append(np.log(components.weight[c]) + normal)
            whole, product = np.zeros(d), np.zeros((d, d))
            whole[o], whole[m] = residual, gain @ residual
            move = np.zeros((d, len(o)))
            move[o], move[m] = np.eye(len(o)), gain
            product += np.outer(whole, whole) + move @ spread @ move.T
            product[np.ix_(m, m)] += s[np.ix_(m, m)] - gain @ s[np.ix_(o, m)]
            moments.append((whole, product))
        share = rows.weight[n] * np.exp(log - logsumexp(log))
        for c in range(k):
            first[c] += share[c] * moments[c][0]
            second[c] += share[c] * moments[c][1]
        shares.append(share)
        logs.append(logsumexp(log))
    return np.array(logs), np.array(shares), first, second


def random_rows(n=80, d=5, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, d))
    z[rng.random((n, d)) < 0.4] = MISSING
    z[3], z[4] = MISSING, rng.normal(size=d)
    variance = np.where(np.isnan(z), 0.0, rng.uniform(size=(n, d)) * (rng.random(d) < 0.6))
    return ScoreRows(z, variance, np.zeros(n), (variance > 0).any(axis=0), None, rng.random(n))


@pytest.mark.parametrize("k", [1, 3, 11])
def test_expectations_against_their_twin(k):
    rows = random_rows()
    components = GaussianComponents(*mixture(k, 5))
    log_density, share = np.empty(len(rows)), np.empty((len(rows), k))
    found = components.pass_over(rows, (log_density, share))
    logs, shares, first, second = slow_sums(rows, components)
    np.testing.assert_allclose(log_density, logs, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(share, shares, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found.latents[1], first, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found.latents[2], second, rtol=1e-8, atol=1e-9)


def test_a_single_component_of_many_variables(monkeypatch):
    rows = replace(random_rows(), base=np.linspace(-1, 1, 80))
    components = GaussianComponents(*mixture(1, 5))
    by_kernel = components.log_density(rows)
    monkeypatch.setattr("knothole.densities.gaussian.em.MANY_VARIABLES", 4)
    np.testing.assert_allclose(components.log_density(rows), by_kernel, rtol=1e-9)


def test_patterns_are_told_apart():
    """Neighbours with equal and different patterns, in an order that once fooled the cache."""
    components = GaussianComponents(*mixture(2, 3))
    z = np.array([[1.0, 2.0, MISSING], [1.0, 2.0, 3.0], [1.0, 2.0, MISSING], [MISSING, 2.0, 3.0],
                  [MISSING, MISSING, MISSING], [1.0, MISSING, 3.0]])  # fmt: skip
    rows = ScoreRows(
        z, np.zeros_like(z), np.zeros(len(z)), np.zeros(3, bool), None, np.ones(len(z))
    )
    together = components.log_density(rows)
    alone = [components.log_density(rows[n : n + 1])[0] for n in range(len(z))]
    np.testing.assert_array_equal(together, alone)


# ---- learning -----------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["full", "tied", "low-rank"])
@pytest.mark.parametrize("normal_scores", [True, False])
def test_em_never_lowers_its_objective(covariance, normal_scores):
    density = GaussianMixture(
        3, covariance=covariance, normal_scores=normal_scores, strength=1.0, max_iter=40, tol=0,
        validation_fraction=0, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        density.fit(mixed_table())
    gain = np.diff(density.objective_)
    assert len(gain) > 10
    assert gain.min() > -1e-9 * np.abs(density.objective_).max()


def test_a_step_without_missing_values_is_the_textbook_step():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 3))
    rows = ScoreRows(z, np.zeros_like(z), np.zeros(100), np.zeros(3, bool), None, np.ones(100))
    one = GaussianComponents(np.ones(1), np.zeros((1, 3)), np.eye(3)[None])
    after = one.stepped(one.expect(rows), Prior(1e-4, np.eye(3)))[1]
    np.testing.assert_allclose(after.mean[0], z.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(after.covariance[0], np.cov(z.T, bias=True), atol=1e-3)


def test_a_known_mixture_is_recovered():
    weight, mean, covariance = mixture(3, 3, seed=1)
    mean = mean * 4
    X = simulate(weight, mean, covariance, 6000, rate=0.3)
    density = GaussianMixture(3, normal_scores=False, random_state=0, n_init=3).fit(X)
    location, scale = density.scores_.units()
    means = location + scale * density.means_
    order = [int(np.argmin(((means - m) ** 2).sum(axis=1))) for m in mean]
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(means[order], mean, atol=0.15)
    np.testing.assert_allclose(density.weights_[order], weight, atol=0.03)
    own = density.covariances_[order] * np.multiply.outer(scale, scale)
    np.testing.assert_allclose(own, covariance, rtol=0.1, atol=0.1)


def test_sizes_are_chosen_by_what_the_data_has():
    one = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 600)
    assert len(GaussianMixture(random_state=0).fit(one).weights_) == 1
    centres = np.array([[0, 0], [6, 0], [0, 6], [6, 6]])[np.arange(800) % 4]
    four = centres + np.random.default_rng(1).normal(size=(800, 2))
    assert len(GaussianMixture(normal_scores=False, random_state=0).fit(four).weights_) >= 4


def test_maps_are_chosen_by_what_the_data_has():
    rng = np.random.default_rng(0)
    x = rng.multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 1500)
    skewed = GaussianMixture(1, random_state=0).fit(np.exp(2 * x))
    assert not skewed.scores_.straight.any()
    clusters = x + 8 * (rng.random((1500, 1)) < 0.5)
    assert GaussianMixture(2, random_state=0).fit(clusters).scores_.straight.all()


def test_normal_scores_fit_a_gaussian_copula():
    """Correlation survives monotone maps of the columns."""
    x = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 3000)
    density = GaussianMixture(1, normal_scores=True, random_state=0).fit(np.exp(x))
    np.testing.assert_allclose(density.covariances_[0], [[1, 0.7], [0.7, 1]], atol=0.05)


def test_tied_covariances_are_one():
    density = GaussianMixture(3, covariance="tied", random_state=0).fit(mixed_table())
    np.testing.assert_array_equal(density.covariances_[0], density.covariances_[2])


def test_low_rank_covariances_have_that_rank():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 2)) @ rng.normal(size=(2, 8)) + 0.3 * rng.normal(size=(500, 8))
    density = GaussianMixture(
        1, covariance="low-rank", rank=2, normal_scores=False, strength=0.1, random_state=0
    ).fit(X)
    # A block away from the diagonal is F F' alone.
    size = np.linalg.svd(density.covariances_[0][:4, 4:], compute_uv=False)
    assert size[1] > 0.01 and size[2] < 1e-10
    full = GaussianMixture(1, normal_scores=False, strength=0.1, random_state=0).fit(X)
    assert density.score(X) > full.score(X) - 0.1


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_few_rows_and_many_missing_values_do_not_overfit(rate):
    """Never worse on fresh rows than independent columns."""
    weight, mean, covariance = mixture(1, 10, seed=3)
    X = simulate(weight, mean, covariance, 60, seed=1, rate=rate)
    X[:, np.isnan(X).all(axis=0)] = 0.5
    fresh = simulate(weight, mean, covariance, 500, seed=2, rate=rate)
    density = GaussianMixture(normal_scores=False, random_state=0).fit(X)
    alone = sum(
        np.where(np.isnan(fresh[:, j]), 0, stats.norm.logpdf(fresh[:, j], np.nanmean(X[:, j]),
                 max(np.nanstd(X[:, j]), 0.3)))
        for j in range(10)
    )  # fmt: skip
    assert density.score(fresh) > np.mean(alone) - 0.15


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("n_components", 0), ("n_components", "many"), ("covariance", "diag"), ("rank", 0),
     ("normal_scores", "yes"), ("strength", -1), ("max_iter", 0), ("tol", -1),
     ("validation_fraction", 1.0), ("n_init", 1.5)],
)  # fmt: skip
def test_unusable_parameters_are_refused(parameter, value):
    with pytest.raises(InvalidInput, match=parameter):
        GaussianMixture(**{parameter: value}).fit(np.eye(3))


def test_stopping_early_is_said():
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        GaussianMixture(2, max_iter=2, tol=0, validation_fraction=0).fit(mixed_table())


# ---- regions ------------------------------------------------------------------------------------


def test_bivariate_normal_probabilities():
    rng = np.random.default_rng(0)
    for _ in range(40):
        h, k, rho = rng.normal(0, 1.5), rng.normal(0, 1.5), rng.uniform(-0.99, 0.99)
        want = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]]).cdf([h, k])
        got = below(np.array(h), np.array(k), np.array(rho))
        np.testing.assert_allclose(got, want, atol=1e-6)
    zero = np.zeros(())
    np.testing.assert_allclose(below(zero, zero, zero + 0.5), 1 / 3)
    np.testing.assert_allclose(below(zero, zero + np.inf, zero + 0.5), 0.5)
    np.testing.assert_allclose(below(zero, zero - np.inf, zero + 0.5), 0)


def test_masses_of_boxes():
    mean, covariance = np.array([[0.5, -1.0]]), np.array([[[2.0, 0.9], [0.9, 1.0]]])
    low, high = np.array([-1.0, -2.0]), np.array([0.7, np.inf])
    frozen = stats.multivariate_normal(mean[0], covariance[0])
    want = frozen.cdf([0.7, 50.0], lower_limit=[-1.0, -2.0])
    np.testing.assert_allclose(box_mass(mean, covariance, low, high), [want], atol=1e-6)
    one = box_mass(mean[:, :1], covariance[:, :1, :1], low[:1], high[:1])
    want = np.diff(stats.norm.cdf([-1.0, 0.7], 0.5, np.sqrt(2)))
    np.testing.assert_allclose(one, want, rtol=1e-12)


def test_an_interval_given_the_rest():
    density, weight, mean, covariance = known()
    row = np.array([[0.3, MISSING, -0.2, MISSING]])
    got = density.log_evidence(density.evidence(row), [Within(1, -0.5, 1.0)])[0]
    total = 0.0
    for w, m, s in zip(weight, mean, covariance, strict=True):
        o = [0, 2]
        gain = s[1, o] @ np.linalg.inv(s[np.ix_(o, o)])
        centre = m[1] + gain @ (row[0, o] - m[o])
        sd = np.sqrt(s[1, 1] - gain @ s[o, 1])
        own = stats.multivariate_normal(m[o], s[np.ix_(o, o)]).pdf(row[0, o])
        total += w * own * np.diff(stats.norm.cdf([-0.5, 1.0], centre, sd))[0]
    np.testing.assert_allclose(got, np.log(total), rtol=1e-9)


def test_more_than_two_intervals_are_refused():
    density = GaussianMixture(1, random_state=0).fit(np.random.default_rng(0).normal(size=(50, 3)))
    row = density.evidence(np.full((1, 3), MISSING))
    with pytest.raises(InvalidInput, match=r"more than two intervals .* complete"):
        density.log_evidence(row, [Within(v, -1.0, 1.0) for v in range(3)])
    # Whole lines do not count.
    two = density.log_evidence(row, [Within(0, -1.0, 1.0), Within(1), Within(2, 0.0, np.inf)])
    assert np.isfinite(two).all()


@pytest.mark.parametrize("given", [{}, {"kind": 1.0}, {"number": 2.0, "rain": 0.0}])
def test_marginals_of_normal_scores_are_integrals(given):
    """Between the knots of the map, where the density is smooth."""
    density = GaussianMixture(3, normal_scores=True, random_state=0).fit(mixed_table())
    names = [variable.name for variable in density.variables_]
    row = np.full(4, MISSING)
    for name, value in given.items():
        row[names.index(name)] = value
    values = density.scores_.values[0]
    tails = [
        values[0] - 60 * density.scores_.tail[0, 0],
        values[-1] + 60 * density.scores_.tail[0, 1],
    ]
    knots = np.unique(np.r_[np.linspace(tails[0], values[0], 400), values,
                            np.linspace(values[-1], tails[1], 400)])  # fmt: skip
    nodes, weights = np.polynomial.legendre.leggauss(5)
    width = np.diff(knots)
    x = knots[:-1, None] + width[:, None] * (nodes + 1) / 2
    points = np.tile(row, (x.size, 1))
    points[:, 0] = x.ravel()
    p = np.exp(density.log_evidence(Evidence(points))).reshape(x.shape)
    total = ((p @ weights) * width / 2).sum()
    np.testing.assert_allclose(
        total, np.exp(density.log_evidence(Evidence(row[None])))[0], rtol=1e-6
    )


def test_whole_numbers_never_have_too_much_mass():
    """A lower bound where values repeat: sums over two whole variables stay below the marginal."""
    density = GaussianMixture(4, random_state=0).fit(mixed_table()[["number", "size"]].round())
    grid = np.array(list(itertools.product(range(-5, 60), range(-5, 80))), dtype=float)
    total = np.exp(logsumexp(density.log_evidence(Evidence(grid))))
    assert 0.75 < total <= 1 + 1e-3


# ---- draws --------------------------------------------------------------------------------------


def test_normal_quantiles_of_words():
    """All 32-bit patterns' tails, and the table in between."""
    bits = np.r_[[0, 1, 2**20, 2**24, 2**31, 2**32 - 1, 2**32 - 2, 2**32 - 2**21],
                 np.linspace(3, 2**32 - 4, WORD - 8)].astype(np.uint32)  # fmt: skip
    at = np.arange(8, 4088) / 4096  # the table's own points are exact
    uniform = np.concatenate([(bits + 0.5) / 2**32, at[: len(at) // WORD * WORD]])
    X = np.random.default_rng(0).normal(size=(50, 1))
    density = GaussianMixture(1, normal_scores=False, validation_fraction=0).fit(X)
    density.means_, density.covariances_ = np.zeros((1, 1)), np.ones((1, 1, 1))
    numbers = np.column_stack([np.full(len(uniform), 0.5), uniform])[None]
    location, scale = density.scores_.units()
    found = (density.draw(density.evidence([[MISSING]]), numbers)[0, :, 0] - location) / scale
    expected = stats.norm.ppf(uniform)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    tails = np.minimum(uniform, 1 - uniform) < 8 / 4096
    tails[WORD:] = True
    np.testing.assert_allclose(found[tails], expected[tails], rtol=1e-10, atol=1e-12)


def test_words_of_a_group_are_nets_and_so_are_they_together():
    net = sobol_net(30)
    for words in (1, 2, 8):
        points = SIZE * words
        together = net[:words].transpose(1, 0, 2).reshape(30, points)
        strata = np.sort(together.astype(np.uint64) * np.uint64(points) >> np.uint64(32), axis=1)
        np.testing.assert_array_equal(strata, np.tile(np.arange(points), (30, 1)))
    assert len({tuple(np.sort(row)) for row in together}) == 30  # no coordinate twice


def test_later_words_go_on_with_the_groups_of_the_first():
    density, *_ = known(k=2, d=3)
    evidence = density.evidence(np.full((600, 3), MISSING))
    keys = np.arange(600, dtype=np.uint64)
    both = drawn_by(density, evidence, range(2), keys, seed=5)
    second = drawn_by(density, evidence, range(1, 2), keys, seed=5)
    np.testing.assert_array_equal(both[:, :, WORD:], second)
    assert not np.array_equal(both[:, :, :WORD], second)
    groups = both[:, 1].reshape(600, 2, GROUPS, SIZE).mean(axis=3).swapaxes(0, 1)
    correlation = np.corrcoef(groups.mean(axis=0).T)
    assert np.abs(correlation - np.eye(GROUPS)).max() < 5 / np.sqrt(600)
    # Independent draws would halve the variance.
    assert groups.mean(axis=0).var() < 0.85 * groups.var() / 2
    some = drawn_by(density, evidence[[7, 590]], range(2), keys[[7, 590]], seed=5)
    np.testing.assert_array_equal(some, both[[7, 590]])


def test_rows_without_keys_share_their_points():
    density, *_ = known(k=2, d=3)
    evidence = density.evidence(np.full((3, 3), MISSING))
    draws = drawn_by(density, evidence, range(1))
    np.testing.assert_array_equal(draws[0], draws[2])


def test_keys_are_of_what_rows_say():
    rows = np.array([[0.0, MISSING], [-0.0, -MISSING], [0.0, 1.0], [MISSING, 0.0]])
    keys = row_keys(rows)
    assert keys[0] == keys[1]
    assert len(set(keys.tolist())) == 3
    sets = np.array([[1], [1], [2], [2]], dtype=np.uint64)
    assert len(set(row_keys(rows, sets).tolist())) == 3


def test_draws_have_the_conditional_moments():
    density, *_ = known(k=3, d=5, seed=4)
    row = np.array([[0.4, MISSING, MISSING, -0.3, MISSING]])
    evidence = density.evidence(np.repeat(row, 500, axis=0))
    share, means, covariances = density.conditional(evidence[:1])
    incomplete = [1, 2, 4]
    mean = share[0] @ means[0][:, incomplete]
    second = np.einsum("k,kij->ij", share[0], covariances[0][:, incomplete][:, :, incomplete])
    second += np.einsum("k,ki,kj->ij", share[0], means[0][:, incomplete], means[0][:, incomplete])
    draws = draw_all(density, evidence, 3)[:, incomplete]
    flat = draws.transpose(0, 2, 1).reshape(-1, 3)
    sd = np.sqrt(np.diag(second) - mean**2)
    assert (np.abs(flat.mean(axis=0) - mean) < 5 * sd / np.sqrt(len(flat))).all()
    products = flat[:, :, None] * flat[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(flat))
    assert (np.abs(products.mean(axis=0) - second) < 5 * error).all()
    # Every draw of a word by itself has them, too.
    single = draws.mean(axis=0)
    assert (np.abs(single - mean[:, None]) < 5 * sd[:, None] / np.sqrt(500)).all()
    for k in range(3):
        assert share[0, k] < 0.999


def test_draws_know_that_repeated_values_are_intervals_of_scores():
    """Components are drawn with the shares that log p has: v_j h_j / 2 belongs to both."""
    rng = np.random.default_rng(0)
    wide = rng.random(400) < 0.5
    # Few values in one group, all alike in the other: sharp along the scores of whole numbers.
    number = np.where(wide, rng.integers(0, 6, 400), 2.0)
    X = np.column_stack([number, number + rng.integers(0, 2, 400), rng.normal(3.0 * wide, 1.0)])
    density = GaussianMixture(2, random_state=0).fit(X)
    assert density.scores_.repeats[:2].all()
    rows = density.evidence(
        np.array([[n, m, MISSING] for n in range(6) for m in (n, n + 1)], float)
    )
    _, share = density.responsibilities(rows)
    drawn, _, _ = density.describe_number(rows)
    np.testing.assert_allclose(drawn, share, atol=1e-9)
    flat = density._drawing
    flat.tables = flat.tables._replace(sharpness=np.zeros_like(flat.tables.sharpness))
    assert np.abs(flat.describe_number(rows)[0] - share).max() > 0.02  # it makes a difference


def test_nets_have_less_variance_than_independent_draws():
    density, *_ = known(k=2, d=5, seed=4)
    evidence = density.evidence(np.repeat([[0.4, MISSING, MISSING, -0.3, MISSING]], 400, axis=0))

    above = (draw_all(density, evidence)[:, [1, 2, 4]] > 0).astype(float)
    share = above.mean(axis=(0, 2))
    independent = (share * (1 - share)).mean() / WORD
    assert above.mean(axis=2).var(axis=0).mean() < independent / 1.7


def test_groups_are_independent():
    density, *_ = known(k=2, d=3)
    evidence = density.evidence(np.full((600, 3), MISSING))
    groups = draw_all(density, evidence)[:, 0].reshape(600, GROUPS, SIZE).mean(axis=2)
    correlation = np.corrcoef(groups.T)
    assert np.abs(correlation - np.eye(GROUPS)).max() < 5 / np.sqrt(600)


def test_draws_do_not_depend_on_chunks_or_threads(monkeypatch):
    table = mixed_table(300)
    density = GaussianMixture(3, random_state=0).fit(table)
    evidence = density.evidence(table)
    monkeypatch.setenv("KNOTHOLE_THREADS", "1")
    whole = draw_all(density, evidence, 7)
    monkeypatch.setenv("KNOTHOLE_THREADS", "3")
    np.testing.assert_array_equal(whole, draw_all(density, evidence, 7))
    missing = np.isnan(evidence.points)
    for start in (0, 17, 299):
        key = np.array([start], dtype=np.uint64)
        row = drawn_by(density, evidence[start : start + 1], range(1), key, seed=7)
        np.testing.assert_array_equal(row[0][missing[start]], whole[start][missing[start]])
    assert not np.array_equal(whole, draw_all(density, evidence, 7, word=1))
    assert not np.array_equal(whole, draw_all(density, evidence, 8))
    assert not np.isnan(whole).any()


def test_draws_stay_within_what_was_seen():
    table = mixed_table(400)
    density = GaussianMixture(4, normal_scores=True, random_state=0).fit(table)
    draws = density.complete_points(density.evidence(table), 100, 0)
    for v, name in enumerate(["size", "number", "rain"]):
        assert draws[..., v].min() >= table[name].min() and draws[..., v].max() <= table[name].max()
    number = draws[..., 1]
    np.testing.assert_array_equal(number, np.rint(number))
    zeros = (draws[..., 2] == 0)[np.isnan(table["rain"].to_numpy())].mean()
    assert 0.2 < zeros < 0.6


def test_any_number_of_draws():
    density, *_ = known(k=2, d=3)
    evidence = density.evidence([[0.1, MISSING, MISSING], [MISSING, 0.2, 0.3]])
    for draws in (1, 63, 64, 65):
        out = density.complete_points(evidence, draws, 0)
        assert out.shape == (2, draws, 3)
        assert not np.isnan(out).any()
        np.testing.assert_array_equal(out[0, :, 0], 0.1)


def test_sets_and_unrecorded_values_in_draws():
    """A one-hot group observed in part, and a nullable column: each has its own probabilities."""
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 3, 500)
    X = np.column_stack([np.eye(3)[colour], colour + rng.normal(size=500)])
    X[rng.random(500) < 0.3 * (colour == 2), 3] = MISSING
    plain = Columns.infer(X, one_hot={"colour": [0, 1, 2]})
    columns = plain.with_nullable([False, False, False, True])
    density = GaussianMixture(3, random_state=0).fit(X, columns=columns)
    rows = np.array(
        [[MISSING, MISSING, 0, MISSING], [0, MISSING, MISSING, MISSING], [0, 0, 1, MISSING]]
    )
    evidence = density.evidence(rows, np.isnan(rows))
    draws = density.complete_points(evidence, 6400, 0)
    assert set(np.unique(draws[0, :, 0])) == {0, 1}
    assert set(np.unique(draws[1, :, 0])) == {1, 2}
    for row in range(3):
        points = evidence[row : row + 1]
        none = density.log_evidence(points, [Within(1, np.inf, np.inf, not_recorded=True)])
        p = np.exp(none - density.log_evidence(points))[0]
        assert abs(np.isinf(draws[row, :, 1]).mean() - p) < 4.5 * np.sqrt(p / 6400) + 1e-9


def test_columns_beyond_a_hundred():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3)) @ rng.normal(size=(3, 120)) + 0.5 * rng.normal(size=(150, 120))
    X[rng.random(X.shape) < 0.3] = MISSING
    density = GaussianMixture(2, random_state=0, strength=10.0).fit(X)
    assert np.isfinite(density.score_samples(X)).all()
    assert np.isfinite(density.complete(X[:10], draws=64)).all()
    assert density.log_evidence(Evidence(np.full((1, 120), MISSING)))[0] == pytest.approx(
        0, abs=1e-12
    )


def test_nullable_numbers_alone():
    X = np.where(np.random.default_rng(0).random((200, 1)) < 0.25, MISSING, 1.5)
    density = GaussianMixture(1).fit(X, columns=Columns((Column("x", nullable=True),)))
    np.testing.assert_allclose(
        np.exp(density.score_samples([[MISSING]])), np.isnan(X).mean(), atol=0.02
    )


# ---- what it is for -----------------------------------------------------------------------------

PUBLISHED = {"wine_quality": 0.689, "california_housing": 65_900.0}


@pytest.mark.slow
@pytest.mark.skipif("KNOTHOLE_DATA" not in os.environ, reason="KNOTHOLE_DATA is not set")
@pytest.mark.parametrize("name", PUBLISHED)
def test_expected_predictions_reach_the_prototype(name):
    """XGBoost fixed, 30 % of the entries missing at deployment: RMSE of the mean over draws."""
    xgboost = pytest.importorskip("xgboost")
    path = os.path.join(os.environ["KNOTHOLE_DATA"], "suite", f"{name}.csv")
    table = pd.read_csv(path).dropna()
    y = table.pop("target").to_numpy()
    for column in table.columns:
        if table[column].dtype.kind not in "fi":
            table[column] = pd.Categorical(table[column]).codes.astype(float)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(table))
    train, test = order[: int(0.7 * len(order))], order[int(0.7 * len(order)) :][:2000]
    X = table.to_numpy(dtype=float)
    model = xgboost.XGBRegressor(n_estimators=200, max_depth=6, learning_rate=0.1, n_jobs=1)
    model.fit(X[train], y[train])
    density = GaussianMixture(24, random_state=0).fit(X[train])
    incomplete = np.where(rng.random((len(test), X.shape[1])) < 0.3, MISSING, X[test])
    draws = density.complete(incomplete, draws=64)
    predicted = model.predict(draws.reshape(-1, X.shape[1])).reshape(len(test), 64).mean(axis=1)
    assert np.sqrt(np.mean((predicted - y[test]) ** 2)) < 1.02 * PUBLISHED[name]


@pytest.mark.parametrize("normal_scores", [True, False])
@pytest.mark.parametrize("far", [1e100, 1e160, 1e308, -1e308])
def test_far_values_have_finite_scores_and_draws(normal_scores, far):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    X[:, 1] += X[:, 0]
    density = GaussianMixture(2, normal_scores=normal_scores, random_state=0).fit(X)
    row = np.array([[far, np.nan]])
    assert np.isfinite(density.score(row)) and density.score(row) < -1e100
    draws = density.complete(row, draws=64)[0, :, 1]
    assert np.isfinite(draws).all() and (np.sign(draws) == np.sign(far)).all()


# ---- the same from any seed ---------------------------------------------------------------------


def from_six_seeds(X, size, **how):
    """Log p per row that is reached, less the best of it."""
    reached = [GaussianMixture(size, random_state=s, **how).fit(X).score(X) for s in range(6)]
    return np.array(reached) - max(reached)


@pytest.mark.parametrize("how", [{}, {"normal_scores": True}, {"validation_fraction": 0}])
@pytest.mark.parametrize(("rows", "columns"), [(600, 2), (4000, 2), (4000, 3)])
def test_two_clusters_and_a_whole_number_are_found_from_any_seed(rows, columns, how):
    """From random rows some seeds stopped 0.36 short, on a plateau or in another maximum."""
    rng = np.random.default_rng(1)
    cluster = rng.integers(0, 2, rows)
    X = pd.DataFrame(rng.normal(size=(rows, columns)) + 8 * cluster[:, None])
    X["number"] = rng.poisson(2 + 3 * cluster)
    assert from_six_seeds(X.rename(columns=str), 2, **how).min() > -0.02


@pytest.mark.slow
@pytest.mark.skipif("KNOTHOLE_DATA" not in os.environ, reason="KNOTHOLE_DATA is not set")
@pytest.mark.parametrize("size", [2, 8])
@pytest.mark.parametrize(
    "name",
    [
        "concrete",
        "energy_heating",
        "abalone",
        "california_housing",
        "bike_sharing_hour",
        "kin8nm",
        "wine_quality",
    ],
)
def test_real_tables_are_learned_alike_from_any_seed(name, size):
    """With the prior and the reading of columns given, so that nothing but training differs.

    All rows grow the components here. Of longer tables only some do, other ones with each seed:
    of 14,000 rows of bike sharing eight components reach up to 0.27 less.
    """
    table = pd.read_csv(os.path.join(os.environ["KNOTHOLE_DATA"], "suite", f"{name}.csv"))
    train = np.random.default_rng(0).permutation(len(table))[: min(6000, 7 * len(table) // 10)]
    X = table.drop(columns="target").iloc[train]
    gaps = from_six_seeds(X, size, normal_scores=True, strength=1.0, validation_fraction=0)
    assert gaps.min() > -0.02


@pytest.mark.parametrize(
    ("rows", "numeric", "sizes"),
    [
        (2625, 18, [16]),
        (2625, 30, [4]),
        (990, 18, [1, 2, 4]),
        (1500, 500, [1]),
        (24, 2, [1, 2, 4]),
        (4, 0, [1]),
    ],
)
def test_sizes_have_rows_for_their_parameters(rows, numeric, sizes):
    class Rows:
        def __len__(self):
            return rows

        def affordable(self, sizes):
            return sizes

    assert sizes_for(Rows(), numeric) == sizes


def test_of_many_variables_those_with_two_hills_are_cut(monkeypatch):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 6))
    z[:, 4] = rng.choice([-2.0, 2.0], size=400) + 0.3 * rng.normal(size=400)
    nothing = np.zeros_like(z)
    rows = ScoreRows(z, nothing, np.zeros(400), np.zeros(6, dtype=bool), None, np.ones(400))
    one = GaussianComponents(np.ones(1), z.mean(axis=0)[None], np.cov(z.T)[None])
    prior = Prior.of(rows, 1.0)
    best_gain, best = best_cut(rows, np.ones(400), one, prior)
    monkeypatch.setattr("knothole.densities.gaussian.splits.MOST_VARIABLES", 1)
    gain, pair = best_cut(rows, np.ones(400), one, prior)
    assert gain == best_gain > 0
    np.testing.assert_array_equal(pair.mean, best.mean)
    assert np.abs(pair.mean[:, 4]).min() > 1.5


def test_many_rows_are_learned_from_in_little_memory():
    X = np.random.default_rng(0).normal(size=(150_000, 16))
    columns = Columns.infer(X)
    density = GaussianMixture(2, strength=1.0, normal_scores=True, random_state=0)
    density.fit_matrix(X[:500], columns)  # what compiling needs does not count
    tracemalloc.start()
    density.fit_matrix(X, columns)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * X.nbytes


def test_the_component_that_gains_most_is_split(monkeypatch):
    """Three components from two: the gains of the pairs decide."""
    two = GaussianComponents(np.array([0.5, 0.5]), np.array([[0.0], [5.0]]), np.ones((2, 1, 1)))
    gains = {0.0: 1.0, 5.0: 3.0}
    monkeypatch.setattr(GaussianComponents, "responsibilities", lambda *_: np.ones((4, 2)))
    monkeypatch.setattr(
        splitting, "best_cut", lambda _, share, one, how: (gains[one.mean[0, 0]], one.take([0, 0]))
    )
    for larger in (5.0, 0.0):
        found = splitting.grown(None, two, 3, None)
        assert sorted(found.mean[:, 0]) == sorted([0.0, 5.0, larger])
        gains[0.0] = 9.0


@pytest.mark.parametrize("normal_scores", [False, True])
def test_cuts_have_the_mass_of_draws_below_them(normal_scores):
    """The slow twin decodes normals: draws by rank stay among seen values, thresholds need not."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.lognormal(size=300), np.round(3 * rng.normal(size=300))])
    density = GaussianMixture(2, normal_scores=normal_scores, random_state=0).fit(X)
    z = stats.norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    drawn = density.scores_.decode(np.column_stack([z, z]))
    for v, x in enumerate(X.T):
        thresholds = np.array([x.min() - 0.7, x.min(), 0.4, np.median(x), x.max(), x.max() + 0.3])
        share = (drawn[:, v, None] < thresholds).mean(axis=0)
        found = stats.norm.cdf(density.threshold_scores(v, thresholds))
        np.testing.assert_allclose(found, share, atol=2e-5)
        assert (share[[0, -1]] == [0, 1]).all() == normal_scores


def test_draws_are_the_same_however_often_rows_are_drawn():
    X = np.random.default_rng(0).normal(1e6, 1e3, size=(200, 3))
    density = GaussianMixture(1, random_state=0).fit(X)
    evidence = Evidence(np.full((5, 3), np.nan))
    draws = [drawn_by(density, evidence, range(1)) for _ in range(3)]
    np.testing.assert_array_equal(draws[0], draws[2])

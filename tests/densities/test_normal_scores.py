"""Maps of columns to normal scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from knothole.densities.gaussian.normal_scores import GRID, NormalScores
from knothole.densities.normal import truncated_moments


def fit(x, whole=False, points=(), empirical=True, weight=None):
    x = np.asarray(x, dtype=float).reshape(-1, 1)
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, dtype=float)
    flags = np.array([whole]), np.array([empirical])
    return NormalScores.fit(x.T, weight, flags[0], [np.asarray(points, dtype=float)], flags[1])


def column(values):
    return np.asarray(values, dtype=float).reshape(-1, 1)


rng = np.random.default_rng(0)
COLUMNS = {
    "skewed": {"x": rng.lognormal(size=400)},
    "heavy tails": {"x": rng.standard_t(2, size=400)},
    "rounded": {"x": np.round(rng.normal(size=400), 1)},
    "many zeros": {"x": np.where(rng.random(400) < 0.6, 0, rng.exponential(size=400)),
                   "points": [0.0]},
    "counts": {"x": rng.poisson(3, 400), "whole": True},
    "binary": {"x": rng.random(400) < 0.1, "whole": True},
    "wide whole numbers": {"x": np.round(1e4 * rng.lognormal(size=400)), "whole": True},
    "constant": {"x": np.full(30, 7.0), "whole": True},
    "constant, continuous": {"x": np.full(30, 7.5), "points": [7.5]},
    "one value": {"x": [2.5]},
    "two values": {"x": [2.5, -1.5]},
    "large": {"x": 1e150 * rng.normal(size=50)},
    "small": {"x": 1e-9 * rng.normal(size=50)},
    "standardised": {"x": rng.lognormal(size=400), "empirical": False},
    "standardised whole": {"x": rng.poisson(3, 400), "whole": True, "empirical": False},
}  # fmt: skip
every = pytest.mark.parametrize("name", COLUMNS)


@every
def test_values_come_back(name):
    """Observed values survive the way to scores and back; order is kept."""
    scores, x = fit(**COLUMNS[name]), column(COLUMNS[name]["x"])
    z, variance, base = scores.encode(x)
    assert np.isfinite(z).all() and np.isfinite(base).all() and (variance >= 0).all()
    np.testing.assert_allclose(scores.decode(z), x, rtol=1e-9, atol=1e-12 * np.abs(x).max())
    order = np.argsort(x[:, 0], kind="stable")
    assert (np.diff(z[order, 0]) >= 0).all()
    assert (np.diff(scores.values) >= 0).all()


@every
def test_total_mass_is_one(name):
    """Of z standard normal: flats, where the bound is exact, and lines between the knots."""
    scores = fit(**COLUMNS[name])
    values, tail = scores.values[0], scores.tail[0]
    if scores.whole[0]:
        # Draws are whole numbers: each stands for the scores that are rounded to it.
        middle = np.unique(np.rint(values))
        ends = np.array([scores.position(0, x) for x in (middle[0], *middle[1:], middle[-1] + 1)])
        total = np.diff(stats.norm.cdf(ends)).sum()
        outside = stats.norm.cdf(ends[0]) + stats.norm.sf(ends[-1])
        np.testing.assert_allclose(total + outside, 1, rtol=1e-12)
        return
    step, mass = np.diff(values), 0.0
    for i in np.flatnonzero(step > 0):
        nodes, weights = np.polynomial.legendre.leggauss(4)
        x = values[i] + step[i] * (nodes + 1) / 2
        z, variance, base = scores.encode(column(x))
        assert not variance.any()
        mass += (np.exp(stats.norm.logpdf(z) + base)[:, 0] * weights).sum() * step[i] / 2
    for i in np.flatnonzero(scores.flat[0, :, 1] > 0):
        z, variance, base = scores.encode(column([values[i]]))
        bound = -0.5 * np.log(2 * np.pi) - 0.5 * (z**2 + variance) + base
        mass += float(np.exp(bound)[0, 0])
    assert (tail > 0).all()
    np.testing.assert_allclose(mass + 2 * stats.norm.sf(GRID[-1]), 1, rtol=1e-6)


def test_continuous_columns_become_normal():
    z, variance, _ = fit(COLUMNS["skewed"]["x"]).encode(column(COLUMNS["skewed"]["x"]))
    assert not variance.any()
    assert stats.kstest(z[:, 0], "norm").statistic < 0.02


def test_repeated_values_have_their_mid_rank():
    """A quarter of zeros: the mean and the variance of the normal below its lower quartile."""
    x = np.r_[np.zeros(100), np.arange(1, 301) / 7]
    z, variance, _ = fit(x, points=[0.0]).encode(column([0.0]))
    low = stats.truncnorm(-4, stats.norm.ppf(0.25))
    np.testing.assert_allclose(z, low.mean(), atol=0.02)
    np.testing.assert_allclose(variance, low.var(), atol=0.02)


@pytest.mark.parametrize("name", ["counts", "binary", "many zeros"])
def test_draws_have_the_frequencies(name):
    scores, x = fit(**COLUMNS[name]), np.asarray(COLUMNS[name]["x"], dtype=float)
    draws = scores.decode(stats.norm.ppf((np.arange(20_000) + 0.5) / 20_000)[:, None])[:, 0]
    for value in np.unique(x)[:5]:
        assert abs((draws == value).mean() - (x == value).mean()) < 0.008
    assert draws.min() == x.min() and draws.max() == x.max()


@settings(deadline=None, max_examples=200)
@given(st.floats(-4, 3.9), st.floats(0.02, 8), st.floats(-5, 5), st.floats(0.05, 5))
def test_the_bound_is_a_bound(low, width, mean, sd):
    """E_w[log q] + entropy of w is at most the log mass of the interval, for any normal q."""
    high = min(low + width, 4.0)
    first, variance, entropy = truncated_moments(low, high)
    bound = stats.norm.logpdf(first, mean, sd) - 0.5 * variance / sd**2 + entropy
    q = stats.norm(mean, sd)
    mass = q.cdf(high) - q.cdf(low) if low < mean else q.sf(low) - q.sf(high)
    assert bound <= np.log(mass) + 1e-7 if mass > 1e-200 else True


def test_truncated_moments():
    for low, high in ((-4, 4), (-4, -1.5), (0.2, 0.25), (3.5, 4)):
        frozen = stats.truncnorm(low, high)
        expected = frozen.mean(), frozen.var(), frozen.entropy()
        np.testing.assert_allclose(truncated_moments(low, high), expected, rtol=1e-6, atol=1e-9)


def test_positions_separate():
    """P(X < x) = P(Z < position): a flat is not below its own value."""
    scores = fit(**COLUMNS["many zeros"])
    at, above = scores.position(0, 0.0), scores.position(0, 1e-12)
    share = (COLUMNS["many zeros"]["x"] == 0).mean()
    assert stats.norm.cdf(at) < 1e-4
    np.testing.assert_allclose(stats.norm.cdf(above), share, atol=0.008)
    counts = fit(**COLUMNS["counts"])
    assert counts.position(0, 2.5) == counts.position(0, 3.0)
    np.testing.assert_allclose(
        stats.norm.cdf(counts.position(0, 3)), (COLUMNS["counts"]["x"] < 3).mean(), atol=0.008
    )
    assert scores.position(0, np.inf) == np.inf


def test_weights_count_as_rows():
    x, times = np.array([0.5, 1.5, 2.0, 7.0] * 30), np.tile([1, 3, 2, 1], 30)
    weighted = fit(x, points=x[:4], weight=times)
    repeated = fit(np.repeat(x, times), points=x[:4])
    np.testing.assert_allclose(weighted.values, repeated.values, rtol=0.02)
    with_zero = fit(np.r_[x, 1e6], points=x[:4], weight=np.r_[times, 0])
    np.testing.assert_array_equal(with_zero.values, weighted.values)


@every
def test_values_never_seen(name):
    """Beyond the range scores go on, with a positive density, and draws stay within it."""
    scores, x = fit(**COLUMNS[name]), np.asarray(COLUMNS[name]["x"], dtype=float)
    unit = np.abs(x).max() + 1
    z, _, base = scores.encode(column([x.min() - unit, x.max() + unit]))
    assert np.isfinite(z).all() and np.isfinite(base).all()
    seen = scores.encode(column(x))[0]
    assert z[0] < seen.min() and z[1] > seen.max()
    if not scores.straight[0]:
        assert (scores.decode(z) == column([x.min(), x.max()])).all()
    z, variance, base = scores.encode(column([np.nan, np.inf]))
    assert np.isnan(z).all() and not variance.any() and not base.any()


def test_standardised_columns_are_straight():
    x = COLUMNS["standardised"]["x"]
    scores = fit(x, empirical=False)
    z, _, base = scores.encode(column(x))
    np.testing.assert_allclose(z[:, 0], (x - x.mean()) / x.std(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(base, -np.log(x.std()))
    location, scale = scores.units()
    np.testing.assert_allclose([location[0], scale[0]], [x.mean(), x.std()])
    far = column([-9.0, 9.0])
    np.testing.assert_allclose(scores.decode(far), x.mean() + far * x.std())


def test_storage():
    scores = fit(**COLUMNS["counts"])
    again = NormalScores.from_arrays(scores.arrays())
    np.testing.assert_array_equal(again.encode(column([3.0]))[0], scores.encode(column([3.0]))[0])

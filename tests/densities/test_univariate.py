"""The contract of distribution families: every family in ``FAMILIES``, on columns of many kinds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from knothole.columns.columns import NOT_RECORDED, Evidence, Kind, Variable
from knothole.densities.em import WeightedRows
from knothole.densities.mixture.density import continuous_families
from knothole.densities.univariate.base import Statistics, maximised
from knothole.densities.univariate.continuous import Gaussian
from knothole.densities.univariate.families import (
    FAMILIES,
    choose,
    prefers_histogram,
    start_distribution,
    with_continuous,
)
from knothole.errors import DamagedFile, InvalidInput

MISSING = np.nan
STATES = 3
rng = np.random.default_rng(0)

CONTINUOUS = Variable("x")
INTEGER = Variable("n", Kind.INTEGER)
COLOUR = Variable("colour", Kind.CATEGORICAL, ("red", "green", "blue", "never seen"))
NULLABLE = Variable("x", nullable=True)


def with_missing(x):
    x = np.array(x, dtype=np.float64)
    x[rng.random(len(x)) < 0.2] = MISSING
    return x


COLUMNS = {
    "gaussian": (CONTINUOUS, with_missing(rng.normal(3, 2, 200))),
    "histogram": (CONTINUOUS, with_missing(rng.exponential(2, 500))),
    "categorical": (COLOUR, with_missing(rng.choice(3, 200))),
    "integer": (INTEGER, with_missing(rng.integers(-3, 9, 200))),
    "poisson": (INTEGER, with_missing(rng.poisson(4, 200))),
    "negative_binomial": (INTEGER, with_missing(rng.negative_binomial(2, 0.2, 200))),
    "atoms": (NULLABLE, np.append(np.repeat([0.0, NOT_RECORDED], 60), rng.normal(2, 1, 100))),
    "integer, wide": (INTEGER, with_missing(np.rint(rng.normal(500, 200, 800)))),
    "integer, nullable": (
        Variable("n", Kind.INTEGER, nullable=True),
        np.append(rng.integers(0, 5, 90), np.repeat(NOT_RECORDED, 10)),
    ),
    "histogram, nullable": (
        NULLABLE,
        np.append(rng.exponential(1, 400), np.repeat(NOT_RECORDED, 50)),
    ),
}
DISCRETE = {"categorical", "integer", "poisson", "negative_binomial"}


def family_of(name):
    return name.split(",")[0]


def distribution_of(name, seed=1, strength=0.7):
    """A distribution whose states differ: one step from random responsibilities."""
    variable, x = COLUMNS[name]
    distribution = start_distribution(variable, x, np.ones(len(x)), STATES, family_of(name))
    share = np.random.default_rng(seed).dirichlet(np.full(STATES, 0.3), len(x))
    return distribution.maximise(statistics_of(distribution, x, share), strength)


def statistics_of(distribution, x, share):
    encoded = distribution.encode(x)
    count = np.zeros((distribution.n_codes, share.shape[1]))
    seen = encoded.code >= 0
    np.add.at(count, encoded.code[seen], share[seen])
    return Statistics(count, encoded.z[seen] @ share[seen], encoded.z[seen] ** 2 @ share[seen])


def mass(distribution, low, high, not_recorded=False):
    return distribution.mass(
        np.array([float(low)]), np.array([float(high)]), np.array([not_recorded])
    )[0]


def density(distribution, x):
    return np.exp(distribution.log_density(np.atleast_1d(np.asarray(x, dtype=np.float64))))


every = pytest.mark.parametrize("name", COLUMNS)


def test_every_family_has_a_column():
    assert {family_of(name) for name in COLUMNS} == set(FAMILIES)


@every
def test_total_mass_is_one(name):
    distribution = distribution_of(name)
    np.testing.assert_allclose(mass(distribution, -np.inf, np.inf, True), 1, atol=1e-12)


@every
def test_log_density_integrates_to_the_mass(name):
    """Quadrature or enumeration of the log density against the mass of intervals."""
    distribution = distribution_of(name)
    variable, x = COLUMNS[name]
    seen = x[np.isfinite(x)]
    low, high = np.floor(seen.min()) - 2, np.ceil(seen.max()) + 3
    if variable.kind is Kind.CATEGORICAL:
        low, high = 0, len(variable.levels)
    if variable.kind is not Kind.CONTINUOUS:
        for stop in (high, np.ceil((low + high) / 2)):
            total = density(distribution, np.arange(low, stop)).sum(axis=0)
            np.testing.assert_allclose(total, mass(distribution, low, stop), rtol=1e-10)
        return
    points = getattr(distribution, "points", np.empty(0))
    breaks = getattr(getattr(distribution, "rest", distribution), "edges", np.empty(0))
    for stop in (high, (low + high) / 2.1):
        inside = points[(points >= low) & (points < stop)]
        ends = np.unique(np.concatenate([[low, stop], breaks[(breaks > low) & (breaks < stop)]]))
        for state in range(STATES):
            total = density(distribution, inside)[:, state].sum()
            for a, b in itertools.pairwise(ends):
                f = lambda t: density(distribution, np.nextafter(t, np.inf))[0, state]  # noqa: B023, E731
                total += integrate.quad(f, a, b, limit=100)[0]
            np.testing.assert_allclose(total, mass(distribution, low, stop)[state], rtol=1e-6)


@every
@settings(max_examples=40, deadline=None)
@given(thresholds=st.lists(st.floats(-20, 2000), min_size=1, max_size=4), recorded=st.booleans())
def test_complementary_regions_add_up(name, thresholds, recorded):
    distribution = distribution_of(name)
    ends = np.array([-np.inf, *sorted(thresholds), np.inf])
    flags = np.zeros(len(ends) - 1, dtype=np.bool_)
    parts = distribution.mass(ends[:-1], ends[1:], flags)
    assert (parts >= 0).all()
    unrecorded = mass(distribution, 0, 0, True)
    np.testing.assert_allclose(parts.sum(axis=0) + unrecorded, 1, atol=1e-12)
    np.testing.assert_allclose(
        mass(distribution, ends[0], ends[1], recorded), parts[0] + recorded * unrecorded, atol=1e-12
    )


@every
def test_missing_values_score_zero(name):
    distribution = distribution_of(name)
    assert (distribution.log_density(np.full(3, MISSING)) == 0).all()


@every
@pytest.mark.parametrize("value", [-1e6, -7.0, 1e6])
def test_no_number_is_impossible(name, value):
    variable, _ = COLUMNS[name]
    if variable.kind is not Kind.CATEGORICAL:
        assert np.isfinite(distribution_of(name).log_density(np.array([value]))).all()


@every
def test_samples_match_masses(name):
    distribution = distribution_of(name)
    variable, x = COLUMNS[name]
    n = 20_000
    threshold = np.nanmedian(x[~np.isinf(x)])
    for state in range(STATES):
        draws = distribution.sample(np.full(n, state), np.random.default_rng(state))
        regions = [
            (draws < threshold, mass(distribution, -np.inf, threshold)),
            (draws == np.inf, mass(distribution, 0, 0, True)),
        ]
        if variable.kind is not Kind.CONTINUOUS or hasattr(distribution, "points"):
            value = x[np.isfinite(x)][0]
            regions.append((draws == value, mass(distribution, value, np.nextafter(value, np.inf))))
        for hit, probability in regions:
            p = probability[state]
            z = (hit.mean() - p) / np.sqrt(p * (1 - p) / n + 1e-12)
            assert abs(z) < 4.5


@every
@pytest.mark.parametrize("strength", [0.0, 0.5, 20.0])
def test_maximise_maximises(name, strength):
    """No random other parameters have a better expected log density plus log prior."""
    _, x = COLUMNS[name]
    share = np.random.default_rng(3).dirichlet(np.full(STATES, 0.5), len(x))
    best = distribution_of(name)
    best = best.maximise(statistics_of(best, x, share), strength)

    def objective(distribution):
        return np.sum(share * distribution.log_density(x)) + distribution.log_prior(strength)

    for seed in range(8):
        noise = np.random.default_rng(seed).uniform(0.9, 1.1, share.shape)
        other = best.maximise(statistics_of(best, x, share * noise), strength)
        assert objective(other) <= objective(best) + 1e-9


@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_all_at_once_are_as_each_alone(strength):
    """Of all families, with two numbers of states, as a circuit has them."""
    distributions, statistics = [], []
    for number, name in enumerate([*COLUMNS, *COLUMNS]):
        _, x = COLUMNS[name]
        states = np.arange(STATES if number < len(COLUMNS) else 2)
        distributions.append(distribution_of(name, seed=number).take(states))
        share = np.random.default_rng(number).dirichlet(np.full(len(states), 0.3), len(x))
        share[:, -1] = 0.0  # a state without rows
        statistics.append(statistics_of(distributions[-1], x, share))
    together = maximised(distributions, statistics, strength)
    for distribution, own, found in zip(distributions, statistics, together, strict=True):
        alone = distribution.maximise(own, strength)
        assert type(found) is type(alone)
        for name, array in alone.arrays().items():
            np.testing.assert_array_equal(found.arrays()[name], array)


def test_a_table_follows_its_formula():
    """(count + strength marginal + an even part of a row) / their sum; the marginal without any."""
    distribution = distribution_of("categorical")
    count = np.array([[3.0, 0.0], [1.0, 0.0], [0.0, 0.0], [2.0, 0.0]])
    nothing = np.zeros(2)
    found = distribution.take(np.arange(2)).maximise(Statistics(count, nothing, nothing), 2.0)
    rows = count + 2.0 * distribution.marginal[:, None] + 1.0 / count.size
    np.testing.assert_allclose(np.exp(found.table), rows / rows.sum(axis=0), rtol=1e-12)
    without = distribution.take(np.arange(2)).maximise(Statistics(0 * count, nothing, nothing), 0.0)
    even = distribution.marginal[:, None] + np.full(count.shape, 1 / count.size)
    np.testing.assert_allclose(np.exp(without.table), even / even.sum(axis=0), rtol=1e-12)


@every
def test_the_prior_pulls_towards_the_marginal(name):
    variable, x = COLUMNS[name]
    marginal = start_distribution(variable, x, np.ones(len(x)), STATES, family_of(name))
    pulled = distribution_of(name, strength=1e9)
    np.testing.assert_allclose(pulled.log_density(x), marginal.log_density(x), atol=1e-4)


@every
def test_states_without_rows(name):
    distribution = distribution_of(name)
    empty = Statistics(np.zeros((distribution.n_codes, STATES)), np.zeros(STATES), np.zeros(STATES))
    for strength in (0.0, 1.0):
        again = distribution.maximise(empty, strength)
        np.testing.assert_allclose(mass(again, -np.inf, np.inf, True), 1, atol=1e-12)
        assert np.isfinite(again.log_prior(strength))


@every
def test_take_and_storage(name):
    distribution = distribution_of(name)
    _, x = COLUMNS[name]
    taken = distribution.take(np.array([2, 0, 0]))
    np.testing.assert_array_equal(taken.log_density(x), distribution.log_density(x)[:, [2, 0, 0]])
    again = type(distribution).from_arrays(
        {k: np.array(v) for k, v in distribution.arrays().items()}
    )
    np.testing.assert_array_equal(again.log_density(x), distribution.log_density(x))
    assert again.n_states == STATES and again.n_codes == distribution.n_codes


@every
def test_scale_of_the_column(name):
    """A column in other units has the same masses, and densities in those units."""
    variable, x = COLUMNS[name]
    if variable.kind is not Kind.CONTINUOUS:
        return
    ones = np.ones(len(x))
    plain = start_distribution(variable, x, ones, 1, family_of(name))
    for unit in (1e-9, 1e6):
        scaled = start_distribution(variable, x * unit, ones, 1, family_of(name))
        thresholds = np.array([0.5, 2.0, 7.0])
        flags = np.zeros(3, dtype=np.bool_)
        np.testing.assert_allclose(
            scaled.mass(thresholds[[0, 0, 1]] * unit, thresholds * unit, flags),
            plain.mass(thresholds[[0, 0, 1]], thresholds, flags),
            atol=1e-9,
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "values", [[], [MISSING, MISSING], [2.0], [2.0] * 50, [2.0, 2.0, MISSING, 3.0]]
)
def test_degenerate_columns(family, values):
    kind = {"categorical": COLOUR, "gaussian": CONTINUOUS, "histogram": CONTINUOUS}
    variable = kind.get(family, CONTINUOUS if family == "atoms" else INTEGER)
    x = np.array(values, dtype=np.float64)
    distribution = start_distribution(variable, x, np.ones(len(x)), 2, family)
    np.testing.assert_allclose(mass(distribution, -np.inf, np.inf), 1, atol=1e-12)
    assert np.isfinite(distribution.log_density(x)).all()
    distribution = distribution.maximise(
        statistics_of(distribution, x, np.full((len(x), 2), 0.5)), 0.1
    )
    np.testing.assert_allclose(mass(distribution, -np.inf, np.inf), 1, atol=1e-12)
    assert np.isfinite(distribution.log_density(x)).all()


def test_normal_draws_are_quantiles():
    """In the middle, in both tails, and where no number should be: finite, too."""
    uniform = np.concatenate([np.linspace(0, 1, 4001)[1:-1], 10.0 ** -np.arange(3.0, 300), [0.0]])
    uniform = np.concatenate([uniform, 1 - uniform[:4100:7], [0.075, 0.925]])
    distribution = Gaussian(2.0, 3.0, np.array([0.5, -1.0]), np.array([1.0, 4.0]))
    state = np.arange(len(uniform)) % 2
    normal = np.where(state, stats.norm(-1.0, 6.0).ppf(uniform), stats.norm(3.5, 3.0).ppf(uniform))
    found, inside = distribution.invert(state, uniform), np.isfinite(normal)
    assert np.isfinite(found).all() and not inside.all()
    np.testing.assert_allclose(found[inside], normal[inside], rtol=1e-13, atol=1e-13)


def test_gaussian_against_scipy():
    distribution = distribution_of("gaussian")
    x = np.linspace(-9, 12, 40)
    loc = distribution.location + distribution.scale * distribution.mean
    truth = stats.norm(loc, distribution.scale * np.sqrt(distribution.variance))
    np.testing.assert_allclose(distribution.log_density(x), truth.logpdf(x[:, None]), rtol=1e-10)
    # Far out in the upper tail, where 1 - F is rounded to nothing.
    far = np.array([loc.max() + 12 * distribution.scale])
    tail = distribution.mass(far, np.array([np.inf]), np.array([False]))[0]
    np.testing.assert_allclose(tail, truth.sf(far), rtol=1e-9)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_counts_against_scipy(name):
    distribution = distribution_of(name)
    x = np.arange(60.0)
    if name == "poisson":
        truth = stats.poisson(distribution.mean)
    else:
        truth = stats.nbinom(
            distribution.size, distribution.size / (distribution.size + distribution.mean)
        )
    expected = truth.logpmf(x[:, None]) + distribution.table[0]
    np.testing.assert_allclose(distribution.log_density(x), expected, rtol=1e-9)
    np.testing.assert_allclose(
        mass(distribution, 7, np.inf), truth.sf(6) * np.exp(distribution.table[0])
    )


@pytest.mark.parametrize("n_states", [1, 5])
def test_a_level_never_seen_keeps_its_part_of_a_row(n_states):
    """A row in all is spread over levels and states, however often EM has taken a step.

    Of the marginal alone it would have that part of a row, of that part.
    """
    x = np.repeat([0.0, 1.0, 2.0], [50, 30, 20])
    distribution = start_distribution(COLOUR, x, np.ones(100), n_states)
    count = np.tile([[50.0], [30.0], [20.0], [0.0]], n_states) / n_states
    nothing = np.zeros(n_states)
    for _ in range(3):
        distribution = distribution.maximise(Statistics(count, nothing, nothing), 1.0)
    p = np.exp(distribution.form.table)
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(p[3], 1 / 4 / 100, rtol=0.1)


def test_sets_of_levels():
    distribution = distribution_of("categorical")
    allowed = np.array([[True, True, True, True], [True, False, True, False]])
    masses = distribution.set_mass(allowed)
    np.testing.assert_allclose(masses[0], 1)
    np.testing.assert_allclose(masses[1], density(distribution, [0, 2]).sum(axis=0))


def chosen(variable, values):
    return choose(variable, np.array(values, dtype=np.float64)).family


def test_choice():
    draws = np.random.default_rng(5)
    normal = draws.normal(size=300)
    assert chosen(COLOUR, [0, 1, 2]) == "categorical"
    assert chosen(CONTINUOUS, normal) == "gaussian"
    assert chosen(NULLABLE, normal) == "atoms"
    assert chosen(CONTINUOUS, np.append(normal, np.zeros(60))) == "atoms"
    assert chosen(CONTINUOUS, np.repeat([0.5, 1.5, 2.5], 40)) == "atoms"
    assert chosen(INTEGER, draws.integers(0, 9, 100)) == "integer"


def test_repeated_values_become_points():
    x = np.append(np.random.default_rng(5).normal(2, 1, 300), np.zeros(100))
    distribution = start_distribution(CONTINUOUS, x, np.ones(len(x)), 1)
    assert distribution.points.tolist() == [0.0]
    np.testing.assert_allclose(density(distribution, [0.0]), 0.25, atol=0.01)


def test_another_family_beside_the_points():
    x = np.append(np.random.default_rng(5).exponential(2, 300), np.zeros(100))
    assert with_continuous("histogram", CONTINUOUS, x) == "atoms+histogram"
    assert with_continuous("histogram", CONTINUOUS, x[:300]) == "histogram"
    rows = WeightedRows(
        (CONTINUOUS, INTEGER), Evidence(np.column_stack([x, x])), np.ones(len(x)), np.arange(len(x))
    )
    assert continuous_families(rows, "histogram") == {CONTINUOUS.name: "atoms+histogram"}
    distribution = start_distribution(CONTINUOUS, x, np.ones(len(x)), 1, "atoms+histogram")
    assert distribution.points.tolist() == [0.0] and distribution.rest.family == "histogram"
    nullable = start_distribution(NULLABLE, x, np.ones(len(x)), 1, "histogram")
    assert nullable.points.tolist() == [NOT_RECORDED] and nullable.rest.family == "histogram"


def test_shapes_that_a_gaussian_misses():
    draws = np.random.default_rng(5)
    assert not prefers_histogram(draws.normal(size=1000))
    assert prefers_histogram(draws.exponential(size=1000))
    assert not prefers_histogram(np.full(10, 2.0))


def test_flat_columns_have_bins_nevertheless():
    """With one bin a column could not differ between states."""
    x = np.random.default_rng(0).random(2000)
    distribution = start_distribution(CONTINUOUS, x, np.ones(2000), 1, "histogram")
    assert distribution.n_codes - 2 >= 16


def test_families_that_do_not_fit_the_variable_are_refused():
    x, weight = np.zeros(5), np.ones(5)
    with pytest.raises(InvalidInput, match="no family"):
        start_distribution(CONTINUOUS, x, weight, 1, "gamma")
    with pytest.raises(InvalidInput, match="must be 'categorical'"):
        start_distribution(COLOUR, x, weight, 1, "gaussian")
    with pytest.raises(InvalidInput, match="cannot be 'categorical'"):
        start_distribution(CONTINUOUS, x, weight, 1, "categorical")


def test_tails_of_a_histogram_have_the_scales_of_their_own_ends():
    """Exponentials, each as wide as the bin beside it; narrow at 0, wide at the other end."""
    x = COLUMNS["histogram"][1]
    distribution = start_distribution(CONTINUOUS, x, np.ones(len(x)), 1, "histogram")
    edges, width = distribution.edges, np.diff(distribution.edges)
    assert width[-1] > 2 * width[0]
    for edge, side, scale in ((edges[0], -1, width[0]), (edges[-1], 1, width[-1])):
        near, far = distribution.encode(edge + side * np.array([0.5, 1.5]) * scale).base
        assert near - far == pytest.approx(1.0)
        assert near == pytest.approx(-np.log(scale) - 0.5)


def test_a_value_at_an_edge_is_in_the_bin_above():
    """As at a threshold: intervals are closed below and open above."""
    x = COLUMNS["histogram"][1]
    distribution = start_distribution(CONTINUOUS, x, np.ones(len(x)), 1, "histogram")
    bins = len(distribution.edges) - 1
    expected = [*range(bins), bins + 1]
    np.testing.assert_array_equal(distribution.encode(distribution.edges).code, expected)
    below = np.nextafter(distribution.edges, -np.inf)
    np.testing.assert_array_equal(distribution.encode(below).code, [bins, *range(bins)])


UNIFORM = np.array([0.0, 1e-9, 0.3, 0.5, 0.9, 1 - 1e-9])


def of_counts(family, mean, *more):
    table = np.log([[0.5], [0.5]])
    return FAMILIES[family](np.array([mean]), mean, table, table[:, 0], *more)


@pytest.mark.parametrize("mean", [0.5, 30.0, 9e8, 1e12, 9e15, 2.0**60])
def test_quantiles_of_poisson_counts(mean):
    """scipy's own are NaN from about 1e12 on, and too large at 9e8: its P(count <= .) judges."""
    found = of_counts("poisson", mean).quantile(np.full(6, mean), UNIFORM)
    assert found[0] == 0
    if mean < 1e10:
        assert (stats.poisson.cdf(found, mean) >= UNIFORM).all()
        assert (stats.poisson.cdf(found - 1, mean) < UNIFORM)[1:].all()
    else:
        below = (found[2:5] - mean) / np.sqrt(mean)
        np.testing.assert_allclose(below, stats.norm.ppf(UNIFORM[2:5]), atol=1e-5)


@pytest.mark.parametrize("size", [1e-3, 0.2, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("mean", [1e-9, 0.5, 30.0, 1e6, 1e12, 2.0**60])
def test_quantiles_of_negative_binomial_counts(size, mean):
    """scipy's own run for minutes on some of these; where they do not, ours are the same.

    Large counts are spread as the gamma distribution of their mean, and a Poisson's noise.
    """
    found = of_counts("negative_binomial", mean, size).quantile(np.full(6, mean), UNIFORM)
    assert found[0] == 0
    if size >= 0.2 and mean < 1e3:
        expected = stats.nbinom.ppf(UNIFORM[1:], size, size / (size + mean))
        np.testing.assert_array_equal(found[1:], expected)
    elif mean >= 1e6:
        gamma = stats.gamma.ppf(UNIFORM[2:5], size, scale=mean / size)
        noise = 3 * np.sqrt(np.maximum(gamma, 1.0)) + 1e-6 * gamma
        assert (np.abs(found[2:5] - gamma) <= noise).all()


@pytest.mark.parametrize("size", [0.0, 1e-7, 1e12, np.nan])
def test_a_dispersion_that_no_column_has_is_refused(size):
    with pytest.raises(DamagedFile, match="size"):
        of_counts("negative_binomial", 1.0, size).check(CONTINUOUS, 1)

"""The contract of leaf families: every family in ``FAMILIES``, on columns of many kinds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from knothole.densities.emissions import FAMILIES, choose, start_leaf, with_continuous
from knothole.densities.emissions.base import Statistics
from knothole.densities.emissions.choice import prefers_histogram
from knothole.errors import InvalidInput
from knothole.tables.columns import NOT_RECORDED, Kind, Variable

HOLE = np.nan
STATES = 3
rng = np.random.default_rng(0)

CONTINUOUS = Variable("x")
INTEGER = Variable("n", Kind.INTEGER)
COLOUR = Variable("colour", Kind.CATEGORICAL, ("red", "green", "blue", "never seen"))
NULLABLE = Variable("x", nullable=True)


def with_holes(x):
    x = np.array(x, dtype=np.float64)
    x[rng.random(len(x)) < 0.2] = HOLE
    return x


COLUMNS = {
    "gaussian": (CONTINUOUS, with_holes(rng.normal(3, 2, 200))),
    "histogram": (CONTINUOUS, with_holes(rng.exponential(2, 500))),
    "categorical": (COLOUR, with_holes(rng.choice(3, 200))),
    "integer": (INTEGER, with_holes(rng.integers(-3, 9, 200))),
    "poisson": (INTEGER, with_holes(rng.poisson(4, 200))),
    "negative_binomial": (INTEGER, with_holes(rng.negative_binomial(2, 0.2, 200))),
    "atoms": (NULLABLE, np.append(np.repeat([0.0, NOT_RECORDED], 60), rng.normal(2, 1, 100))),
    "integer, wide": (INTEGER, with_holes(np.rint(rng.normal(500, 200, 800)))),
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


def leaf_of(name, seed=1, strength=0.7):
    """A leaf whose states differ: one step from random responsibilities."""
    variable, x = COLUMNS[name]
    leaf = start_leaf(variable, x, np.ones(len(x)), STATES, family_of(name))
    share = np.random.default_rng(seed).dirichlet(np.full(STATES, 0.3), len(x))
    return leaf.maximise(statistics_of(leaf, x, share), strength)


def statistics_of(leaf, x, share):
    encoded = leaf.encode(x)
    count = np.zeros((leaf.n_codes, share.shape[1]))
    seen = encoded.code >= 0
    np.add.at(count, encoded.code[seen], share[seen])
    return Statistics(count, encoded.z[seen] @ share[seen], encoded.z[seen] ** 2 @ share[seen])


def mass(leaf, low, high, not_recorded=False):
    return leaf.mass(np.array([float(low)]), np.array([float(high)]), np.array([not_recorded]))[0]


def density(leaf, x):
    return np.exp(leaf.log_density(np.atleast_1d(np.asarray(x, dtype=np.float64))))


every = pytest.mark.parametrize("name", COLUMNS)


def test_every_family_has_a_column():
    assert {family_of(name) for name in COLUMNS} == set(FAMILIES)


@every
def test_total_mass_is_one(name):
    leaf = leaf_of(name)
    np.testing.assert_allclose(mass(leaf, -np.inf, np.inf, True), 1, atol=1e-12)


@every
def test_log_density_integrates_to_the_mass(name):
    """Quadrature or enumeration of the log density against the mass of intervals."""
    leaf = leaf_of(name)
    variable, x = COLUMNS[name]
    seen = x[np.isfinite(x)]
    low, high = np.floor(seen.min()) - 2, np.ceil(seen.max()) + 3
    if variable.kind is Kind.CATEGORICAL:
        low, high = 0, len(variable.levels)
    if variable.kind is not Kind.CONTINUOUS:
        for stop in (high, np.ceil((low + high) / 2)):
            total = density(leaf, np.arange(low, stop)).sum(axis=0)
            np.testing.assert_allclose(total, mass(leaf, low, stop), rtol=1e-10)
        return
    points = getattr(leaf, "points", np.empty(0))
    breaks = getattr(getattr(leaf, "rest", leaf), "edges", np.empty(0))
    for stop in (high, (low + high) / 2.1):
        inside = points[(points >= low) & (points < stop)]
        ends = np.unique(np.concatenate([[low, stop], breaks[(breaks > low) & (breaks < stop)]]))
        for state in range(STATES):
            total = density(leaf, inside)[:, state].sum()
            for a, b in itertools.pairwise(ends):
                f = lambda t: density(leaf, np.nextafter(t, np.inf))[0, state]  # noqa: B023, E731
                total += integrate.quad(f, a, b, limit=100)[0]
            np.testing.assert_allclose(total, mass(leaf, low, stop)[state], rtol=1e-6)


@every
@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.floats(-20, 2000), min_size=1, max_size=4), recorded=st.booleans())
def test_complementary_regions_add_up(name, cuts, recorded):
    leaf = leaf_of(name)
    ends = np.array([-np.inf, *sorted(cuts), np.inf])
    flags = np.zeros(len(ends) - 1, dtype=np.bool_)
    parts = leaf.mass(ends[:-1], ends[1:], flags)
    assert (parts >= 0).all()
    unrecorded = mass(leaf, 0, 0, True)
    np.testing.assert_allclose(parts.sum(axis=0) + unrecorded, 1, atol=1e-12)
    np.testing.assert_allclose(
        mass(leaf, ends[0], ends[1], recorded), parts[0] + recorded * unrecorded, atol=1e-12
    )


@every
def test_holes_score_zero(name):
    leaf = leaf_of(name)
    assert (leaf.log_density(np.full(3, HOLE)) == 0).all()


@every
@pytest.mark.parametrize("value", [-1e6, -7.0, 1e6])
def test_no_number_is_impossible(name, value):
    variable, _ = COLUMNS[name]
    if variable.kind is not Kind.CATEGORICAL:
        assert np.isfinite(leaf_of(name).log_density(np.array([value]))).all()


@every
def test_samples_match_masses(name):
    leaf = leaf_of(name)
    variable, x = COLUMNS[name]
    n = 20_000
    cut = np.nanmedian(x[~np.isinf(x)])
    for state in range(STATES):
        draws = leaf.sample(np.full(n, state), np.random.default_rng(state))
        regions = [
            (draws < cut, mass(leaf, -np.inf, cut)),
            (draws == np.inf, mass(leaf, 0, 0, True)),
        ]
        if variable.kind is not Kind.CONTINUOUS or hasattr(leaf, "points"):
            value = x[np.isfinite(x)][0]
            regions.append((draws == value, mass(leaf, value, np.nextafter(value, np.inf))))
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
    best = leaf_of(name)
    best = best.maximise(statistics_of(best, x, share), strength)

    def objective(leaf):
        return np.sum(share * leaf.log_density(x)) + leaf.log_prior(strength)

    for seed in range(8):
        noise = np.random.default_rng(seed).uniform(0.9, 1.1, share.shape)
        other = best.maximise(statistics_of(best, x, share * noise), strength)
        assert objective(other) <= objective(best) + 1e-9


@every
def test_the_prior_pulls_towards_the_marginal(name):
    variable, x = COLUMNS[name]
    marginal = start_leaf(variable, x, np.ones(len(x)), STATES, family_of(name))
    pulled = leaf_of(name, strength=1e9)
    np.testing.assert_allclose(pulled.log_density(x), marginal.log_density(x), atol=1e-4)


@every
def test_states_without_rows(name):
    leaf = leaf_of(name)
    empty = Statistics(np.zeros((leaf.n_codes, STATES)), np.zeros(STATES), np.zeros(STATES))
    for strength in (0.0, 1.0):
        again = leaf.maximise(empty, strength)
        np.testing.assert_allclose(mass(again, -np.inf, np.inf, True), 1, atol=1e-12)
        assert np.isfinite(again.log_prior(strength))


@every
def test_take_and_storage(name):
    leaf = leaf_of(name)
    _, x = COLUMNS[name]
    taken = leaf.take(np.array([2, 0, 0]))
    np.testing.assert_array_equal(taken.log_density(x), leaf.log_density(x)[:, [2, 0, 0]])
    again = type(leaf).from_arrays({k: np.array(v) for k, v in leaf.arrays().items()})
    np.testing.assert_array_equal(again.log_density(x), leaf.log_density(x))
    assert again.n_states == STATES and again.n_codes == leaf.n_codes


@every
def test_scale_of_the_column(name):
    """A column in other units has the same masses, and densities in those units."""
    variable, x = COLUMNS[name]
    if variable.kind is not Kind.CONTINUOUS:
        return
    ones = np.ones(len(x))
    plain = start_leaf(variable, x, ones, 1, family_of(name))
    for unit in (1e-9, 1e6):
        scaled = start_leaf(variable, x * unit, ones, 1, family_of(name))
        cuts = np.array([0.5, 2.0, 7.0])
        flags = np.zeros(3, dtype=np.bool_)
        np.testing.assert_allclose(
            scaled.mass(cuts[[0, 0, 1]] * unit, cuts * unit, flags),
            plain.mass(cuts[[0, 0, 1]], cuts, flags),
            atol=1e-9,
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("values", [[], [HOLE, HOLE], [2.0], [2.0] * 50, [2.0, 2.0, HOLE, 3.0]])
def test_degenerate_columns(family, values):
    kind = {"categorical": COLOUR, "gaussian": CONTINUOUS, "histogram": CONTINUOUS}
    variable = kind.get(family, CONTINUOUS if family == "atoms" else INTEGER)
    x = np.array(values, dtype=np.float64)
    leaf = start_leaf(variable, x, np.ones(len(x)), 2, family)
    np.testing.assert_allclose(mass(leaf, -np.inf, np.inf), 1, atol=1e-12)
    assert np.isfinite(leaf.log_density(x)).all()
    leaf = leaf.maximise(statistics_of(leaf, x, np.full((len(x), 2), 0.5)), 0.1)
    np.testing.assert_allclose(mass(leaf, -np.inf, np.inf), 1, atol=1e-12)
    assert np.isfinite(leaf.log_density(x)).all()


def test_gaussian_against_scipy():
    leaf = leaf_of("gaussian")
    x = np.linspace(-9, 12, 40)
    loc = leaf.location + leaf.scale * leaf.mean
    truth = stats.norm(loc, leaf.scale * np.sqrt(leaf.variance))
    np.testing.assert_allclose(leaf.log_density(x), truth.logpdf(x[:, None]), rtol=1e-10)
    # Far out in the upper tail, where 1 - F is rounded to nothing.
    far = np.array([loc.max() + 12 * leaf.scale])
    tail = leaf.mass(far, np.array([np.inf]), np.array([False]))[0]
    np.testing.assert_allclose(tail, truth.sf(far), rtol=1e-9)


@pytest.mark.parametrize("name", ["poisson", "negative_binomial"])
def test_counts_against_scipy(name):
    leaf = leaf_of(name)
    x = np.arange(60.0)
    if name == "poisson":
        truth = stats.poisson(leaf.mean)
    else:
        truth = stats.nbinom(leaf.size, leaf.size / (leaf.size + leaf.mean))
    expected = truth.logpmf(x[:, None]) + leaf.table[0]
    np.testing.assert_allclose(leaf.log_density(x), expected, rtol=1e-9)
    np.testing.assert_allclose(mass(leaf, 7, np.inf), truth.sf(6) * np.exp(leaf.table[0]))


@pytest.mark.parametrize("n_states", [1, 5])
def test_a_level_never_seen_keeps_its_part_of_a_row(n_states):
    """A row in all is spread over levels and states, however often EM has taken a step.

    Of the marginal alone it would have that part of a row, of that part.
    """
    x = np.repeat([0.0, 1.0, 2.0], [50, 30, 20])
    leaf = start_leaf(COLOUR, x, np.ones(100), n_states)
    count = np.tile([[50.0], [30.0], [20.0], [0.0]], n_states) / n_states
    nothing = np.zeros(n_states)
    for _ in range(3):
        leaf = leaf.maximise(Statistics(count, nothing, nothing), 1.0)
    p = np.exp(leaf.form.table)
    np.testing.assert_allclose(p.sum(axis=0), 1, rtol=1e-12)
    np.testing.assert_allclose(p[3], 1 / 4 / 100, rtol=0.1)


def test_sets_of_levels():
    leaf = leaf_of("categorical")
    allowed = np.array([[True, True, True, True], [True, False, True, False]])
    masses = leaf.set_mass(allowed)
    np.testing.assert_allclose(masses[0], 1)
    np.testing.assert_allclose(masses[1], density(leaf, [0, 2]).sum(axis=0))


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
    leaf = start_leaf(CONTINUOUS, x, np.ones(len(x)), 1)
    assert leaf.points.tolist() == [0.0]
    np.testing.assert_allclose(density(leaf, [0.0]), 0.25, atol=0.01)


def test_another_family_beside_the_points():
    x = np.append(np.random.default_rng(5).exponential(2, 300), np.zeros(100))
    assert with_continuous("histogram", CONTINUOUS, x) == "atoms+histogram"
    assert with_continuous("histogram", CONTINUOUS, x[:300]) == "histogram"
    assert with_continuous("histogram", INTEGER, x) is None
    leaf = start_leaf(CONTINUOUS, x, np.ones(len(x)), 1, "atoms+histogram")
    assert leaf.points.tolist() == [0.0] and leaf.rest.family == "histogram"
    nullable = start_leaf(NULLABLE, x, np.ones(len(x)), 1, "histogram")
    assert nullable.points.tolist() == [NOT_RECORDED] and nullable.rest.family == "histogram"


def test_shapes_that_a_gaussian_misses():
    draws = np.random.default_rng(5)
    assert not prefers_histogram(draws.normal(size=1000))
    assert prefers_histogram(draws.exponential(size=1000))
    assert not prefers_histogram(np.full(10, 2.0))


def test_flat_columns_have_bins_nevertheless():
    """With one bin a column could not differ between states."""
    x = np.random.default_rng(0).random(2000)
    leaf = start_leaf(CONTINUOUS, x, np.ones(2000), 1, "histogram")
    assert leaf.n_codes - 2 >= 16


def test_families_that_do_not_fit_the_variable_are_refused():
    x, weight = np.zeros(5), np.ones(5)
    with pytest.raises(InvalidInput, match="no family"):
        start_leaf(CONTINUOUS, x, weight, 1, "gamma")
    with pytest.raises(InvalidInput, match="must be 'categorical'"):
        start_leaf(COLOUR, x, weight, 1, "gaussian")
    with pytest.raises(InvalidInput, match="cannot be 'categorical'"):
        start_leaf(CONTINUOUS, x, weight, 1, "categorical")

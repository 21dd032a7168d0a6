"""What every density must hold: add yours to ``DENSITIES``."""

import itertools
import os
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import integrate
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tests.densities import made_tables

from knothole.columns.columns import Column, Columns, Kind
from knothole.densities.base import Within
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.errors import ColumnMismatch, InvalidInput, NotFitted

MISSING = np.nan

#: Unfitted densities, quick to fit, with a seed.
DENSITIES = {
    "Factorized": Factorized(random_state=0),
    "Mixture": Mixture(n_components=4, random_state=0),
    "Mixture, auto": Mixture(random_state=0, max_iter=50),
    "LatentTree": LatentTree(n_states=3, random_state=0),
    "LatentTree, auto": LatentTree(random_state=0, max_iter=20),
    "GaussianMixture": GaussianMixture(n_components=3, normal_scores=False, random_state=0),
    "GaussianMixture, by rank": GaussianMixture(n_components=3, random_state=0),
    "GaussianMixture, tied": GaussianMixture(2, covariance="tied", random_state=0),
    "GaussianMixture, low rank": GaussianMixture(2, covariance="low-rank", random_state=0),
    "GaussianMixture, auto": GaussianMixture(random_state=0, max_iter=50),
}
#: Their densities have a step at each of 513 knots, too many for adaptive quadrature;
#: test_gaussian_mixture.py integrates between the knots.
WITH_STEPS = {name for name in DENSITIES if name.startswith("GaussianMixture, ")}

every = pytest.mark.parametrize("name", DENSITIES)


def fitted(name, X, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(DENSITIES[name]).fit(X, **options)


def make_missing(table, rate, seed):
    """A share of the entries of a table replaced by missing values."""
    mask = np.random.default_rng(seed).random(table.shape) < rate
    return table.mask(mask) if isinstance(table, pd.DataFrame) else np.where(mask, MISSING, table)


def discrete_table(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    cause = rng.integers(0, 3, rows)
    table = pd.DataFrame({
        "a": pd.Categorical(np.where(rng.random(rows) < 0.8, cause, 0), categories=[0, 1, 2]),
        "b": pd.Categorical(np.where(cause > 0, "yes", "no"), categories=["no", "yes"]),
        "c": pd.Categorical(rng.choice(["u", "v"], rows), categories=["u", "v", "never seen"]),
    })  # fmt: skip
    return make_missing(table, 0.2, seed)


def mixed_table(rows=300, seed=0):
    return make_missing(made_tables.mixed_table(rows, np.random.default_rng(seed)), 0.2, seed)


def all_missing(density, rows=1):
    """Evidence in which nothing is known, not even which entries are missing."""
    columns = density.columns_
    own = columns.evidence(
        np.full((rows, len(columns)), MISSING), np.ones((rows, len(columns)), bool)
    )
    return type(own)(np.full((rows, len(density.variables_)), MISSING))


def points(density, **values):
    """Evidence of one row with some variables, by name, at a point."""
    evidence = all_missing(density)
    names = [variable.name for variable in density.variables_]
    for name, value in values.items():
        evidence.points[0, names.index(name)] = value
    return evidence


@every
def test_total_mass_is_one(name):
    """Enumeration of all rows of a discrete table."""
    density = fitted(name, discrete_table())
    levels = [range(len(variable.levels)) for variable in density.variables_]
    rows = np.array(list(itertools.product(*levels)), dtype=np.float64)
    evidence = type(all_missing(density))(rows)
    np.testing.assert_allclose(np.exp(density.log_evidence(evidence)).sum(), 1, atol=1e-10)


@every
def test_marginals_are_sums(name):
    """Missing values are summed out: p(a) = sum over b of p(a, b), for every pair and level."""
    density = fitted(name, discrete_table())
    names = [variable.name for variable in density.variables_]
    for one, other in itertools.permutations(range(3), 2):
        for level in range(len(density.variables_[one].levels)):
            alone = density.log_evidence(points(density, **{names[one]: level}))
            parts = [
                density.log_evidence(points(density, **{names[one]: level, names[other]: code}))
                for code in range(len(density.variables_[other].levels))
            ]
            np.testing.assert_allclose(np.exp(parts).sum(), np.exp(alone)[0], rtol=1e-10)


@pytest.mark.parametrize("name", sorted(DENSITIES.keys() - WITH_STEPS))
def test_marginals_are_integrals(name):
    """Of a continuous variable, with others observed and not."""
    density = fitted(name, mixed_table())
    breaks = getattr(getattr(density, "distributions_", [None])[0], "edges", ())  # of a histogram
    for known in ({}, {"kind": 1.0}, {"number": 4.0, "rain": 0.0}):

        def f(x, known=known):
            return float(np.exp(density.log_evidence(points(density, size=x, **known)))[0])

        ends = np.unique([-30, -2, 0, 2, 4, 6, 40, *breaks])
        total = sum(integrate.quad(f, a, b, limit=200)[0] for a, b in itertools.pairwise(ends))
        alone = np.exp(density.log_evidence(points(density, **known)))[0]
        np.testing.assert_allclose(total, alone, rtol=1e-5)


@every
def test_complementary_regions_add_up(name):
    density = fitted(name, mixed_table())
    names = [variable.name for variable in density.variables_]
    evidence = points(density, kind=1.0)
    whole = np.exp(density.log_evidence(evidence))
    for variable, thresholds in (
        ("size", [-1.0, 2.5]),
        ("number", [2.0, 4.5]),
        ("rain", [0.0, 1.0]),
    ):
        v = names.index(variable)
        ends = [-np.inf, *thresholds, np.inf]
        parts = [
            np.exp(density.log_evidence(evidence, [Within(v, low, high)]))
            for low, high in itertools.pairwise(ends)
        ]
        np.testing.assert_allclose(sum(parts), whole, rtol=1e-9)
    # Two variables at once: the four corners.
    halves = [(-np.inf, 1.0), (1.0, np.inf)]
    corners = [
        np.exp(density.log_evidence(evidence, [Within(0, *one), Within(2, *two)]))
        for one, two in itertools.product(halves, halves)
    ]
    np.testing.assert_allclose(sum(corners), whole, rtol=1e-9)


@every
def test_sets_of_levels_add_up(name):
    density = fitted(name, discrete_table())
    evidence = points(density, b=0.0)
    whole = np.exp(density.log_evidence(evidence))
    parts = [
        np.exp(density.log_evidence(evidence, [Within(0, codes=codes)])) for codes in ((0, 2), (1,))
    ]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-10)
    singles = [np.exp(density.log_evidence(points(density, b=0.0, a=code))) for code in (0.0, 2.0)]
    np.testing.assert_allclose(sum(singles), parts[0], rtol=1e-10)


@every
@pytest.mark.parametrize("table", [discrete_table, mixed_table])
def test_an_all_missing_row_scores_zero(name, table):
    density = fitted(name, table())
    np.testing.assert_allclose(density.log_evidence(all_missing(density, 3)), 0, atol=1e-12)


@every
def test_samples_match_masses(name):
    density = fitted(name, mixed_table())
    n = 20_000
    draws = density.sample_points(n, np.random.default_rng(1))
    assert draws.shape == (n, len(density.variables_))
    assert not np.isnan(draws).any()
    empty = all_missing(density)
    regions = [Within(0, -np.inf, 1.0), Within(0, 1.0, 4.0), Within(1, codes=(1,)),
               Within(2, 3.0, np.inf), Within(3, 0.0, 1e-300), Within(3, 1.0, 2.0)]  # fmt: skip
    for one, two in itertools.combinations_with_replacement(regions, 2):
        if one.variable == two.variable and one is not two:
            continue
        both = [one] if one is two else [one, two]
        p = np.exp(density.log_evidence(empty, both))[0]
        hit = np.logical_and.reduce([inside(draws[:, r.variable], r) for r in both])
        assert abs(hit.mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n) + 1e-4


def inside(x, region):
    if region.codes is not None:
        return np.isin(x, region.codes)
    return (x >= region.low) & (x < region.high)


@every
def test_completions_match_conditionals(name):
    density = fitted(name, mixed_table())
    evidence = points(density, kind=1.0, number=6.0)
    n = 20_000
    draws = density.complete_points(evidence, n, 1)[0]
    assert draws.shape == (n, len(density.variables_))
    np.testing.assert_array_equal(draws[:, 1], 1.0)
    np.testing.assert_array_equal(draws[:, 2], 6.0)
    alone = density.log_evidence(evidence)[0]
    for region in (Within(0, 2.0, np.inf), Within(3, 0.0, 1e-300), Within(3, 0.5, 3.0)):
        p = np.exp(density.log_evidence(evidence, [region])[0] - alone)
        hit = inside(draws[:, region.variable], region)
        assert abs(hit.mean() - p) < 4.5 * np.sqrt(p * (1 - p) / n) + 1e-4


@every
def test_one_hot_groups_observed_in_part(name):
    """Known not to be red: p is that of the other levels together, and so are draws."""
    colour = np.random.default_rng(0).integers(0, 3, 200)
    X = np.eye(3)[colour]
    X = np.column_stack([X, colour + np.random.default_rng(1).normal(size=200)])
    columns = Columns.infer(X, one_hot={"colour": [0, 1, 2]})
    X[:40, 1:3] = MISSING
    density = fitted(name, X, columns=columns)
    rows = np.array([[0, MISSING, MISSING, 1.5], [0, 1, 0, 1.5], [0, 0, 1, 1.5]])
    scores = density.score_samples(rows)
    np.testing.assert_allclose(np.exp(scores[0]), np.exp(scores[1:]).sum(), rtol=1e-9)
    draws = density.complete(rows[:1], draws=4000)[0]
    np.testing.assert_array_equal(draws[:, 0], 0)
    np.testing.assert_array_equal(draws[:, 1] + draws[:, 2], 1)
    p = np.exp(scores[1] - scores[0])
    assert abs(draws[:, 1].mean() - p) < 4.5 * np.sqrt(p * (1 - p) / 4000)


@every
def test_column_order_does_not_matter(name):
    table = mixed_table()
    plain = fitted(name, table)
    names = ["rain", "kind", "size", "number"]
    turned = fitted(name, table[names])
    np.testing.assert_allclose(
        plain.score_samples(table), turned.score_samples(table[names]), rtol=1e-5, atol=1e-5
    )


@every
def test_scale_of_columns_does_not_matter(name):
    """Columns of size 1e6 and 1e-9 fit as those of size 1 do, but for the change of unit."""
    rng = np.random.default_rng(0)
    X = make_missing(rng.multivariate_normal([0.3, 1], [[1, 0.8], [0.8, 1]], 300), 0.1, 0)
    units = np.array([1e6, 1e-9])
    plain, scaled = fitted(name, X), fitted(name, X * units)
    change = (~np.isnan(X)) @ np.log(units)
    np.testing.assert_allclose(
        scaled.score_samples(X * units) + change, plain.score_samples(X), rtol=1e-5, atol=1e-5
    )


@every
@pytest.mark.parametrize("threads", ["1", "3"])
def test_any_number_of_threads_gives_the_same_bits(name, threads, monkeypatch):
    table = np.random.default_rng(0).normal(size=(5000, 3))
    table[:, 1] += table[:, 0] > 0
    monkeypatch.setenv("KNOTHOLE_THREADS", "2")
    reference = fitted(name, table).score_samples(table)
    monkeypatch.setenv("KNOTHOLE_THREADS", threads)
    np.testing.assert_array_equal(fitted(name, table).score_samples(table), reference)


DEGENERATE = {
    "constant column": np.column_stack([np.full(50, 3.0), np.arange(50) / 7]),
    "all columns constant": np.full((30, 2), 1.5),
    "duplicate columns": np.repeat(np.random.default_rng(0).normal(size=(60, 1)), 3, axis=1),
    "more columns than rows": np.random.default_rng(1).normal(size=(6, 15)),
    "a single row": np.array([[1.5, 2.0, -3.0]]),
    "a single row with a missing value": np.array([[1.5, 2.0], [MISSING, 2.0]]),
    "ties at one value": np.column_stack([np.repeat([0.0, 2.5], [80, 20]), np.arange(100) * 0.3]),
    "large and small": np.array([[1e6, 1e-9], [2e6, 3e-9], [MISSING, 2e-9]] * 10)
    * np.random.default_rng(2).uniform(1, 2, (30, 2)),
    "huge": np.array([[1e150, 1.0], [2e150, 0.0], [-1e150, 1.0]] * 9),
    "an outlier": np.append(np.random.default_rng(3).normal(size=99), 1e9)[:, None],
    "rows without any value": np.vstack([np.full((20, 2), MISSING), np.eye(2) + 0.5]),
    "one level": pd.DataFrame({"c": ["only"] * 20, "x": np.arange(20) / 3}),
}


@every
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_tables(name, case):
    X = DEGENERATE[case]
    density = fitted(name, X)
    assert np.isfinite(density.score_samples(X)).all()
    assert not np.isnan(density.complete(X, draws=2)).any()
    np.testing.assert_allclose(density.log_evidence(all_missing(density)), 0, atol=1e-12)
    assert density.sample(3).shape == (3, X.shape[1])
    if hasattr(density, "to_circuit"):
        circuit = density.to_circuit()
        np.testing.assert_allclose(
            circuit.score_samples(X), density.score_samples(X), rtol=1e-10, atol=1e-10
        )
        again = circuit.fit(X, columns=density.columns_)
        assert np.isfinite(again.score_samples(X)).all()


@every
def test_a_column_without_a_value_is_refused(name):
    X = np.column_stack([np.arange(20.0), np.full(20, MISSING)])
    with pytest.raises(InvalidInput, match=r"'x1' has no observed value"):
        fitted(name, X)


@every
def test_values_never_seen(name):
    """Far outside of the training range: a finite score, and draws."""
    density = fitted(name, mixed_table())
    kinds = pd.Categorical([0, 1, None], categories=[0, 1])
    table = pd.DataFrame(
        {
            "size": [1e9, -500, MISSING],
            "kind": kinds,
            "number": [900, -2, MISSING],
            "rain": [-3, 1e5, 0],
        }
    )
    assert not np.isnan(density.score_samples(table)).any()
    assert not np.isnan(density.complete(table, draws=3)).any()


@every
def test_not_recorded_is_a_state(name):
    """In a nullable column NaN has a probability; a missing value there is still integrated out."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=200), rng.normal(size=200)])
    X[:50, 0] = np.nan
    columns = Columns((Column("x", nullable=True), Column("y")))
    density = fitted(name, X, columns=columns)
    row = np.array([[np.nan, 0.3]])
    missing = np.array([[True, False]])
    recorded = density.log_evidence(density.evidence(row, missing), [Within(0)])
    not_recorded = density.log_evidence(density.evidence(row))
    either = density.log_evidence(density.evidence(row, missing))
    total = np.exp(recorded) + np.exp(not_recorded)
    np.testing.assert_allclose(total, np.exp(either), rtol=1e-9)
    np.testing.assert_allclose(np.exp(not_recorded - either), 0.25, atol=0.15)
    draws = density.complete_points(density.evidence(row, missing), 2000, 0)[0, :, 0]
    assert 0.05 < np.isinf(draws).mean() < 0.45


@every
def test_a_target_is_a_further_variable(name):
    table = mixed_table()
    label = np.where(table["size"].to_numpy() > 1.5, "large", "small")
    density = fitted(name, table, target=label)
    with_target = density.score_samples(table, target=label)
    rows = density.log_evidence(density.evidence(table))
    others = density.score_samples(table, target=np.where(label == "large", "small", "large"))
    np.testing.assert_allclose(np.logaddexp(with_target, others), rows, rtol=1e-9, atol=1e-9)
    assert density.sample(5).shape == (5, 4)


@every
def test_zero_weight_is_as_if_not_there(name):
    table = mixed_table()
    weight = np.repeat([1.0, 0.0], 150)
    weighted = fitted(name, table, sample_weight=weight)
    part = fitted(name, table[:150], columns=weighted.columns_)
    np.testing.assert_allclose(
        weighted.score_samples(table), part.score_samples(table), rtol=1e-9, atol=1e-9
    )


@every
def test_storage(name, tmp_path):
    table = mixed_table()
    density = fitted(name, table)
    path = tmp_path / "density.knothole"
    density.save(path)
    again = type(density).load(path)
    assert type(again) is type(density)
    assert again.get_params() == density.get_params()
    assert again.variables_ == density.variables_ and again.columns_ == density.columns_
    np.testing.assert_array_equal(again.score_samples(table), density.score_samples(table))
    np.testing.assert_array_equal(again.sample(5), density.sample(5))
    assert os.listdir(tmp_path) == ["density.knothole"]


@every
def test_scikit_learn_conventions(name):
    density = clone(DENSITIES[name])
    assert density.get_params() == DENSITIES[name].get_params()
    with pytest.raises(NotFitted):
        density.score_samples([[1.0, 2.0]])
    X = np.random.default_rng(0).normal(size=(60, 2))
    assert fitted(name, X).n_features_in_ == 2
    named = fitted(name, pd.DataFrame(X, columns=["p", "q"]))
    assert named.feature_names_in_.tolist() == ["p", "q"]
    assert isinstance(named.score(X), float)
    with pytest.raises(ColumnMismatch):
        named.score_samples(X[:, :1])
    np.testing.assert_array_equal(fitted(name, X).sample(4), fitted(name, X).sample(4))


@every
def test_unusable_input_is_refused(name):
    density = clone(DENSITIES[name])
    with pytest.raises(InvalidInput):
        density.fit(np.empty((0, 3)))
    with pytest.raises(InvalidInput):
        density.fit([1.0, 2.0])
    with pytest.raises(InvalidInput, match="finite"):
        density.fit([[np.inf, 1.0]])
    with pytest.raises(InvalidInput, match="sample_weight"):
        density.fit([[1.0], [2.0]], sample_weight=[1.0, -1.0])
    with pytest.raises(InvalidInput, match="sample_weight"):
        density.fit([[1.0], [2.0]], sample_weight=[0.0, 0.0])
    ready = fitted(name, mixed_table())
    with pytest.raises(InvalidInput, match="no variable"):
        ready.log_mass(mixed_table(), {"colour": (0, 1)})
    with pytest.raises(InvalidInput, match="observed in some rows"):
        ready.log_mass(mixed_table(), {"size": (0, 1)})
    with pytest.raises(InvalidInput, match="without one"):
        ready.score_samples(mixed_table(), target=np.zeros(300))


@every
def test_masses_by_name(name):
    density = fitted(name, mixed_table())
    table = mixed_table().assign(size=MISSING, kind=pd.Categorical([None] * 300, categories=[0, 1]))
    parts = [
        density.log_mass(table, {"size": interval, "kind": [level]})
        for interval in ((-np.inf, 1.0), (1.0, np.inf))
        for level in (0, 1)
    ]
    whole = density.score_samples(table)
    np.testing.assert_allclose(np.logaddexp.reduce(parts), whole, rtol=1e-9, atol=1e-9)
    assert density.columns_.columns[1].kind is Kind.CATEGORICAL


@every
def test_masses_of_several_regions(name):
    """The slow twin: the log probabilities of each region and of none."""
    table = mixed_table()
    density = fitted(name, table)
    evidence = density.evidence(make_missing(table, 0.5, 1))
    regions = [
        Within(0, high=1.0), Within(0, low=2.0, high=3.0), Within(1, codes=(1,)),
        Within(2, high=3.0), Within(3, low=0.5),
    ]  # fmt: skip
    found = density.region_masses(evidence, regions)
    for i, region in enumerate(regions):
        rows = np.flatnonzero(np.isnan(evidence.points[:, region.variable]))
        part = evidence[rows]
        expected = np.exp(density.log_evidence(part, [region]) - density.log_evidence(part))
        np.testing.assert_allclose(found[rows, i], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found[7], density.region_masses(evidence[7:8], regions)[0])

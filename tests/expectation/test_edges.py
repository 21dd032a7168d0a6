"""Rows at the edge: nothing known, values nobody has seen, columns nobody asks about, two NaN."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from tests.expectation.cases import EXACT, as_table, asked, random_case
from tests.expectation.naive import enumerate_row
from tests.trees.generate import random_ensemble

from knothole.columns.columns import Column, Columns
from knothole.columns.evidence import Evidence, checked_lost
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.errors import ImpossibleRow, InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.missingness.inference import NATIVE, Reading
from knothole.trees.ensemble import Ensemble, Nodes
from knothole.trees.links import Link
from knothole.trees.regions import regions

seeds = st.integers(0, 2**31 - 1)


def by_enumeration(case, expectation, evidence):
    rows = range(len(evidence.points))
    return [enumerate_row(case.ensemble, case.density, evidence, row) for row in rows]


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_tower_property(density, seed):
    """E[f | x_o] is the mean of E[f | x_o, x_j] over x_j given x_o, for a categorical x_j."""
    case = random_case(seed, density, n_rows=4)
    expectation = Expectation.of(case.ensemble, case.density)
    rows, incomplete = case.rows.copy(), case.missing_mask.copy()
    rows[:, 0], incomplete[:, 0] = np.nan, True
    evidence = case.density.evidence(as_table(case.density.columns_, rows), incomplete)
    expected, _ = expectation.margin(evidence)

    log_p, margins = [], []
    for code in range(3):
        points = evidence.points.copy()
        points[:, 0] = code
        told = with_code(evidence, points, code)
        log_p.append(case.density.log_evidence(told))
        margins.append(expectation.margin(told)[0])
    weight = np.exp(np.array(log_p) - np.max(log_p, axis=0))
    weight /= weight.sum(axis=0)
    found = np.einsum("cr,cro->ro", weight, np.array(margins))
    np.testing.assert_allclose(found, expected, atol=1e-10)


def with_code(evidence, points, code):
    """The evidence with the first variable known to have this code."""
    if evidence.allowed is None:
        return Evidence(points)
    allowed = evidence.allowed.copy()
    allowed[:, 0] = np.uint64(1 << code)
    return replace(evidence, points=points, allowed=allowed)


@pytest.mark.parametrize("density", EXACT)
def test_a_row_of_missing_values_is_the_prior_mean(density):
    case = random_case(5, density, rate=1.0, n_rows=1)
    case.missing_mask[:] = True
    expectation = Expectation.of(case.ensemble, case.density)
    found, _ = expectation.margin(
        expectation.density.evidence(as_table(case.density.columns_, case.rows), case.missing_mask)
    )
    draws = case.density.sample(40_000)
    margins = case.ensemble.margin(draws, 1)
    bound = 5 * margins.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(found - margins.mean(axis=0)) <= bound).all()


@pytest.mark.parametrize("density", EXACT)
@pytest.mark.parametrize("far", [30.0, -300.0])
def test_values_outside_the_training_range(density, far):
    case = random_case(6, density, rate=0.5, n_rows=4)
    case.rows[:, 3], case.missing_mask[:, 3] = far, False
    expectation = Expectation.of(case.ensemble, case.density)
    table = as_table(case.density.columns_, case.rows)
    evidence = expectation.density.evidence(table, case.missing_mask)
    expected = by_enumeration(case, expectation, evidence)
    margin, _ = expectation.margin(evidence)
    np.testing.assert_allclose(margin, [answer.mean for answer in expected], atol=1e-9)


@pytest.mark.parametrize("density", EXACT)
def test_a_missing_value_in_a_column_that_no_tree_uses(density):
    """Alone, it changes nothing; beside other missing values, it would have told about them."""
    case = random_case(7, density, rate=0.4, n_rows=6)
    # Splits on column 3 ask about column 1 instead: nobody uses column 3 any more.
    feature = np.where(case.ensemble.feature == 3, 1, case.ensemble.feature)
    ensemble = replace(case.ensemble, feature=feature.astype(np.int32))
    expectation = Expectation.of(ensemble, case.density)
    case = replace(case, ensemble=ensemble)
    case.rows[:, 3], case.missing_mask[:, 3] = np.nan, True
    evidence = expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )
    expected = by_enumeration(case, expectation, evidence)
    margin, _ = expectation.margin(evidence)
    np.testing.assert_allclose(margin, [answer.mean for answer in expected], atol=1e-10)

    whole = random_case(8, density, rate=0.0, n_rows=6)
    rows = whole.rows.copy()
    rows[:, 3] = np.nan
    rows[np.isnan(rows[:, 1]), 1] = 0.0
    found, error = expectation.margin(expectation.evidence(as_table(case.density.columns_, rows)))
    np.testing.assert_array_equal(found, ensemble.margin(rows, 1))
    assert not error.any()


FAR = {
    "Mixture": lambda: Mixture(3, n_init=1, max_iter=50, tol=10.0, random_state=0),
    "LatentTree": lambda: LatentTree(3, max_iter=50, tol=10.0, random_state=0),
    "Circuit": lambda: Mixture(3, n_init=1, max_iter=50, tol=10.0, random_state=0),
    "GaussianMixture": lambda: GaussianMixture(2, random_state=0),
}


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(3)
    return rng.normal(size=(200, 3)) + rng.integers(0, 3, (200, 1))


@pytest.mark.parametrize("density", FAR)
def test_vanishing_density_has_a_finite_answer(density, numbers):
    """Log densities down to where they overflow: a warning there, and never NaN."""
    fitted = FAR[density]().fit(numbers)
    fitted = fitted.to_circuit() if density == "Circuit" else fitted
    ensemble = random_ensemble(seed=2, levels=(0, 0, 0), n_trees=5, depth=4)
    expectation = Expectation.of(ensemble, fitted)
    low, high = leaf_bounds(ensemble)
    for far in (1e3, 1e20, 1e120, 1e200, -1e300):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImpossibleRow)
            margin, error = expectation.margin(
                expectation.evidence(np.array([[far, np.nan, 0.5], [np.nan, far, far]]))
            )
            probabilities = expectation.leaf_probabilities(
                expectation.evidence(np.array([[far, np.nan, 0.5]]))
            )
        assert np.isfinite(margin).all() and np.isfinite(error).all()
        assert (margin >= low - 1e-9).all() and (margin <= high + 1e-9).all()
        np.testing.assert_allclose(probabilities.sum(), ensemble.n_trees, atol=1e-9)


def leaf_bounds(ensemble):
    """The least and the largest margin that trees can add up to."""
    value = ensemble.value[:, 0] * ensemble.tree_weight[ensemble.leaf_tree]
    starts = ensemble.leaf_start[:-1]
    low, high = np.minimum.reduceat(value, starts), np.maximum.reduceat(value, starts)
    return ensemble.base + low.sum(), ensemble.base + high.sum()


@pytest.mark.parametrize("density", ["Mixture", "LatentTree", "Circuit"])
def test_an_impossible_value_warns_and_counts_as_unknown(density, numbers):
    """A square that overflows leaves no probability to any state."""
    fitted = FAR[density]().fit(numbers)
    fitted = fitted.to_circuit() if density == "Circuit" else fitted
    ensemble = random_ensemble(seed=1, levels=(0, 0, 0), n_trees=4, depth=3)
    # Nobody asks about the impossible column, so that unknown means unknown.
    feature = np.where(ensemble.feature == 2, 1, ensemble.feature).astype(np.int32)
    expectation = Expectation.of(replace(ensemble, feature=feature), fitted)
    rows = np.array([[np.nan, 0.5, 1e200], [np.nan, 0.5, 0.0]])
    with pytest.warns(ImpossibleRow, match=r"1 row\(s\) have values that the density holds"):
        found, _ = expectation.margin(expectation.evidence(rows))
    expected, _ = expectation.margin(expectation.evidence(np.array([[np.nan, 0.5, np.nan]])))
    if density == "LatentTree":  # a value is forgotten, in the others the row
        np.testing.assert_allclose(found[0], expected[0], atol=1e-12)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("density", ["Mixture", "LatentTree", "Circuit"])
def test_completions_answer_impossible_rows_too(density, numbers):
    """Variances, links and quantiles come from draws: these warn as well, and are never NaN."""
    fitted = FAR[density]().fit(numbers)
    fitted = fitted.to_circuit() if density == "Circuit" else fitted
    ensemble = random_ensemble(seed=1, levels=(0, 0, 0), n_trees=4, depth=3)
    expectation = Expectation.of(replace(ensemble, link=Link("sigmoid")), fitted)
    rows = np.array([[np.nan, 0.5, 1e200], [np.nan, 0.5, 0.0]])
    low, high = leaf_bounds(ensemble)
    with pytest.warns(ImpossibleRow, match=r"1 row\(s\) have values that the density holds"):
        mean, _ = expectation.predict(expectation.evidence(rows))
    with pytest.warns(ImpossibleRow):
        moments = expectation.moments(expectation.evidence(rows), method="monte-carlo")
    with pytest.warns(ImpossibleRow):
        quantiles, _ = expectation.quantiles(expectation.evidence(rows), [0.0, 1.0])
    assert (mean > 0).all() and (mean < 1).all()
    assert (moments.mean >= low).all() and (moments.mean <= high).all()
    assert (moments.variance >= 0).all()
    assert (quantiles > 0).all() and (quantiles < 1).all()


@settings(max_examples=5, deadline=None)
@given(seed=seeds)
def test_likelihoods_of_a_latent_tree_equal_their_slow_twin(seed):
    case = random_case(seed, "LatentTree", n_rows=10)
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )
    found = expectation.engine._likelihood(evidence)
    terms = np.stack(case.density.terms(evidence), axis=1)
    expected = np.exp(terms - terms.max(axis=2, keepdims=True))
    expected[np.isnan(evidence.points)] = 1.0
    np.testing.assert_allclose(found[:, :, : terms.shape[2]], expected, atol=1e-12)
    assert not found[:, :, terms.shape[2] :].any()


# ---- two kinds of NaN ----------------------------------------------------------------------------


def two_nan_ensemble():
    """x0 < 0 sends NaN right; below, x0 < 0 sends it left, to a leaf that only NaN reaches."""
    nodes = Nodes(
        roots=np.array([0]),
        feature=np.array([0, -1, 0, -1, -1]),
        threshold=np.array([0.0, np.nan, 0.0, np.nan, np.nan]),
        left=np.array([1, -1, 3, -1, -1]),
        right=np.array([2, -1, 4, -1, -1]),
        missing_left=np.array([False, False, True, False, False]),
        value=np.array([0.0, 1.0, 0.0, 10.0, 100.0]),
        native_leaf=np.arange(5),
    )
    columns = Columns((Column("x0"), Column("x1")))
    return Ensemble.build(
        nodes, columns=columns, base=0.0, library="generated", precision="float64"
    )


@pytest.fixture(scope="module")
def two_nan():
    """A density that holds "not recorded" for a state of x0, one row in four."""
    ensemble = two_nan_ensemble()
    X = np.array([[-1.0, 0.1], [-2.0, 0.2], [1.0, 0.3], [np.nan, 0.4]] * 25)
    columns = ensemble.columns.describe(X).with_nullable(np.array([True, False]))
    missing_mask = np.zeros(X.shape, dtype=np.bool_)
    density = Factorized(random_state=0).fit(X, columns=columns, missing_mask=missing_mask)
    return Expectation.of(ensemble, density, reading=NATIVE)


def test_nan_is_the_models_own_value_in_a_nullable_column(two_nan):
    row = np.array([[np.nan, 0.0]])
    assert asked(two_nan, "margin", row)[0] == 10.0
    found = regions(two_nan.original)
    assert (found.low >= found.high).tolist() == [False, True, False]
    assert asked(two_nan, "leaf_probabilities", row).toarray().tolist() == [[0.0, 1.0, 0.0]]


def test_where_a_missing_value_says_nothing_not_recorded_keeps_its_probability(two_nan):
    nothing = replace(two_nan, reading=Reading("infer", None))
    probabilities = asked(nothing, "leaf_probabilities", np.array([[np.nan, 0.0]])).toarray()[0]
    np.testing.assert_allclose(probabilities.sum(), 1.0, atol=1e-12)
    assert abs(probabilities[1] - 0.25) < 0.02  # how often it was not recorded


def test_a_mask_says_it_entry_by_entry(two_nan):
    rows = np.array([[np.nan, 0.0], [np.nan, 0.0]])
    mask = np.array([[True, False], [False, False]])
    found = asked(two_nan, "margin", rows, mask)[0]
    probabilities = asked(two_nan, "leaf_probabilities", rows, mask).toarray()
    assert (
        probabilities[0, 1] == 0.0 and abs(probabilities[0, 0] - 2 / 3) < 0.05
    )  # of the recorded values
    assert found[1] == 10.0


def test_where_nan_is_missing_a_leaf_that_only_nan_reaches_has_probability_zero():
    ensemble = two_nan_ensemble()
    X = np.array([[-1.0, 0.1], [-2.0, 0.2], [1.0, 0.3], [np.nan, 0.4]] * 25)
    expectation = Expectation.of(ensemble, Factorized(random_state=0).fit(X))
    probabilities = expectation.leaf_probabilities(
        expectation.evidence(np.array([[np.nan, 0.0]]))
    ).toarray()[0]
    assert probabilities[1] == 0.0
    assert abs(probabilities[0] - 2 / 3) < 0.05


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("some", "lost must be booleans"),
        (np.zeros((2, 2), dtype=np.bool_), r"booleans of shape \(1, 2\)"),
        (np.array([[False, True]]), "'b' is marked as lost, but it has a value"),
    ],
)
def test_wrong_masks_are_refused(lost, message):
    with pytest.raises(InvalidInput, match=message):
        checked_lost(lost, np.array([[np.nan, 0.0]]), "ab")


TIED = {
    "product": (Mixture(3, families=dict.fromkeys(("n0", "n1", "n2"), "gaussian")), "exact"),
    "latent tree": (LatentTree(3, families=dict.fromkeys(("n0", "n1", "n2"), "gaussian")), "exact"),
    "draws": (GaussianMixture(2), "monte-carlo"),
    "draws or one number": (GaussianMixture(2), "auto"),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("levels", [(0, 0, 0), (0, 0, 0, 3)], ids=["numbers", "with categories"])
def test_a_value_at_a_threshold_goes_right_beside_a_missing_value(name, levels):
    """As the least number above it does; the greatest number below it goes left."""
    density, method = TIED[name]
    ensemble = random_ensemble(seed=1, n_trees=4, depth=3, levels=levels)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, len(levels)))
    X[:, 3:] = rng.integers(0, 3, X[:, 3:].shape)
    table = as_table(ensemble.columns, X)
    fitted = clone(density).set_params(random_state=0, max_iter=50, tol=10.0)
    fitted.fit(table, columns=ensemble.columns.describe(table))
    expectation = Expectation.of(ensemble, fitted, method)
    nodes = np.flatnonzero((ensemble.feature == 0) & (ensemble.set_start < 0))
    at = np.tile(X[:1], (len(nodes), 1))
    at[:, 0], at[:, 1] = ensemble.threshold[nodes], np.nan
    above, below = at.copy(), at.copy()
    above[:, 0], below[:, 0] = np.nextafter(at[:, 0], np.inf), np.nextafter(at[:, 0], -np.inf)
    probabilities, to_the_right, to_the_left = (
        asked(expectation, "leaf_probabilities", as_table(ensemble.columns, rows)).toarray()
        for rows in (at, above, below)
    )
    np.testing.assert_allclose(probabilities, to_the_right, atol=1e-9)
    assert np.abs(to_the_right - to_the_left).max() > 0.1
    margin, right = (
        asked(expectation, "margin", as_table(ensemble.columns, rows))[0] for rows in (at, above)
    )
    np.testing.assert_allclose(margin, right, atol=1e-9)


def test_a_scaled_link_scales_predictions_and_their_spreads():
    case = random_case(2, n_rows=6)
    plain = Expectation.of(case.ensemble, case.density)
    turned = replace(case.ensemble, link=Link("identity", -3.0))
    scaled = Expectation.of(turned, case.density)
    table = as_table(case.density.columns_, case.rows)
    margin, _ = asked(plain, "margin", table, case.missing_mask)
    np.testing.assert_allclose(asked(scaled, "predict", table, case.missing_mask)[0], -3.0 * margin)
    spread, _ = asked(plain, "std", table, case.missing_mask)
    assert spread.max() > 0.1
    np.testing.assert_allclose(asked(scaled, "std", table, case.missing_mask)[0], 3.0 * spread)


@pytest.mark.parametrize("link", [Link("sigmoid", 2.0), Link("exp", 0.5)])
def test_a_single_tree_has_exact_predictions_whatever_the_link(link):
    case = random_case(4, n_rows=6, n_trees=1)
    case = replace(case, ensemble=replace(case.ensemble, link=link))
    expectation = Expectation.of(case.ensemble, case.density)
    evidence = expectation.density.evidence(
        as_table(case.density.columns_, case.rows), case.missing_mask
    )
    found, error = expectation.predict(evidence)
    expected = [answer.mean_of(link) for answer in by_enumeration(case, expectation, evidence)]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    assert case.ensemble.base.all() and not error.any()


def test_new_leaves_keep_the_unit_of_tolerances():
    """They are to be as exact as the old ones were."""
    case = random_case(3)
    old = Expectation.of(case.ensemble, case.density, "monte-carlo")
    new = old.with_values(10 * case.ensemble.value)
    np.testing.assert_array_equal(new.spread.margin, old.spread.margin)
    unit = new.monte_carlo.tolerance.unit
    np.testing.assert_array_equal(unit, old.monte_carlo.tolerance.unit)

"""The entry point: what it refuses, keeps, reports, and writes back."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.ensemble import (
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.expectation.cases import asked
from tests.leaves.worlds import random_world, refit

from knothole.densities.mixture.density import Factorized, Mixture
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.trees.ensemble import some_trees
from knothole.trees.read import read, write

rng = np.random.default_rng(2)
X = rng.normal(size=(300, 3))
y = X @ [1.0, -2.0, 0.5] + 20
INCOMPLETE = X.copy()
INCOMPLETE[rng.random(X.shape) < 0.3] = np.nan
DENSITY = Mixture(4, random_state=0).fit(INCOMPLETE)


@pytest.fixture(scope="module")
def model():
    return xgboost.XGBRegressor(n_estimators=4, max_depth=3, learning_rate=0.3).fit(INCOMPLETE, y)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": np.nan}, "ridge"),
        ({"ridge": "small"}, "ridge must be 'auto'"),
        ({"ridge": None}, "ridge must be 'auto'"),
        ({"learning_rate": None}, "learning_rate"),
        ({"objective": "both"}, "objective must be 'auto', 'expected'"),
        ({"method": "best"}, "method must be 'auto', 'tree'"),
        ({"method": "tree"}, "adds its trees up"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"sample_weight": np.full(300, -1.0)}, "sample_weight"),
        ({"nan_policy": "some"}, "nan_policy"),
    ],
)
def test_refusals(model, change, match):
    with pytest.raises(InvalidInput, match=match):
        refit(read(model), DENSITY, INCOMPLETE, y, **change)


@pytest.mark.parametrize(
    ("target", "match"),
    [
        (y[:-1], "each of the 300 rows"),
        (np.where(np.arange(300) == 3, np.nan, y), "finite"),
        (np.column_stack([y, y]), "1 output"),
        (np.full(300, "a"), "numbers"),
    ],
)
def test_refused_targets(model, target, match):
    with pytest.raises(InvalidInput, match=match):
        refit(read(model), DENSITY, INCOMPLETE, target)


def test_the_written_model_predicts_what_was_refitted(model):
    refitted = refit(read(model), DENSITY, INCOMPLETE, y)
    assert refitted.summary.method == "boosting"
    written = write(model, refitted.ensemble)
    np.testing.assert_allclose(written.predict(X), refitted.ensemble.margin(X)[:, 0], rtol=1e-5)
    old, new = (
        np.mean((asked(Expectation.of(e, DENSITY), "margin", INCOMPLETE)[0][:, 0] - y) ** 2)
        for e in (read(model), refitted.ensemble)
    )
    assert new < old


def test_learning_rate_and_base_score_do_not_matter_to_a_single_tree():
    """theta is what a leaf adds to the margin, whatever the rate that it was trained with."""
    tables = {}
    for rate in (0.3, 1.0):
        single = xgboost.XGBRegressor(
            n_estimators=1, max_depth=3, learning_rate=rate, base_score=0.5
        ).fit(INCOMPLETE, y)
        tables[rate] = refit(read(single), DENSITY, INCOMPLETE, y, ridge=1.0).ensemble.value
    np.testing.assert_allclose(tables[0.3], tables[1.0], atol=1e-9)
    boosted = GradientBoostingRegressor(n_estimators=1, max_depth=3, learning_rate=0.1).fit(X, y)
    refitted = refit(read(boosted), DENSITY, X, y, ridge=0.0).ensemble
    leaves = refitted.leaves(X)[:, 0]
    for leaf in range(refitted.n_leaves):
        np.testing.assert_allclose(refitted.margin(X)[leaves == leaf, 0], y[leaves == leaf].mean())


def test_unreached_leaves_keep_their_value_without_a_ridge():
    tree = DecisionTreeRegressor(max_depth=2, random_state=0).fit(X, y)
    ensemble = read(tree)
    some = X[:, 1] > np.quantile(X[:, 1], 0.8)
    options = {"condition_on_target": False}
    refitted = refit(ensemble, DENSITY, X[some], y[some], ridge=0.0, **options)
    missed = refitted.summary.unreached
    assert len(missed)
    np.testing.assert_array_equal(refitted.ensemble.value[missed], ensemble.value[missed])
    refitted = refit(ensemble, DENSITY, X[some], y[some], ridge=2.0, **options)
    np.testing.assert_allclose(refitted.ensemble.value[missed], y[some].mean())


def test_a_large_ridge_draws_leaves_to_the_weighted_mean():
    tree = DecisionTreeRegressor(max_depth=2, random_state=0).fit(X, y)
    weight = np.where(y > 20, 3.0, 0.1)
    options = {"condition_on_target": False, "objective": "expected", "sample_weight": weight}
    refitted = refit(read(tree), DENSITY, X, y, ridge=1e12, **options)
    mean = np.average(y, weights=weight)
    assert abs(mean - y.mean()) > 0.1
    np.testing.assert_allclose(refitted.ensemble.value, mean, rtol=1e-6)


@pytest.mark.parametrize("method", ["forest", "boosting"])
@pytest.mark.parametrize("integration", ["exact", "monte-carlo"])
def test_unreached_leaves_of_whole_models_keep_their_values_without_a_ridge(method, integration):
    world = random_world(5, n_rows=3, rate=0.1, n_trees=3)
    ensemble = world.case.ensemble
    options = {
        **world.options,
        "method": method,
        "integration": integration,
        "objective": "expected",
    }
    refitted = refit(*world.arguments, ridge=0.0, learning_rate=1.0, **options)
    missed = refitted.summary.unreached
    assert 0 < len(missed) < ensemble.n_leaves
    np.testing.assert_array_equal(refitted.ensemble.value[missed], ensemble.value[missed])
    refitted = refit(*world.arguments, ridge=1.0, learning_rate=1.0, **options)
    assert not np.isin(refitted.ensemble.value[missed], ensemble.value[missed]).any()


@pytest.mark.parametrize("method", ["forest", "boosting"])
@pytest.mark.parametrize("integration", ["exact", "monte-carlo"])
def test_trees_without_weight_keep_their_values(method, integration):
    world = random_world(3, n_rows=20, n_trees=3)
    ensemble = world.case.ensemble
    weights = ensemble.tree_weight.copy()
    weights[1] = 0.0
    ensemble = replace(ensemble, tree_weight=weights)
    arguments = (ensemble, *world.arguments[1:])
    options = world.options | {"method": method, "integration": integration, "learning_rate": 0.5}
    refitted = refit(*arguments, **options).ensemble
    idle = ensemble.leaf_tree == 1
    np.testing.assert_array_equal(refitted.value[idle], ensemble.value[idle])
    assert not np.allclose(refitted.value[~idle], ensemble.value[~idle])


@pytest.mark.parametrize("method", ["forest", "boosting"])
def test_weights_are_repeated_rows(method, model):
    times = rng.integers(0, 3, 300)
    options = {"method": method, "condition_on_target": False, "integration": "exact"}
    weighted = refit(read(model), DENSITY, INCOMPLETE, y, sample_weight=times, **options)
    rows = np.repeat(np.arange(300), times)
    repeated = refit(read(model), DENSITY, INCOMPLETE[rows], y[rows], **options)
    np.testing.assert_allclose(weighted.ensemble.value, repeated.ensemble.value, atol=1e-8)


def test_several_outputs():
    both = np.column_stack([y, -y])
    forest = RandomForestRegressor(3, max_depth=3, random_state=0).fit(X, both)
    ensemble = read(forest)
    with pytest.raises(InvalidInput, match="condition_on_target=False"):
        refit(ensemble, DENSITY, INCOMPLETE, both)
    refitted = refit(ensemble, DENSITY, INCOMPLETE, both, condition_on_target=False).ensemble
    one = RandomForestRegressor(3, max_depth=3, random_state=0).fit(X, y)
    alone = refit(read(one), DENSITY, INCOMPLETE, y, condition_on_target=False).ensemble
    np.testing.assert_allclose(refitted.value[:, 0], -refitted.value[:, 1], atol=1e-9)
    assert alone.value.shape[1] == 1


def test_a_density_with_a_target_is_taken_as_it_is(model):
    joint = Mixture(3, random_state=0).fit(INCOMPLETE, target=y)
    refitted = refit(read(model), joint, INCOMPLETE, y)
    assert refitted.joint is refitted.density is joint
    assert refitted.summary.conditioned == "given"
    other = refit(read(model), joint, INCOMPLETE, y, condition_on_target=False)
    assert other.summary.conditioned == "none"
    assert not np.allclose(other.ensemble.value, refitted.ensemble.value)


def test_conditioning_sharpens_the_leaves():
    """x decides y, x is gone in half of the rows: given y it can be told again."""
    x = rng.choice([-1.0, 1.0], size=(600, 1)) + 0.05 * rng.normal(size=(600, 1))
    target = 10 * np.sign(x[:, 0]) + rng.normal(size=600)
    tree = read(DecisionTreeRegressor(max_depth=1).fit(x, target))
    incomplete = x.copy()
    incomplete[::2] = np.nan
    density = Mixture(2, random_state=0).fit(incomplete)
    sharp = refit(tree, density, incomplete, target, ridge=0.0).ensemble.value
    flat = refit(
        tree, density, incomplete, target, ridge=0.0, condition_on_target=False
    ).ensemble.value
    np.testing.assert_allclose(np.sort(sharp[:, 0]), [-10, 10], atol=0.5)
    assert np.abs(flat).max() < 7.5


def test_tables_and_sentinels():
    """A value that the model takes for NaN is a missing value while refitting, too."""
    marked = np.where(np.isnan(INCOMPLETE), -999.0, INCOMPLETE)
    sentinel = xgboost.XGBRegressor(n_estimators=2, max_depth=2, missing=-999.0).fit(marked, y)
    options = {"condition_on_target": True}
    by_sentinel = refit(read(sentinel), DENSITY, marked, y, **options)
    plain = xgboost.XGBRegressor(n_estimators=2, max_depth=2).fit(INCOMPLETE, y)
    by_nan = refit(read(plain), DENSITY, pd.DataFrame(INCOMPLETE), y, **options)
    np.testing.assert_allclose(by_sentinel.ensemble.value, by_nan.ensemble.value, atol=1e-8)


def test_progress_is_drawn_on_the_error_stream(model, capsys):
    refit(read(model), DENSITY, INCOMPLETE, y, verbose=True, condition_on_target=False)
    shown = capsys.readouterr()
    assert "300/300" in shown.err or "4/4" in shown.err
    assert not shown.out
    refit(read(model), DENSITY, INCOMPLETE, y, condition_on_target=False)
    assert not capsys.readouterr().err


def test_more_leaves_than_a_matrix_can_have_are_refused(model, monkeypatch):
    monkeypatch.setattr("knothole.leaves.refit.FOREST_LEAVES", 10)
    with pytest.raises(InvalidInput, match="use method='boosting'"):
        refit(read(model), DENSITY, INCOMPLETE, y, method="forest")


def test_nothing_to_refit():
    stump = replace(read(DecisionTreeRegressor(max_depth=1).fit(X, y)), tree_weight=np.zeros(1))
    with pytest.raises(InvalidInput, match="nothing to refit"):
        refit(stump, Factorized().fit(X), X, y)


@pytest.mark.parametrize("trees", [[0, 2], [1], [0, 1, 2]])
def test_some_trees_are_those_trees(trees):
    world = random_world(5, n_trees=3, n_outputs=2)
    ensemble = world.case.ensemble
    part, leaves = some_trees(ensemble, np.array(trees))
    rows = np.nan_to_num(world.case.rows)
    np.testing.assert_array_equal(leaves[part.leaves(rows)], ensemble.leaves(rows)[:, trees])
    np.testing.assert_array_equal(part.value, ensemble.value[leaves])


def test_only_a_single_tree_of_those_that_are_averaged_has_a_ridge():
    """A forest's average keeps probabilities from 0; a single tree has nothing else to."""
    label = y > 20
    for model, ridge in (
        (DecisionTreeClassifier(max_depth=4, random_state=0), 1.0),
        (RandomForestClassifier(3, max_depth=4, random_state=0), 0.0),
    ):
        ensemble = read(model.fit(INCOMPLETE, label))
        usual, given = (
            refit(ensemble, DENSITY, INCOMPLETE, label, **o) for o in ({}, {"ridge": ridge})
        )
        assert np.array_equal(usual.ensemble.value, given.ensemble.value)

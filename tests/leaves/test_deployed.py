"""Leaves that go on from the least expected loss to the least error of deployed predictions."""

from functools import reduce

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor
from tests.expectation.cases import EXACT, asked
from tests.leaves.worlds import problem_of, random_world, refit

from knothole.arrays import joined
from knothole.densities.gaussian.density import GaussianMixture
from knothole.densities.latent_tree.density import LatentTree
from knothole.densities.mixture.density import Factorized, Mixture
from knothole.errors import InvalidInput
from knothole.expectation.expectation import Expectation
from knothole.leaves import deployed, sums
from knothole.leaves.deployed import KAPPAS, DeployedSums
from knothole.trees.read import read

rng = np.random.default_rng(3)
X = rng.normal(size=(400, 3))
X[:, 1] += X[:, 0]
y = X @ [1.0, 2.0, 0.5] + 20
INCOMPLETE = X.copy()
INCOMPLETE[rng.random(X.shape) < 0.4] = np.nan
DENSITY = Mixture(4, random_state=0).fit(INCOMPLETE)
BOOSTED = xgboost.XGBRegressor(n_estimators=6, max_depth=3, learning_rate=0.4).fit(INCOMPLETE, y)
FOREST = RandomForestRegressor(4, max_depth=4, random_state=0).fit(INCOMPLETE, y)


def slow_move(probabilities, rest, weight, ridge, theta):
    """The move by its definition: every kappa's hat matrix is written out."""
    rows, unit = weight.sum() ** 2 / (weight @ weight), (weight @ weight) / weight.sum()
    chosen, least = np.zeros_like(theta), weight @ (rest**2).sum(axis=1)
    for kappa in unit * KAPPAS:
        inverse = np.linalg.inv(
            probabilities.T @ (weight[:, None] * probabilities)
            + (ridge + kappa) * np.eye(len(theta))
        )
        hat = probabilities @ inverse @ (probabilities.T * weight)
        move = inverse @ (probabilities.T @ (weight[:, None] * rest) - ridge * theta)
        left = weight @ ((rest - probabilities @ move) ** 2).sum(axis=1)
        score = left / (1 - np.trace(hat) / rows) ** 2
        if np.trace(hat) < rows and score < least:
            chosen, least = move, score
    return chosen


def slow_moved(ensemble, probabilities, y, weights, ridge, rate, theta, *, in_turn):
    """Every tree's leaves after their moves; y and theta above where they start.

    Trees in turn move by what those before leave, the others by what the average of all leaves.
    """
    moved = theta.copy()
    average = probabilities @ theta / (1 if in_turn else ensemble.n_trees)
    rest = y.copy() if in_turn else y - average
    for tree in range(ensemble.n_trees):
        own = ensemble.leaf_tree == tree
        best = theta[own] / rate
        target = rest - probabilities[:, own] @ best if in_turn else rest
        moved[own] += rate * slow_move(probabilities[:, own], target, weights[tree], ridge, best)
        if in_turn:
            rest -= probabilities[:, own] @ moved[own]
    return moved


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), ridge=st.sampled_from([0.0, 0.8]))
def test_a_move_is_the_least_of_what_it_minimises(seed, ridge):
    draw = np.random.default_rng(seed)
    probabilities = draw.dirichlet(np.full(5, 0.3), size=30) * (draw.random((30, 5)) < 0.7)
    rest, theta = draw.normal(size=(30, 2)), draw.normal(size=(5, 2))
    weight = draw.uniform(0.1, 2.0, 30)
    gathered = DeployedSums.of(sparse.csr_matrix(probabilities), rest, weight)
    np.testing.assert_allclose(
        gathered.solve(ridge, theta)[0],
        slow_move(probabilities, rest, weight, ridge, theta),
        atol=1e-9,
    )
    move, kappa = gathered.solve(ridge, theta, np.array([4.0]))
    if np.isinf(kappa):
        assert not move.any()
        return

    def objective(move):
        error = weight @ ((rest - probabilities @ move) ** 2).sum(axis=1)
        return error + ridge * ((theta + move) ** 2).sum() + kappa * (move**2).sum()

    gradient = -2 * probabilities.T @ (weight[:, None] * (rest - probabilities @ move))
    gradient += 2 * ridge * (theta + move) + 2 * kappa * move
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)
    for _ in range(10):
        assert objective(move + draw.normal(scale=0.1, size=move.shape)) > objective(move)


@pytest.mark.parametrize("density", EXACT)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31 - 1), ridge=st.sampled_from([0.0, 0.8]), averaged=st.booleans())
def test_moves_agree_with_enumeration(density, seed, ridge, averaged):
    """Leaf probabilities and predictions from every draw of every row, tree by tree."""
    n_trees = 3 if averaged else 1
    world = random_world(seed, density, n_rows=12, averaged=averaged, n_trees=n_trees, n_outputs=1)
    options = world.options | {"ridge": ridge, "method": "tree"}
    first = refit(*world.arguments, **options, objective="expected")
    found = refit(*world.arguments, **options, objective="deployed")
    problem, ensemble = problem_of(world), world.case.ensemble
    probabilities = np.zeros((12, ensemble.n_leaves))
    for row, answer in enumerate(world.answers):
        for probability, leaves in zip(answer.probability, answer.leaves, strict=True):
            probabilities[row, leaves] += probability
    unit, start = problem.tree_unit, problem.leaf_start
    theta = slow_moved(
        ensemble, probabilities, problem.y - problem.offset, [world.weight] * n_trees, ridge, 1.0,
        (world.theta(first.ensemble) - start) / unit, in_turn=False,
    )  # fmt: skip
    np.testing.assert_allclose(world.theta(found.ensemble), start + theta * unit, atol=1e-8)
    predictions = ensemble.base + probabilities @ world.theta(found.ensemble)
    error = world.weight @ ((world.y - predictions) ** 2).sum(axis=1) / world.weight.sum()
    np.testing.assert_allclose(found.summary.after, error, atol=1e-9)
    assert found.summary.objective == "deployed"
    assert found.summary.exact


@pytest.mark.parametrize("model", ["boosted", "forest"])
def test_moves_of_many_trees_agree_with_their_slow_twin(model):
    trained = BOOSTED if model == "boosted" else FOREST
    ensemble = read(trained)
    density = Factorized().fit(INCOMPLETE)  # under which there is something to gain
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    options = {"sample_weight": weight, "ridge": 0.7}
    first = refit(ensemble, density, INCOMPLETE, y, **options, objective="expected")
    found = refit(ensemble, density, INCOMPLETE, y, **options)
    probabilities = asked(
        Expectation.of(ensemble, density), "leaf_probabilities", INCOMPLETE
    ).toarray()
    in_turn = model == "boosted"
    mean = np.average(y, weights=weight)
    start = 0.0 if in_turn else mean
    rest = y - (ensemble.base[0] if in_turn else mean)
    weights = [weight] * ensemble.n_trees
    expected = slow_moved(
        ensemble, probabilities, rest[:, None], weights, 0.7, found.summary.learning_rate,
        first.ensemble.value - start, in_turn=in_turn,
    )  # fmt: skip
    np.testing.assert_allclose(found.ensemble.value, start + expected, atol=1e-8)
    assert np.abs(found.ensemble.value - first.ensemble.value).max() > 0.01


@pytest.mark.parametrize("trained", [BOOSTED, FOREST], ids=["boosted", "forest"])
def test_the_summary_has_the_errors_of_predictions(trained):
    found = refit(read(trained), DENSITY, INCOMPLETE, y)
    old, new = (
        np.mean((asked(Expectation.of(e, DENSITY), "margin", INCOMPLETE)[0][:, 0] - y) ** 2)
        for e in (read(trained), found.ensemble)
    )
    np.testing.assert_allclose([found.summary.before, found.summary.after], [old, new], rtol=1e-10)
    assert found.summary.objective == "deployed"
    assert found.summary.error == 0.0
    assert found.summary.exact


def test_draws_tell_their_standard_error():
    density = GaussianMixture(2, random_state=0).fit(INCOMPLETE)
    summary = refit(read(BOOSTED), density, INCOMPLETE, y).summary
    assert not summary.exact
    assert 0 < summary.error < 0.02 * summary.after


@pytest.mark.parametrize("ridge", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["boosted", "tree"])
def test_nothing_moves_on_complete_rows(kind, ridge):
    """Without missing values there is no spread, and both objectives are one."""
    if kind == "boosted":
        model = xgboost.XGBRegressor(n_estimators=5, max_depth=3, learning_rate=0.3).fit(X, y)
    else:
        model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, y)
    ensemble, density = read(model), Factorized().fit(X)
    options = {"ridge": ridge, "condition_on_target": False}
    expected = refit(ensemble, density, X, y, **options, objective="expected").ensemble
    moved = refit(ensemble, density, X, y, **options, objective="deployed").ensemble
    np.testing.assert_allclose(moved.value, expected.value, atol=1e-9)


def test_outputs_have_learning_rates_of_their_own():
    """Nothing moves in an output whose columns are complete, though the other's rate is raised."""
    draw = np.random.default_rng(6)
    table = draw.normal(size=(300, 4))
    incomplete = table.copy()
    incomplete[:, :2][draw.random((300, 2)) < 0.5] = np.nan
    noise = 0.5 * draw.normal(size=300)
    both = np.column_stack([table[:, :2] @ [1, 3], table[:, 2:] @ [1, 2] + noise])
    model = xgboost.XGBRegressor(n_estimators=4, max_depth=3, learning_rate=0.3)
    ensemble, density = read(model.fit(incomplete, both)), Factorized().fit(incomplete)
    options = {"condition_on_target": False}
    expected = refit(ensemble, density, incomplete, both, **options, objective="expected")
    moved = refit(ensemble, density, incomplete, both, **options, objective="deployed")
    assert expected.summary.learning_rate > 0.35
    change = np.abs(moved.ensemble.value - expected.ensemble.value)[:, 0]
    second = ensemble.tree_output[ensemble.leaf_tree] == 1
    assert change[second].max() < 1e-9
    assert change[~second].max() > 0.01


def test_large_trees_stay_behind(monkeypatch):
    model = RandomForestRegressor(4, min_samples_leaf=20, random_state=0).fit(INCOMPLETE, y)
    forest, density = read(model), Factorized().fit(INCOMPLETE)
    sizes = np.diff(forest.leaf_start)
    monkeypatch.setattr(deployed, "MOST_LEAVES", int(sizes.min()))
    expected = refit(forest, density, INCOMPLETE, y, objective="expected")
    found = refit(forest, density, INCOMPLETE, y)
    assert 0 < found.summary.moved == np.count_nonzero(sizes == sizes.min()) < len(sizes)
    moved = np.abs(found.ensemble.value - expected.ensemble.value)[:, 0] > 1e-3
    assert set(found.ensemble.leaf_tree[moved]) == set(np.flatnonzero(sizes == sizes.min()))


def test_the_summary_is_of_the_model_that_is_returned():
    """Also where draws have missed leaves that rows reach under p(X)."""
    tree = read(DecisionTreeRegressor(random_state=0).fit(INCOMPLETE, y))
    found = refit(tree, DENSITY, INCOMPLETE, y, integration="monte-carlo")
    assert len(found.summary.unreached)
    expectation = Expectation.of(tree, DENSITY, "monte-carlo").with_values(found.ensemble.value)
    margin = expectation.margin(expectation.evidence(INCOMPLETE))[0][:, 0]
    assert found.summary.after == pytest.approx(np.mean((margin - y) ** 2), rel=1e-12)


def test_predictions_for_other_rows_are_better():
    """Under a density that misses how columns hang together, where the spread is large."""
    draw = np.random.default_rng(5)
    table = draw.normal(size=(4000, 1)) + 0.3 * draw.normal(size=(4000, 3))
    target = table.sum(axis=1)
    table[draw.random(table.shape) < 0.5] = np.nan
    (rows, others), (known, unknown) = np.split(table, [2000]), np.split(target, [2000])
    tree = read(DecisionTreeRegressor(max_depth=5, random_state=0).fit(rows, known))
    density = Factorized().fit(rows)

    def error(objective):
        refitted = refit(tree, density, rows, known, objective=objective)
        return np.mean(
            (asked(Expectation.of(refitted.ensemble, density), "margin", others)[0][:, 0] - unknown)
            ** 2
        )

    assert error("deployed") < 0.9 * error("expected")


def test_forests_of_single_rows_keep_them():
    """No ridge by default: a leaf that holds one row is not drawn half way to the mean."""
    forest = RandomForestRegressor(3, max_features=1, bootstrap=False, random_state=0).fit(X, y)
    options = {"objective": "expected"}
    refitted = refit(read(forest), Factorized().fit(X), X, y, **options)
    np.testing.assert_allclose(refitted.ensemble.value, read(forest).value, atol=1e-9)
    drawn = refit(read(forest), Factorized().fit(X), X, y, **options, ridge=1.0)
    assert np.abs(drawn.ensemble.value - read(forest).value).max() > 1


@pytest.mark.parametrize("density", [DENSITY, LatentTree(2, random_state=0).fit(INCOMPLETE)])
def test_blocks_trees_and_threads_do_not_matter(density, monkeypatch):
    usual = refit(read(BOOSTED), density, INCOMPLETE, y, n_jobs=1).ensemble.value
    assert np.array_equal(
        refit(read(BOOSTED), density, INCOMPLETE, y, n_jobs=2).ensemble.value, usual
    )
    monkeypatch.setattr(deployed, "BLOCKS", (1, 57))
    monkeypatch.setattr(sums, "SAMPLE", 20)
    monkeypatch.setattr(sums, "ENTRIES", 1)
    in_parts = refit(read(BOOSTED), density, INCOMPLETE, y, n_jobs=2).ensemble.value
    np.testing.assert_allclose(in_parts, usual, atol=1e-10)


def test_sums_merge_in_any_order():
    draw = np.random.default_rng(6)
    probabilities = sparse.random(200, 6, 0.5, "csr", random_state=0)
    rest, weight, theta = draw.normal(size=(200, 1)), draw.random(200), draw.normal(size=(6, 1))
    whole = DeployedSums.of(probabilities, rest, weight)
    pairs = draw.permutation(200).reshape(100, 2)
    parts = [DeployedSums.of(probabilities[rows], rest[rows], weight[rows]) for rows in pairs]
    merged = reduce(joined, parts)
    np.testing.assert_allclose(merged.solve(1.0, theta)[0], whole.solve(1.0, theta)[0], atol=1e-10)


def test_the_unit_of_weights_does_not_matter():
    draw = np.random.default_rng(7)
    probabilities = sparse.csr_matrix(draw.dirichlet(np.full(4, 0.3), size=50))
    theta = draw.normal(size=(4, 1))
    rest, weight = probabilities @ draw.normal(size=(4, 1)) - probabilities @ theta, draw.random(50)
    one = DeployedSums.of(probabilities, rest, weight).solve(0.5, theta)
    many = DeployedSums.of(probabilities, rest, 100 * weight).solve(50.0, theta)
    assert many[1] == pytest.approx(100 * one[1])
    np.testing.assert_allclose(many[0], one[0], rtol=1e-9)
    assert np.isfinite(one[1])


def test_no_rows_no_move():
    move, kappa = DeployedSums.of(sparse.csr_matrix((0, 3)), np.empty((0, 1)), np.empty(0)).solve(
        1.0, np.ones((3, 1))
    )
    assert not move.any()
    assert kappa == np.inf


def test_what_auto_stands_for(monkeypatch):
    def objective(model, target=y, **options):
        return refit(read(model), DENSITY, INCOMPLETE, target, **options).summary.objective

    labels = y > 20
    classifier = RandomForestClassifier(2, max_depth=2, random_state=0).fit(INCOMPLETE, labels)
    assert objective(FOREST) == "deployed"
    assert objective(FOREST, condition_on_target=False) == "expected"
    assert objective(BOOSTED, method="forest") == "expected"
    assert objective(classifier, labels) == "expected"
    monkeypatch.setattr(deployed, "MOST_LEAVES", 4)
    assert objective(FOREST) == "expected"
    with pytest.raises(InvalidInput, match="more than 4 leaves"):
        objective(FOREST, objective="deployed")
    with pytest.raises(InvalidInput, match="tree by tree"):
        objective(BOOSTED, method="forest", objective="deployed")
    with pytest.raises(InvalidInput, match="predicts probabilities"):
        objective(classifier, labels, objective="deployed")

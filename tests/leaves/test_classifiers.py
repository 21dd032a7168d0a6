"""Boosted classifiers: the expected log loss goes down, to its minimum."""

from dataclasses import replace

import numpy as np
import pytest
import xgboost
from scipy.optimize import minimize
from tests.leaves.worlds import problem_of, random_world, refit

from knothole.densities.mixture.density import Mixture
from knothole.errors import UnsupportedModel
from knothole.expectation.expectation import Expectation
from knothole.leaves import draws
from knothole.leaves.draws import DrawnLeaves
from knothole.leaves.losses import Logistic, Softmax, Squared
from knothole.trees.links import Link
from knothole.trees.read import read, write

rng = np.random.default_rng(1)


def classifier_world(link, outputs, n_rows=80, scale=1.0):
    world = random_world(7, n_rows=n_rows, n_trees=4, n_outputs=outputs, rate=0.4)
    ensemble = replace(world.case.ensemble, link=Link(link, scale))
    world = replace(world, case=replace(world.case, ensemble=ensemble))
    if outputs == 1:
        y = (rng.random((n_rows, 1)) < 0.3).astype(float)
    else:
        y = np.eye(outputs)[rng.integers(0, outputs, n_rows)]
    return replace(world, y=y)


def draws_of(world):
    expectation = Expectation.of(world.case.ensemble, world.case.density, "monte-carlo")
    evidence = expectation.density.evidence(world.table, world.case.missing_mask)
    return DrawnLeaves(expectation.monte_carlo, evidence, world.weight)


@pytest.mark.parametrize(
    "loss", [Logistic(1.0), Logistic(0.5), Softmax(1.0), Softmax(2.0), Squared()]
)
def test_derivatives_and_bounds(loss):
    """By finite differences; and the second derivative stays below its bound."""
    margin = rng.normal(size=(100, 3)) * 4
    y = np.eye(3)[rng.integers(0, 3, 100)]
    first, second = loss.derivatives(margin, y)
    step = 1e-5
    for output in range(3):
        shift = np.zeros((1, 3))
        shift[0, output] = step
        up, down = loss.value(margin + shift, y), loss.value(margin - shift, y)
        np.testing.assert_allclose((up - down) / (2 * step), first[:, output], atol=1e-6)
        middle = loss.value(margin, y)
        np.testing.assert_allclose((up + down - 2 * middle) / step**2, second[:, output], atol=1e-3)
    assert (second <= loss.curvature + 1e-12).all()
    direction = rng.normal(size=margin.shape)
    bound = (
        loss.value(margin, y)
        + (first * direction).sum(axis=1)
        + loss.curvature / 2 * (direction**2).sum(axis=1)
    )
    assert (loss.value(margin + direction, y) <= bound + 1e-9).all()


@pytest.mark.parametrize(
    ("link", "outputs", "scale"),
    [("sigmoid", 1, 1.0), ("sigmoid", 1, 0.5), ("sigmoid", 3, 1.0), ("softmax", 3, 1.0)],
)
@pytest.mark.parametrize("method", ["forest", "boosting"])
def test_the_expected_loss_never_rises(link, outputs, scale, method, monkeypatch):
    world = classifier_world(link, outputs, scale=scale)
    problem, drawn = problem_of(world), draws_of(world)
    values = []
    if method == "forest":
        for steps in range(1, 6):
            monkeypatch.setattr(draws, "STEPS", steps)
            theta = draws.forest(problem, drawn, 0.5)
            pull = 0.25 * ((theta - problem.leaf_start) ** 2).sum()
            values.append(draws.expected_loss(problem, drawn, theta) + pull)
    else:
        theta, loss = draws.boosting(problem, drawn, 0.5, 1.0)
        for tree in range(problem.ensemble.n_trees + 1):  # the trees after it at their start
            later = problem.ensemble.leaf_tree >= tree
            part = np.where(later[:, None], problem.leaf_start, theta)
            values.append(draws.expected_loss(problem, drawn, part))
        assert values[-1] == pytest.approx(loss, rel=1e-12)
    assert values[-1] < values[0]
    assert (np.diff(values) <= 1e-9).all()


@pytest.mark.parametrize(("link", "outputs"), [("sigmoid", 1), ("softmax", 3)])
def test_steps_arrive_at_the_minimum(link, outputs, monkeypatch):
    """Compared with a general optimiser on the same draws."""
    world = classifier_world(link, outputs, n_rows=30)
    problem, drawn = problem_of(world), draws_of(world)
    ridge = 0.5
    monkeypatch.setattr(draws, "GAIN", 0.0)
    monkeypatch.setattr(draws, "STEPS", 2000)
    found = draws.forest(problem, drawn, ridge)
    start = problem.leaf_start

    def objective(flat):
        theta = flat.reshape(start.shape)
        value, everyone = draws.expected_loss(problem, drawn, theta), slice(0, len(drawn.row))
        margin = problem.ensemble.base + drawn.margins(theta, everyone)
        slope = problem.loss.derivatives(margin, problem.y[drawn.row])[0]
        gradient, pull = drawn.by_all_leaves(slope, everyone), theta - start
        return value + ridge / 2 * (pull**2).sum(), (gradient + ridge * pull).ravel()

    best = minimize(
        objective, problem.theta.ravel(), jac=True, method="BFGS", options={"gtol": 1e-8}
    )
    np.testing.assert_allclose(objective(found.ravel())[0], best.fun, rtol=1e-8)
    np.testing.assert_allclose(objective(found.ravel())[1], 0.0, atol=1e-4)


def table_with_missing(n=400):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 4))
    X[:, 3] = X[:, 0] + 0.3 * rng.normal(size=n)
    score = X[:, 0] - X[:, 1]
    X[rng.random(X.shape) < 0.3] = np.nan
    return X, score


@pytest.mark.parametrize("classes", [2, 3])
def test_xgboost_classifier_through_refit_and_back(classes):
    X, score = table_with_missing()
    y = np.digitize(score, [0.0] if classes == 2 else [-0.7, 0.7])
    model = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(X, y)
    ensemble = read(model)
    density = Mixture(4, random_state=0).fit(X)
    refitted = refit(ensemble, density, X, y)
    assert refitted.summary.method == "boosting"
    assert refitted.summary.loss == "log loss"
    assert refitted.summary.conditioned == "labels"
    assert refitted.summary.after < refitted.summary.before
    written = write(model, refitted.ensemble)
    complete = np.nan_to_num(X)
    np.testing.assert_allclose(
        written.predict_proba(complete)[:, -1],
        refitted.ensemble.predict(complete)[:, -1],
        atol=1e-5,
    )


def test_log_links_are_refused():
    X, score = table_with_missing(100)
    model = xgboost.XGBRegressor(n_estimators=2, objective="count:poisson").fit(X, np.exp(score))
    with pytest.raises(UnsupportedModel, match="expand"):
        refit(read(model), Mixture(2, random_state=0).fit(X), X, np.exp(score))

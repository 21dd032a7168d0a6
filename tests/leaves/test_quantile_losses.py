"""Quantile, absolute-error and Huber models are refitted by their own loss, others are refused."""

from dataclasses import replace
from itertools import pairwise

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.ensemble import (
    BaggingRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeRegressor
from tests.leaves.worlds import problem_of, random_world, refit

import knothole as kh
from knothole.errors import InvalidInput, UnsupportedModel
from knothole.expectation.expectation import Expectation
from knothole.leaves import draws
from knothole.leaves.draws import DrawnLeaves
from knothole.leaves.losses import Huber, Pinball, PseudoHuber, weighted_quantile
from knothole.leaves.problem import Problem
from knothole.trees.ensemble import Recipe
from knothole.trees.read import read

seeds, ridges = st.integers(0, 10_000), st.sampled_from([0.0, 0.7])
LEVELS = (0.2, 0.75)
RECIPES = [Recipe(LEVELS), Recipe(loss="Huber", delta=0.4), Recipe(loss="pseudo-Huber", delta=0.4)]


def slow_loss(recipe, rest, output=0):
    """The loss of what is left of y, written down once more."""
    if recipe.loss == "Huber":
        far = np.abs(rest) > recipe.delta
        linear = recipe.delta * (np.abs(rest) - recipe.delta / 2)
        return np.where(far, linear, rest**2 / 2)
    if recipe.loss == "pseudo-Huber":
        return recipe.delta**2 * (np.sqrt(1 + (rest / recipe.delta) ** 2) - 1)
    level = recipe.levels[output]
    return np.where(rest > 0, level * rest, (level - 1) * rest)


def trained(world, recipe):
    ensemble = world.case.ensemble.trained_by(recipe)
    return replace(world, case=replace(world.case, ensemble=ensemble))


def entries(world, theta, tree):
    """(leaf, row, weight, margin without the tree) of every completion of every row."""
    others = np.where((world.case.ensemble.leaf_tree == tree)[:, None], 0.0, theta)
    for n, (answer, margin) in enumerate(zip(world.answers, world.margins(others), strict=True)):
        yield from zip(
            answer.leaves[:, tree], [n] * len(margin), world.weight[n] * answer.probability,
            margin, strict=True,
        )  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
@settings(max_examples=6, deadline=None)
@given(seed=seeds, ridge=ridges, averaged=st.booleans())
def test_no_leaves_of_a_tree_are_better(recipe, seed, ridge, averaged):
    """By enumeration, against every y and a search around; the losses told are right, too."""
    shape = {"n_trees": 3} if averaged else {"n_trees": 1}
    world = random_world(seed, averaged=averaged, width=2, n_outputs=2, **shape)
    world = trained(world, recipe)
    found = refit(*world.arguments, **world.options, ridge=ridge)
    summary, ensemble = found.summary, found.ensemble
    assert summary.exact and summary.method == "tree" and summary.objective == "expected"
    start, old = problem_of(world).offset, world.case.ensemble
    told, told_before = [], []
    for tree, (first, stop) in enumerate(pairwise(ensemble.leaf_start)):
        told.append(0.0)
        told_before.append(0.0)
        for leaf, k in np.ndindex(stop - first, 2):
            rows = [(world.y[n, k], w * r) for n, w, r in leaf_rows(world, first + leaf)]
            if not rows:
                continue
            y, weight = np.array(rows).T
            rest, value = y - start[k], ensemble.value[first + leaf, k]
            value = value if averaged else value * ensemble.tree_weight[tree]
            value += ensemble.base[k] - start[k]

            def objective(v, rest=rest, weight=weight, k=k):
                pull = ridge * slow_loss(recipe, -v, k) if recipe.levels else ridge * v**2 / 2
                return weight @ slow_loss(recipe, rest - v, k) + pull

            least = objective(value)
            told[-1] += weight @ slow_loss(recipe, rest - value, k)
            before = old.value[first + leaf, k]
            before = before if averaged else before * old.tree_weight[tree]
            told_before[-1] += weight @ slow_loss(recipe, y - old.base[k] - before, k)
            around = minimize_scalar(objective, bounds=(-9, 9), method="bounded").fun
            assert least <= min(*map(objective, rest), objective(0.0), around) + 1e-9
            if recipe.loss:
                slope = (objective(value + 1e-6) - objective(value - 1e-6)) / 2e-6
                assert slope == pytest.approx(0.0, abs=1e-5)
    for own, each in ((summary.after, told), (summary.before, told_before)):
        total = np.mean(each) if averaged else np.sum(each)
        assert own == pytest.approx(total / world.weight.sum(), abs=1e-9)
    assert ridge or summary.after <= summary.before + 1e-9


def leaf_rows(world, leaf):
    """(row, weight, leaf probability) of the rows that reach a leaf."""
    for n, answer in enumerate(world.answers):
        if answer.leaf_probabilities[leaf] > 0:
            yield n, world.weight[n], answer.leaf_probabilities[leaf]


@settings(max_examples=4, deadline=None)
@given(seed=seeds, rate=st.sampled_from([1.0, 0.3]))
def test_boosted_quantiles_are_best_in_their_turn(seed, rate):
    """Against enumeration; many draws stand for all completions."""
    world = trained(random_world(seed, n_trees=3, n_outputs=2), Recipe(LEVELS))
    options = world.options | {"learning_rate": rate, "words": 64, "method": "boosting"}
    found = refit(*world.arguments, **options)
    theta, start = world.theta(found.ensemble), problem_of(world).leaf_start
    for tree in range(found.ensemble.n_trees):
        later = found.ensemble.leaf_tree > tree
        k = found.ensemble.tree_output[tree]
        given = list(entries(world, np.where(later[:, None], start, theta), tree))
        for leaf in {one[0] for one in given}:
            rows = [(world.y[n, k] - m[k] - start[leaf, 0], w) for i, n, w, m in given if i == leaf]
            rest, weight = np.array(rows).T
            best = min(weight @ slow_loss(Recipe(LEVELS), rest - v, k) for v in rest)
            full = (theta[leaf, 0] - start[leaf, 0]) / rate
            mine = weight @ slow_loss(Recipe(LEVELS), rest - full, k)
            assert leaf in found.summary.unreached or mine <= best + 0.02 * world.weight.sum()


def test_the_quantile_is_the_naive_one():
    rng = np.random.default_rng(0)
    for _ in range(100):
        values, counts = rng.integers(0, 9, 6).astype(float), rng.integers(0, 4, 6)
        if counts.any():
            level = rng.choice([0.1, 0.25, 0.5, 0.9])
            naive = np.quantile(np.repeat(values, counts), level, method="averaged_inverted_cdf")
            assert weighted_quantile(values, counts.astype(float), level) == naive


@pytest.mark.parametrize("loss", [Huber(delta=0.7), PseudoHuber(2.0, delta=0.7), Pinball(2.0)])
def test_derivatives_are_slopes(loss):
    rng = np.random.default_rng(0)
    F, y = rng.normal(size=(2, 120, 1))
    slope = (loss.value(F + 1e-6, y) - loss.value(F - 1e-6, y)) / 2e-6
    first, second = loss.derivatives(F, y)
    np.testing.assert_allclose(first[:, 0], slope, atol=1e-5)
    assert (second <= loss.curvature).all()


# ---- models of the libraries ------------------------------------------------------------------

rng = np.random.default_rng(0)
X = rng.normal(size=(300, 4))
X[:, 3] += X[:, 0]
y = X[:, 0] - 2 * (X[:, 1] > 0.3) + 0.5 * rng.normal(size=300)
INCOMPLETE = np.where(rng.random(X.shape) < 0.3, np.nan, X)
DENSITY = kh.Factorized().fit(X)


@pytest.mark.parametrize(
    "model",
    [
        DecisionTreeRegressor(criterion="absolute_error", max_depth=3),
        RandomForestRegressor(
            4, criterion="absolute_error", max_depth=3, bootstrap=False, random_state=0
        ),
        BaggingRegressor(
            DecisionTreeRegressor(criterion="absolute_error", max_depth=3),
            3,
            bootstrap=False,
            random_state=0,
        ),
    ],
)
def test_complete_rows_have_the_medians_of_their_leaves(model):
    ensemble = read(model.fit(X, y))
    found = refit(ensemble, DENSITY, X, y)
    np.testing.assert_allclose(found.ensemble.value, ensemble.value, atol=1e-12)
    assert found.summary.loss == "pinball loss"


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("tell", [True, False])
def test_complete_rows_have_the_boosted_quantiles_of_libraries(level, tell):
    """The rate is that of the leaves where none is told; scikit-learn has no other quantile."""
    model = HistGradientBoostingRegressor(
        loss="quantile", quantile=level, max_iter=6, learning_rate=0.3, max_leaf_nodes=6
    )
    ensemble = read(model.fit(X, y))
    if not tell:
        ensemble = ensemble.trained_by(replace(ensemble.recipe, learning_rate=None))
    found = refit(ensemble, DENSITY, X, y)
    assert found.summary.learning_rate == pytest.approx(0.3, rel=0.03)
    error = np.abs(found.ensemble.margin(X) - ensemble.margin(X)).mean()
    assert error < 0.1 * y.std()


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        (xgboost.XGBRegressor(n_estimators=6, objective="reg:pseudohubererror", huber_slope=0.4),
         ("pseudo-Huber", 0.4)),
        (lightgbm.LGBMRegressor(n_estimators=6, objective="huber", alpha=0.4, verbose=-1),
         ("Huber", 0.4)),
        (catboost.CatBoostRegressor(iterations=6, depth=3, loss_function="Huber:delta=0.4",
                                    verbose=0, allow_writing_files=False), ("Huber", 0.4)),
        (GradientBoostingRegressor(n_estimators=6, loss="huber"), ("Huber", None)),
    ],
)  # fmt: skip
def test_huber_losses_are_read_and_lowered(model, recipe):
    ensemble = read(model.fit(X if "Gradient" in type(model).__name__ else INCOMPLETE, y))
    assert ensemble.recipe.loss == recipe[0]
    assert ensemble.recipe.delta == pytest.approx(recipe[1] or model._loss.closs.delta)
    options = {"condition_on_target": False, "ridge": 0.0, "method": "forest"}
    found = refit(ensemble, DENSITY, INCOMPLETE, y, **options)
    assert found.summary.loss == f"{recipe[0]} loss"
    assert found.summary.after <= found.summary.before + 4 * found.summary.error
    moved = refit(ensemble, DENSITY, INCOMPLETE, y)
    assert (moved.summary.objective, moved.summary.method) == ("deployed", "boosting")
    assert moved.summary.moved > 0


def drawn_problem(recipe, n_trees=6):
    model = HistGradientBoostingRegressor(max_iter=n_trees, max_leaf_nodes=6).fit(INCOMPLETE, y)
    problem = Problem.of(read(model).trained_by(recipe), y, np.ones(len(y)))
    expectation = Expectation.of(problem.ensemble, DENSITY)
    evidence = expectation.evidence_of(INCOMPLETE)
    return problem, DrawnLeaves(expectation.monte_carlo, evidence, problem.row_weight)


@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_the_expected_huber_loss_never_rises(recipe, monkeypatch):
    problem, drawn = drawn_problem(recipe)
    everyone, start = slice(0, len(drawn.row)), problem.leaf_start
    for ridge in (0.0, 1.0):
        values = []
        for steps in (1, 2, 3, 4, 200):
            monkeypatch.setattr(draws, "STEPS", steps)
            theta = draws.forest(problem, drawn, ridge)
            pull = 0.5 * ridge * ((theta - start) ** 2).sum()
            values.append(draws.expected_loss(problem, drawn, theta) + pull)
        assert (np.diff(values) <= 1e-9 * values[0]).all()
        margin = problem.ensemble.base + drawn.margins(theta, everyone)
        first = problem.loss.derivatives(margin, problem.y[drawn.row])[0]
        slope = drawn.by_all_leaves(first, everyone) + ridge * (theta - start)
        assert np.abs(slope).max() < 5e-3 * len(y)
    theta, loss = draws.boosting(problem, drawn, 0.0, 0.5)
    values = []
    for tree in range(problem.ensemble.n_trees + 1):  # the trees after it at their start
        later = problem.ensemble.leaf_tree >= tree
        part = np.where(later[:, None], start, theta)
        values.append(draws.expected_loss(problem, drawn, part))
    assert values[-1] == pytest.approx(loss, rel=1e-12)
    assert (np.diff(values) <= 1e-9 * values[0]).all()


def test_boosted_quantiles_of_the_first_tree_are_those_of_its_draws():
    problem, drawn = drawn_problem(Recipe((0.3,)), n_trees=2)
    theta, _ = draws.boosting(problem, drawn, 0.0, 1.0)
    rest, first = y - problem.offset[0], drawn.leaves_of(0)
    weights = [
        np.bincount(drawn.row, drawn.weight * (drawn.leaf[0] == leaf)) for leaf in range(first.stop)
    ]
    naive = [weighted_quantile(rest, weight, 0.3) for weight in weights]
    np.testing.assert_allclose((theta - problem.leaf_start)[first, 0], naive, atol=1e-12)


def test_trees_by_completions_are_close_to_exact_ones():
    model = RandomForestRegressor(3, criterion="absolute_error", max_depth=3, random_state=0)
    ensemble, options = read(model.fit(X, y)), {"condition_on_target": False, "words": 16}
    exact, drawn = (
        refit(ensemble, DENSITY, INCOMPLETE, y, integration=integration, **options)
        for integration in ("exact", "monte-carlo")
    )
    assert exact.summary.exact and not drawn.summary.exact and drawn.summary.error > 0
    assert drawn.summary.after == pytest.approx(exact.summary.after, abs=6 * drawn.summary.error)


def cat(loss):
    return catboost.CatBoostRegressor(
        iterations=2, loss_function=loss, verbose=0, allow_writing_files=False
    )


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (xgboost.XGBRegressor(n_estimators=2, objective="reg:squaredlogerror"), "squaredlog"),
        (xgboost.XGBRegressor(n_estimators=2, objective="reg:tweedie"), "reg:tweedie"),
        (xgboost.XGBRegressor(n_estimators=2, objective="survival:cox"), "survival:cox"),
        (lightgbm.LGBMRegressor(n_estimators=2, objective="fair", verbose=-1), "fair"),
        (lightgbm.LGBMRegressor(n_estimators=2, objective="mape", verbose=-1), "mape"),
        (lightgbm.LGBMRegressor(n_estimators=2, objective="gamma", verbose=-1), "gamma"),
        (HistGradientBoostingRegressor(loss="poisson", max_iter=2), "poisson"),
        (cat("Expectile:alpha=0.3"), "Expectile"),
        (cat("MAPE"), "MAPE"),
    ],
)  # fmt: skip
def test_other_losses_are_refused_by_name(model, name):
    ensemble = read(model.fit(X, np.abs(y)))
    with pytest.raises(UnsupportedModel, match=f"{name}.*expand"):
        refit(ensemble, DENSITY, INCOMPLETE, np.abs(y))


def test_what_a_file_does_not_tell_is_refused():
    ensemble = read(DecisionTreeRegressor(max_depth=2).fit(X, y))
    with pytest.raises(UnsupportedModel, match="becomes linear"):
        refit(ensemble.trained_by(Recipe(loss="Huber")), DENSITY, INCOMPLETE, y)
    with pytest.raises(InvalidInput, match="no closed form"):
        refit(ensemble.trained_by(Recipe(LEVELS[:1])), DENSITY, INCOMPLETE, y, method="forest")


def test_several_quantiles_of_one_target_have_a_level_each():
    model = xgboost.XGBRegressor(
        n_estimators=30, max_depth=2, objective="reg:quantileerror", quantile_alpha=[0.1, 0.9]
    ).fit(INCOMPLETE, y)
    found = refit(read(model), DENSITY, INCOMPLETE, y)
    assert found.summary.loss == "pinball loss"
    covered = (y[:, None] <= found.ensemble.margin(X)).mean(axis=0)
    assert covered[0] < 0.3 and covered[1] > 0.7


def skewed(n, seed):
    """Two pairs of columns that tell of each other, and errors that depend on one."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 2))
    X = np.column_stack([hidden + 0.4 * rng.normal(size=(n, 2)), hidden, rng.normal(size=n)])
    scale = 0.5 + 0.4 * (X[:, 1] > 0)
    return X, X[:, 0] + np.abs(X[:, 2]) + 0.5 * X[:, 4] + scale * rng.normal(size=n)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::knothole.errors.NotAMean")
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "gradient", "hist"])
def test_deployed_quantiles_do_not_lose(library, level, rate):
    """Held-out pinball loss, at most a standard error above the original; coverage no further off.

    The standard error is that of the loss of the original model.
    """
    model = {
        "lightgbm": lightgbm.LGBMRegressor(
            n_estimators=40, num_leaves=8, objective="quantile", alpha=level, verbose=-1
        ),
        "xgboost": xgboost.XGBRegressor(
            n_estimators=30, max_depth=3, objective="reg:quantileerror", quantile_alpha=level
        ),
        "gradient": GradientBoostingRegressor(n_estimators=40, loss="quantile", alpha=level),
        "hist": HistGradientBoostingRegressor(max_iter=40, loss="quantile", quantile=level),
    }[library]
    rng = np.random.default_rng(2)
    (train, y), (test, truth) = skewed(1500, 0), skewed(3000, 1)
    complete, (train, test) = train, (
        np.where(rng.random(part.shape) < rate, np.nan, part) for part in (train, test)
    )  # fmt: skip
    model.fit(complete if library == "gradient" else train, y)  # which takes no NaN
    robust = kh.wrap(model, train, density=kh.Mixture(12, random_state=0), nan_policy="lost")
    answers = [each.predict(test) for each in (robust, robust.refit_leaves(train, y))]
    loss = [slow_loss(Recipe((level,)), truth - answer) for answer in answers]
    covered = [(truth <= answer).mean() for answer in answers]
    assert loss[1].mean() <= loss[0].mean() + loss[0].std() / np.sqrt(len(truth))
    assert abs(covered[1] - level) <= max(abs(covered[0] - level), 0.03)
    if level == 0.9:
        assert loss[1].mean() < loss[0].mean()
        assert rate == 0.1 or covered[0] < covered[1]

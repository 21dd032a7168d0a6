"""ExpectedRegressor and ExpectedClassifier whose trees grow under the expected loss."""

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostRegressor
from lightgbm import LGBMRegressor
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from xgboost import XGBClassifier, XGBRegressor

import knothole as kh
from knothole import growing
from knothole.errors import InvalidInput
from knothole.missingness import mcar

rng = np.random.default_rng(0)
N = 300
A = rng.normal(size=N)
TABLE = pd.DataFrame(
    {
        "a": A,
        "b": A + 0.4 * rng.normal(size=N),
        "hue": pd.Categorical(np.where(A > 0.3, "red", rng.choice(["blue", "grey"], N))),
    }
)
Y = 2 * A + (TABLE["hue"] == "blue").to_numpy() + 0.2 * rng.normal(size=N)
INCOMPLETE = mcar(TABLE, 0.3, 1)
TEST = mcar(TABLE, 0.3, 2)
DENSITY = kh.Mixture(4, random_state=0)
NUMBERS = TABLE[["a", "b"]].to_numpy()


def expected(model, **options):
    return kh.ExpectedRegressor(model, **{"density": DENSITY, "learn": "expected"} | options)


def trees(**options):
    return XGBRegressor(n_estimators=20, max_depth=3, n_jobs=1, **options)


ESTIMATORS = [
    trees(subsample=0.8, random_state=1),
    LGBMRegressor(n_estimators=10, verbose=-1, n_jobs=1, bagging_fraction=0.8, bagging_freq=1),
    CatBoostRegressor(iterations=10, verbose=0, thread_count=1, allow_writing_files=False),
    DecisionTreeRegressor(max_depth=4, random_state=0),
    RandomForestRegressor(5, random_state=0),
    HistGradientBoostingRegressor(max_iter=10, random_state=0),
    GradientBoostingRegressor(n_estimators=10, random_state=0),
]
NAMES = [type(estimator).__name__ for estimator in ESTIMATORS]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_complete_rows_give_the_very_same_model(estimator):
    from sklearn.base import clone

    plain = clone(estimator).fit(NUMBERS, Y, sample_weight=1 + (A > 0)).predict(NUMBERS)
    for learn in ("expected", "auto"):
        found = expected(estimator, learn=learn).fit(NUMBERS, Y, sample_weight=1 + (A > 0))
        np.testing.assert_array_equal(found.estimator_.predict(NUMBERS), plain)
        assert found.trial_ is None


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=NAMES)
def test_every_library_grows_on_missing_values_and_answers_them(estimator):
    incomplete, test = (table[["a", "b"]].to_numpy() for table in (INCOMPLETE, TEST))
    found = expected(estimator).fit(incomplete, Y)
    assert type(found.estimator_) is type(estimator)
    assert found.score(test, Y) > 0.6
    # What the trees are given has no missing values; what they answer, under p(X), may have.
    assert not found.robust_.density_.target_
    assert not found.robust_.columns_.nullable.any()
    complete = found.estimator_.predict(NUMBERS)
    np.testing.assert_allclose(found.predict(NUMBERS), complete, rtol=1e-5)


def test_grown_beats_own_where_columns_tell_each_other():
    big = np.random.default_rng(3)
    X = big.multivariate_normal(np.zeros(4), 0.8 + 0.2 * np.eye(4), 3000)
    y = X @ [1.0, -2.0, 2.0, 1.0] + 0.1 * big.normal(size=3000)
    incomplete = mcar(X, 0.4, 1)
    errors = {}
    for learn in ("own", "expected"):
        model = kh.ExpectedRegressor(
            trees(), density=kh.GaussianMixture(1, random_state=0), learn=learn, nan_policy="lost"
        )
        answer = model.fit(incomplete[:1500], y[:1500]).predict(incomplete[1500:])
        errors[learn] = np.sqrt(np.mean((answer - y[1500:]) ** 2))
    assert errors["expected"] < 0.97 * errors["own"]


def test_classifiers_grow_too():
    labels = np.where(Y > 0.5, "high", "low")
    tree = DecisionTreeClassifier(max_depth=4, random_state=0)
    found = kh.ExpectedClassifier(tree, density=DENSITY, learn="expected")
    table = INCOMPLETE[["a", "b"]]
    assert found.fit(table, labels).score(TEST[["a", "b"]], labels) > 0.75
    assert list(found.classes_) == ["high", "low"]


def test_types_and_categories_reach_the_estimator_as_they_are():
    found = expected(trees(enable_categorical=True)).fit(INCOMPLETE, Y)
    assert found.score(TEST, Y) > 0.6
    assert found.robust_.columns_[2].levels == ("blue", "grey", "red")


def test_labels_of_a_rare_class_are_completed_all_the_same():
    codes = np.where(Y > 1, 1, 0)
    codes[:3] = 2
    found = kh.ExpectedClassifier(
        XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1), density=DENSITY, learn="expected"
    )
    assert found.fit(INCOMPLETE[["a", "b"]], codes).predict_proba(TEST[["a", "b"]]).shape == (N, 3)


# --- densities that are not told ------------------------------------------------------------------


class Seen(Exception):
    pass


def grounds(monkeypatch, model, *fit, **options):
    """The ground that trees would grow on."""

    def stop(ground, first, ways):
        raise Seen(ground, ways)

    monkeypatch.setattr(growing, "compare", stop)
    with pytest.raises(Seen) as found:
        expected(model, **{"learn": "auto"} | options).fit(*fit)
    return found.value.args


def test_rows_are_completed_by_densities_that_have_not_learned_them(monkeypatch):
    ground, _ = grounds(monkeypatch, trees(), INCOMPLETE[["a", "b"]], Y)
    learned = []

    class Watching(type(ground.base)):
        def fit_matrix(self, matrix, columns, **options):
            learned.append(matrix)
            return super().fit_matrix(matrix, columns, **options)

    monkeypatch.setattr(growing, "of_same_size", lambda *_: Watching(4, random_state=0))
    parts = ground.parts
    rows = np.concatenate([of for _, of in parts])
    np.testing.assert_array_equal(np.sort(rows), np.arange(N))
    for (_, of), matrix in zip(parts[1:], learned, strict=True):
        assert len(matrix) == N - len(of) and len(of) == N / growing.FOLDS
        assert not set(map(tuple, matrix[~np.isnan(matrix).any(axis=1)])) & set(
            map(tuple, ground.training.matrix[of])
        )


def test_a_density_over_y_that_was_given_is_used_as_it_is(monkeypatch):
    given = kh.Mixture(4, random_state=0).fit(INCOMPLETE[["a", "b"]], target=Y)
    ground, _ = grounds(monkeypatch, trees(), INCOMPLETE[["a", "b"]], Y, density=given)
    ((density, rows), *others) = ground.parts
    assert density is given and len(rows) == N and not others


# --- what NaN means ------------------------------------------------------------------------------


def told(seed=5):
    """Missing values at random in "a"; in "b" they say that y is larger."""
    local = np.random.default_rng(seed)
    X = local.normal(size=(600, 2))
    X[:, 1] += X[:, 0]
    gone = local.random(600) < 0.3
    y = X[:, 0] + 3 * gone + 0.3 * local.normal(size=600)
    X[gone, 1] = np.nan
    X[local.random(600) < 0.3, 0] = np.nan
    return pd.DataFrame(X, columns=["a", "b"]), y


@pytest.mark.parametrize("labels", [False, True])
def test_nan_that_says_something_of_y_is_kept_as_a_value(labels):
    X, y = told()
    target = (y > y.mean()).astype(int) if labels else y
    kind = kh.ExpectedClassifier if labels else kh.ExpectedRegressor
    model = (XGBClassifier if labels else XGBRegressor)(n_estimators=20, max_depth=3, n_jobs=1)
    found = kind(model, density=DENSITY, learn="expected").fit(X, target)
    assert [column.nullable for column in found.robust_.columns_] == [False, True]
    test, y_test = told(6)
    every = kind(model, density=DENSITY, learn="expected", nan_policy="lost").fit(X, target)
    assert not every.robust_.columns_.nullable.any()
    y_test = (y_test > y.mean()).astype(int) if labels else y_test
    assert found.score(test, y_test) > every.score(test, y_test) + (0.04 if labels else 0.1)


def test_columns_declared_nullable_keep_their_nan():
    X, y = told()
    columns = kh.Columns.infer(X).with_nullable([True, False])
    density = kh.Mixture(4, random_state=0).fit(X, columns=columns)
    found = kh.ExpectedRegressor(trees(), density=density, learn="expected", nan_policy="lost")
    assert [c.nullable for c in found.fit(X, y).robust_.columns_] == [True, False]


# --- which way -----------------------------------------------------------------------------------


def test_the_way_that_is_best_on_rows_held_out_is_taken(monkeypatch):
    losses = {("expected", 0.0): 3.0, ("expected", 0.3): 2.0, ("own", 0.0): 4.0}
    asked = []

    def judged(ground, first, ways):
        asked.extend(ways)
        loss = [losses[way.learn, way.redraw] + 0.1 * way.refit_leaves for way in ways]
        return pd.DataFrame(ways).assign(loss=loss, error=0.0)

    monkeypatch.setattr(growing, "compare", judged)
    taken = []
    real = growing.TrainingContext.model
    monkeypatch.setattr(
        growing.TrainingContext, "model", lambda self, way: taken.append(way) or real(self, way)
    )
    found = expected(trees(), learn="auto", refit_leaves="auto").fit(INCOMPLETE[["a", "b"]], Y)
    assert len(asked) == 4 and taken == [("expected", 0.3, False)]
    assert found.trial_["loss"].idxmin() == 1


def test_losses_are_of_rows_held_out():
    """In rows that it has learned, a deep tree of one's own is never beaten."""
    noise = np.random.default_rng(99).normal(size=N)
    deep = DecisionTreeRegressor(random_state=0)
    found = expected(deep, learn="auto", refit_leaves="auto").fit(INCOMPLETE[["a", "b"]], noise)
    assert list(found.trial_.columns) == ["learn", "redraw", "refit_leaves", "loss", "error"]
    assert (found.trial_["loss"] > 0.9).all()
    assert found.trial_["error"].min() == 0 == found.trial_["error"][found.trial_["loss"].idxmin()]
    ways = [growing.Way(*row[:3]) for row in found.trial_.itertuples(index=False)]
    way = growing.chosen(found.trial_, ways)
    assert (found.robust_.refit_ is not None) == way.refit_leaves


@pytest.mark.parametrize(
    ("ways", "losses", "taken"),
    [
        (
            ["expected", "own", "own refitted"],
            [1.0, 3.0, 1.4],
            2,
        ),  # within the error: refitted leaves
        (["expected", "own", "own refitted"], [1.0, 3.0, 1.6], 0),  # beyond it
        (["expected", "own", "own refitted"], [3.0, 1.0, 1.4], 1),  # own trees are compared as ever
        (["expected", "own"], [1.0, 1.4], 0),
        (["expected", "expected refitted"], [1.0, 1.4], 0),
    ],
)
def test_grown_trees_must_be_better_than_refitted_leaves_beyond_doubt(ways, losses, taken):
    ways = [growing.Way(name.split()[0], 0.0, "refitted" in name) for name in ways]
    trial = pd.DataFrame(ways).assign(loss=losses, error=0.5)
    assert growing.chosen(trial, ways) == ways[taken]


@pytest.mark.parametrize("refit_leaves", [None, True, "auto"])
def test_leaves_are_refitted_after_growing(refit_leaves):
    found = expected(trees(), refit_leaves=refit_leaves).fit(INCOMPLETE[["a", "b"]], Y)
    if refit_leaves == "auto":
        assert found.trial_["learn"].tolist() == ["expected", "expected"]
        refit_leaves = bool(found.trial_.loc[found.trial_["loss"].idxmin(), "refit_leaves"])
    assert (found.robust_.refit_ is not None) == bool(refit_leaves)


def test_wrong_arguments_are_refused():
    table = INCOMPLETE[["a", "b"]]
    for message, options in {
        "learn must be": {"learn": "best"},
        "redraw must be": {"redraw": 2.0},
        "n_draws must be a whole number from 1": {"n_draws": 0},
        "fitted already": {"prefit": True},
    }.items():
        with pytest.raises(InvalidInput, match=message):
            expected(trees(), **options).fit(table, Y)
    with pytest.raises(InvalidInput, match="fitted already"):
        expected(FrozenEstimator(trees().fit(table, Y))).fit(table, Y)
    with pytest.raises(InvalidInput, match="one target"):
        expected(DecisionTreeRegressor()).fit(table, np.column_stack([Y, Y]))

    class Own:
        def complete(self, X, draws):
            return np.repeat(np.nan_to_num(X)[:, None], draws, axis=1)

    with pytest.raises(InvalidInput, match="density of your own"):
        kh.ExpectedRegressor(trees(), density=Own(), learn="expected").fit(table, Y)


def test_too_few_rows_to_hold_out_leave_the_first_way():
    found = expected(DecisionTreeRegressor(max_depth=2), learn="auto", density=kh.Factorized())
    with pytest.warns(kh.errors.FewRows):
        found.fit(INCOMPLETE[["a", "b"]][:15], Y[:15])
    assert found.trial_ is None


def test_early_stopping_with_missing_values_in_the_validation_rows():
    model = XGBRegressor(n_estimators=200, max_depth=3, n_jobs=1, early_stopping_rounds=3)
    found = expected(model).fit(
        INCOMPLETE[["a", "b"]][:200], Y[:200], eval_set=[(INCOMPLETE[["a", "b"]][200:], Y[200:])],
        verbose=False,
    )  # fmt: skip
    assert 0 < found.estimator_.best_iteration < 199


def test_draws_and_seed_decide():
    table = INCOMPLETE[["a", "b"]]
    one, same, other = (
        expected(trees(), random_state=seed).fit(table, Y).estimator_.predict(NUMBERS)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()

"""Corrected expectations: enumeration is the judge, complete rows stay as they are."""

import numpy as np
import pandas as pd
import pytest
import xgboost
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
)
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.columns.columns import Column, Columns, OneHotGroup
from knothole.densities.held_out import FOLDS
from knothole.errors import DamagedFile, InvalidInput
from knothole.inspection import correction as learn
from knothole.inspection.boosting import precisions
from knothole.inspection.correction import Space, given_masks, masks
from knothole.robust import Robust

SMALL = {"n_estimators": 20, "max_depth": 3, "n_jobs": 1}


def copied(n, seed=0, noise=0.05):
    """Two columns that nearly say the same, and one by itself: independence is far from true."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    X = np.column_stack([a, a + noise * rng.normal(size=n), rng.normal(size=n)])
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * (X[:, 2] > 0) + 0.05 * rng.normal(size=n)


@pytest.fixture(scope="module")
def wrapped():
    X, y = copied(900)
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    return kh.wrap(model, X, y, kh.Factorized(), correction=True), model


def with_missing(n=60, seed=5):
    X, _ = copied(n, seed)
    X[np.random.default_rng(seed).random(X.shape) < 0.4] = np.nan
    return X


# ---- the judge: enumeration ----------------------------------------------------------------------


def discrete(n, seed):
    """Three dependent columns of few values, and a model of them."""
    rng = np.random.default_rng(seed)
    a = rng.integers(3, size=n)
    b = np.where(rng.random(n) < 0.85, a, rng.integers(3, size=n))
    c = np.where(rng.random(n) < 0.7, (a + b) % 2, rng.integers(2, size=n))
    return np.column_stack([a, b, c]).astype(float)


def test_more_rows_bring_it_to_the_true_expectation_and_the_density_alone_not():
    grid = discrete(200_000, 0)
    y = 3.0 * (grid[:, 0] == grid[:, 1]) + grid[:, 2] * (grid[:, 0] - 1)
    model = DecisionTreeRegressor(random_state=0).fit(grid[:5000], y[:5000])
    cells, counts = np.unique(grid, axis=0, return_counts=True)
    own = model.predict(cells)
    rows, truth = [], []
    for row in cells:
        for incomplete in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
            known = [j for j in range(3) if j not in incomplete]
            same = (cells[:, known] == row[known]).all(axis=1)
            rows.append([np.nan if j in incomplete else row[j] for j in range(3)])
            truth.append(np.average(own[same], weights=counts[same]))
    rows, truth = np.array(rows), np.array(truth)
    error = {}
    for n in (300, 1000, 4000):
        X = discrete(n, 1)
        robust = kh.wrap(model, X, density=kh.Factorized(), correction=True, X_valid=discrete(n, 2))
        for corrected in (True, False):
            gap = robust.predict(rows, corrected=corrected) - truth
            error[n, corrected] = np.sqrt(np.mean(gap**2))
    assert error[300, True] > error[1000, True] > error[4000, True]
    assert error[4000, True] < 0.15 * error[4000, False]
    assert abs(error[4000, False] / error[300, False] - 1) < 0.2


# ---- what stays as it is -------------------------------------------------------------------------


def test_complete_rows_keep_the_models_own_prediction_bit_for_bit(wrapped):
    robust, _ = wrapped
    X, _ = copied(50, 3)
    assert_array_equal(robust.predict(X), robust.ensemble_.predict(X)[:, 0])
    assert_array_equal(robust.predict(X), robust.predict(X, corrected=False))


def test_margin_and_leaf_probabilities_are_the_papers_and_so_is_corrected_false(wrapped):
    robust, _ = wrapped
    plain = Robust(robust.expectation_)
    rows = with_missing()
    assert_array_equal(robust.margin(rows), plain.margin(rows))
    assert (robust.leaf_probabilities(rows) != plain.leaf_probabilities(rows)).nnz == 0
    assert_array_equal(robust.predict(rows, corrected=False), plain.predict(rows))
    assert (robust.predict(rows) != plain.predict(rows)).any()


def test_margins_are_those_under_the_density(wrapped):
    robust, _ = wrapped
    rows = with_missing()
    assert_array_equal(robust.margin(rows), Robust(robust.expectation_).margin(rows))
    assert_allclose(robust.margin(rows), robust.predict(rows, corrected=False), rtol=1e-12)


def test_one_row_has_one_answer_in_any_batch_and_with_any_threads(wrapped):
    robust, _ = wrapped
    rows = with_missing()
    whole = robust.predict(rows)
    assert_array_equal(whole[::-1], robust.predict(rows[::-1], n_jobs=2))
    assert_array_equal(
        whole[:7], np.concatenate([robust.predict(rows[i : i + 1]) for i in range(7)])
    )


def test_it_is_nearer_to_f_and_its_spread_is_that_of_f(wrapped):
    robust, model = wrapped
    X, _ = copied(3000, 9)
    f = model.predict(X).astype(float)
    rows = X.copy()
    rows[:, 0] = np.nan
    plain, std_before = robust.predict(rows, corrected=False, return_std=True)
    moved, std = robust.predict(rows, return_std=True)
    before, after = (np.sqrt(np.mean((f - each) ** 2)) for each in (plain, moved))
    assert after < 0.5 * before
    assert abs(np.sqrt(np.mean(std**2)) / after - 1) < 0.3
    assert abs(np.sqrt(np.mean(std_before**2)) / after - 1) > 0.5
    low, high = robust.predict(rows[:200], quantiles=[0.05, 0.95]).T
    assert (low <= moved[:200]).mean() > 0.9 and (high >= moved[:200]).mean() > 0.9


# ---- the gate ------------------------------------------------------------------------------------


def test_a_right_density_is_left_alone():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 3))
    y = X[:, 0] + np.abs(X[:, 1]) - X[:, 2]
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    fresh = rng.normal(size=(1500, 3))
    robust = kh.wrap(model, X, y, [kh.Factorized()], X_valid=fresh)
    rows = rng.normal(size=(500, 3))
    rows[rng.random(rows.shape) < 0.4] = np.nan
    change = robust.predict(rows) - robust.predict(rows, corrected=False)
    kept = robust.correction_["kept"].any()
    assert not kept or np.sqrt(np.mean(change**2)) < 1e-3 * model.predict(X).std()


def test_a_memorised_model_is_not_made_worse():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(600, 4))
    X[:, 1] += X[:, 0]
    y = X[:, 0] + 0.5 * X[:, 2] + 2.0 * rng.normal(size=600)
    model = xgboost.XGBRegressor(n_estimators=500, max_depth=12, n_jobs=1).fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.01
    robust = kh.wrap(model, X, y, [kh.Mixture(4, random_state=0)])
    fresh = rng.normal(size=(4000, 4))
    fresh[:, 1] += fresh[:, 0]
    truth = fresh[:, 0] + 0.5 * fresh[:, 2]
    fresh[rng.random(fresh.shape) < 0.3] = np.nan
    before, after = (
        (robust.predict(fresh, corrected=corrected) - truth) ** 2 for corrected in (False, True)
    )
    worse = after - before
    error = worse.std() / np.sqrt(len(worse))
    assert worse.mean() <= max(error, 0.005 * before.mean())


def test_without_held_out_rows_there_is_none_and_the_table_says_why():
    X, y = copied(300)
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    robust = kh.wrap(model, X, density=[kh.Factorized()])
    assert not robust.correction_["kept"].any()
    assert "y_train" in robust.correction_["why"][0] and "X_valid" in robust.correction_["why"][0]
    booster = kh.wrap(model.get_booster(), X, y, [kh.Factorized()])
    assert "cannot be fitted again" in booster.correction_["why"][0]
    few = kh.wrap(model, X, y, [kh.Factorized()], X_valid=X[:50])
    assert "at least 100" in few.correction_["why"][0]
    assert kh.wrap(model, X, y, kh.Factorized()).correction_ is None


def trial(gain=0.3, y_gain=0.3, stages=1, spread=1.0):
    """A trial of 100 rows in which mean gains are as said, each with a standard error of 0.1."""
    swings = spread * np.where(np.arange(100) % 2, 1.0, -1.0)
    copies = learn.Copies(*[np.arange(100)] * 6)
    gains = np.stack([gain + swings, y_gain + swings])
    return learn.Trial(stages, 0.5, gains, copies, corrected=None)


def test_gains_must_be_beyond_two_standard_errors_against_f_and_against_y():
    assert trial().why_not() == ""
    assert trial(y_gain=np.nan).why_not() == ""  # y is not known
    assert "no correction improved" in trial(stages=0).why_not()
    for gain in (-0.1, 0.0, 0.15, 0.19):
        assert (
            trial(gain=gain).why_not() == "the gain on rows held out is within two standard errors"
        )
        assert "against y" in trial(y_gain=gain).why_not()
    assert trial(gain=0.21, y_gain=0.21).why_not() == ""
    assert "against y" in trial(y_gain=0.0, spread=0.0).why_not()


def test_errors_of_gains_take_copies_of_a_row_together():
    """Against a twin that goes row by row."""
    rng = np.random.default_rng(0)
    values, rows = rng.gamma(2.0, size=60), rng.integers(12, size=60)
    sums = [np.sum(values[rows == row] - values.mean()) for row in np.unique(rows)]
    expected = [values.mean(), np.sqrt(np.sum(np.square(sums))) / 60]
    assert_allclose(learn.by_rows(values, rows), expected)


@pytest.fixture
def learner(wrapped):
    robust, _ = wrapped
    X, y = copied(400, 11)
    held_out = learn.HeldOutPredictions(robust.expectation_, X, X, y[:, None])
    return learn.CorrectionLearner(robust.expectation_, [held_out], None, 0)


def test_no_row_is_answered_by_trees_that_it_has_taught(learner, monkeypatch):
    copies = learner.copies(800, learner.hide_one(0))
    answered = []

    def boost(inputs, base, weight, newton):
        while True:
            yield set(inputs[:, 1])

    def step(taught, inputs):
        assert taught and not taught & set(inputs[:, 1])
        answered.append(len(inputs))
        return np.zeros((len(inputs), 1))

    monkeypatch.setattr(learn.boosting, "boost", boost)
    monkeypatch.setattr(learn.boosting, "step", step)
    for always, stages in ((False, 1), (True, learn.PATIENCE)):
        answered.clear()
        found = learner.tried(copies, np.ones(len(copies.row)), always)
        assert found.stages == 0 and sum(answered) == stages * len(copies.row)


@pytest.mark.parametrize("why", ["", "in doubt"])
def test_a_first_stage_in_doubt_is_the_last(learner, why, monkeypatch):
    copies, stages = learner.copies(800, learner.hide_one(0)), []
    made = learn.boosting.step
    monkeypatch.setattr(learn.boosting, "step", lambda *how: stages.append(1) or made(*how))
    monkeypatch.setattr(learn.Trial, "why_not", lambda self: why)
    learner.tried(copies, np.ones(len(copies.row)))
    assert (len(stages) == FOLDS) == bool(why)


def test_a_part_takes_the_share_of_the_step_that_rows_held_out_choose(learner, monkeypatch):
    """Trees that always go twice as far as they should: half of their step is the best."""
    copies = learner.copies(400, learner.hide_one(0))
    weight, inputs = np.ones(len(copies.row)), learner.inputs(copies)[0]
    far = dict(zip(inputs[:, 1], 2 * (copies.truth - copies.mean), strict=True))
    with monkeypatch.context() as patched:
        patched.setattr(learn.boosting, "boost", lambda *_: iter(lambda: None, 0))
        patched.setattr(
            learn.boosting,
            "step",
            lambda _, seen: np.array([far.pop(x, [0.0]) for x in seen[:, 1]]),
        )
        found = learner.tried(copies, weight)
    assert (found.stages, found.share) == (1, 0.5)
    assert found.gains[0].mean() == pytest.approx(1.0) and found.why_not() == ""
    assert_allclose(found.corrected, copies.truth)
    half, whole = (
        learner.part(0, copies, weight, found._replace(share=share)).ensemble.margin(inputs)
        for share in (0.5, 1.0)
    )
    assert np.abs(whole).max() > 0.1
    assert_allclose(half, whole / 2, rtol=1e-12, atol=1e-12)


def test_a_copys_own_square_has_no_say_in_its_weight():
    rng = np.random.default_rng(0)
    inputs, squares, fold = rng.normal(size=(300, 2)), rng.gamma(1.0, size=300), np.arange(300) % 2
    weight = precisions(inputs, squares, fold)
    louder = precisions(inputs, np.where(fold == 0, 1 + 3 * squares[::-1], squares), fold)
    assert weight.mean() == pytest.approx(1.0)
    assert_allclose(
        louder[fold == 0] / louder[fold == 0].mean(), weight[fold == 0] / weight[fold == 0].mean()
    )
    assert_array_equal(precisions(inputs, np.zeros(300), fold), np.ones(300))


def test_the_table_tells_the_rule_that_runs():
    X, y = copied(600)
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    table = kh.wrap(model, X, y, [kh.Factorized()]).correction_
    whole = table[~table["missing"].str.contains("%")]
    assert whole["kept"].any()
    kept = whole[whole["kept"]]
    assert (kept["gain"] > 2 * kept["error"]).all() and kept["share"].between(0.25, 1).all()
    assert whole.loc[~whole["kept"], "why"].ne("").all()


# ---- every link ----------------------------------------------------------------------------------


def several(kind, n=600):
    X, y = copied(n)
    classes = np.digitize(y, [-0.5, 0.5])
    if kind == "binary":
        return X, xgboost.XGBClassifier(**SMALL).fit(X, classes > 0), classes > 0
    if kind == "softmax":
        return X, xgboost.XGBClassifier(**SMALL).fit(X, classes), classes
    if kind == "forest":
        forest = RandomForestClassifier(10, max_depth=4, random_state=0, n_jobs=1)
        return X, forest.fit(X, classes), classes
    if kind == "counts":
        counts = np.random.default_rng(0).poisson(np.exp(y / 2))
        boosted = HistGradientBoostingRegressor(loss="poisson", max_iter=15, random_state=0)
        return X, boosted.fit(X, counts), counts
    both = np.column_stack([y, X[:, 1]])
    return X, DecisionTreeRegressor(max_depth=5, random_state=0).fit(X, both), both


@pytest.mark.parametrize("kind", ["binary", "softmax", "forest", "counts", "targets"])
def test_every_link_is_corrected_towards_the_models_own_output(kind):
    X, model, y = several(kind)
    robust = kh.wrap(model, X, y, kh.Factorized(), correction=True, tol=None)
    fresh, _ = copied(1000, 8)
    rows = fresh.copy()
    rows[:, 0] = np.nan
    answer = robust.predict_proba if hasattr(model, "predict_proba") else robust.predict
    own = model.predict_proba(fresh) if hasattr(model, "predict_proba") else model.predict(fresh)
    moved, plain = answer(rows), answer(rows, corrected=False)
    assert np.mean((moved - own) ** 2) < 0.8 * np.mean((plain - own) ** 2)
    if hasattr(model, "predict_proba"):
        assert_allclose(moved.sum(axis=1), 1.0)
    assert_array_equal(answer(fresh[:20]), answer(fresh[:20], corrected=False))


def of_library(library):
    if library == "lightgbm":
        import lightgbm

        return lightgbm.LGBMClassifier(n_estimators=15, num_leaves=8, verbose=-1, n_jobs=1)
    if library == "catboost":
        import catboost

        return catboost.CatBoostClassifier(
            iterations=15, depth=3, cat_features=["c"], verbose=False, thread_count=1,
            allow_writing_files=False,
        )  # fmt: skip
    return HistGradientBoostingClassifier(max_iter=15, categorical_features=["c"], random_state=0)


def as_frame(X):
    frame = pd.DataFrame(X, columns=["a", "b", "d"])
    frame["c"] = pd.Categorical(np.array(["low", "mid", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])])
    return frame


@pytest.mark.parametrize("library", ["lightgbm", "catboost", "scikit-learn"])
def test_other_libraries_and_categories(library, tmp_path):
    """A category that says what a number says, of which a density by columns knows nothing."""
    X, y = copied(900)
    frame = as_frame(X)
    model = of_library(library).fit(frame, y > 0)
    density = kh.Factorized(random_state=0)
    held = as_frame(copied(900, 3)[0])
    robust = kh.wrap(model, frame, y > 0, density, correction=True, tol=None, X_valid=held)
    rows = frame.iloc[:300].copy()
    own = model.predict_proba(rows)[:, 1]
    assert_allclose(robust.predict_proba(rows).to_numpy()[:, 1], own, atol=1e-6)
    rows["a"], rows["b"] = np.nan, np.nan
    moved, plain = (
        robust.predict_proba(rows, corrected=corrected).to_numpy()[:, 1]
        for corrected in (True, False)
    )
    assert np.mean((moved - own) ** 2) < 0.8 * np.mean((plain - own) ** 2)
    robust.save(tmp_path / "model.knothole")
    assert_array_equal(
        kh.load(tmp_path / "model.knothole").predict_proba(rows).to_numpy()[:, 1], moved
    )


class Counted(DecisionTreeRegressor):
    fits = 0

    def fit(self, X, y, **options):
        Counted.fits += 1
        return super().fit(X, y, **options)


@pytest.mark.parametrize(("wide", "rows", "clones"), [(3, 900, 3), (2, 1100, 2)])
def test_many_columns_have_fewer_copies_and_many_rows_fewer_clones(wide, rows, clones, monkeypatch):
    """Here three columns are many; it is nearer to f all the same."""
    monkeypatch.setattr(learn, "WIDE", wide)
    copies, made = [], learn.CorrectionLearner.copies
    monkeypatch.setattr(
        learn.CorrectionLearner,
        "copies",
        lambda self, count, hide: copies.append(count) or made(self, count, hide),
    )
    X, y = copied(rows)
    model = Counted(max_depth=6, random_state=0).fit(X, y)
    Counted.fits = 0
    robust = kh.wrap(model, X, y, kh.Factorized(), correction=True)
    assert Counted.fits == clones
    assert max(copies) == round(learn.COPIES[True] * wide / 3)
    fresh, _ = copied(500, 8)
    rows = fresh.copy()
    rows[:, 0] = np.nan
    moved, plain = robust.predict(rows), robust.predict(rows, corrected=False)
    own = model.predict(fresh)
    assert np.mean((moved - own) ** 2) < 0.8 * np.mean((plain - own) ** 2)


# ---- files ---------------------------------------------------------------------------------------


def test_a_saved_correction_answers_to_the_last_bit(wrapped, tmp_path):
    robust, _ = wrapped
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    rows = with_missing()
    assert_array_equal(again.predict(rows), robust.predict(rows))
    assert_array_equal(
        again.predict(rows, return_std=True)[1], robust.predict(rows, return_std=True)[1]
    )
    pd.testing.assert_frame_equal(again.correction_, robust.correction_)


@pytest.mark.parametrize("damage", ["spread", "variable", "trees"])
def test_a_damaged_correction_is_refused(wrapped, tmp_path, damage):
    from knothole.files import read_container, write_container

    robust, _ = wrapped
    path = tmp_path / "model.knothole"
    robust.save(path)
    header, arrays = read_container(path, "knothole model", 1)
    if damage == "spread":
        arrays["correction.0.spread"] = -np.ones(1)
    elif damage == "variable":
        header["parts"][0]["variable"] = 7
    else:
        arrays["correction.0.feature"] = np.full_like(arrays["correction.0.feature"], 99)
    write_container(path, header, arrays)
    with pytest.raises(DamagedFile):
        kh.load(path)


# ---- the parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [Space("log"), Space("logit"), Space("softmax", (2, 3))])
def test_newton_is_the_slope_of_the_loss(space):
    rng = np.random.default_rng(0)
    z, truth = (0.5 * rng.normal(size=(4, 5)) for _ in range(2))
    truth = space.means(truth)
    residual, weight = space.newton(space.means(z), truth)
    for output in range(5):
        shift = np.eye(5)[output] * 1e-6
        slope = space.losses(space.means(z + shift), truth) - space.losses(space.means(z), truth)
        assert_allclose(slope / 1e-6, -(residual * weight)[:, output], atol=1e-4)


def test_masks_hide_one_hot_groups_as_a_whole_and_take_over_natural_missing_values():
    columns = Columns((Column("a"), Column("b_x"), Column("b_y")), (OneHotGroup("b", (1, 2)),))
    matrix = np.tile([1.0, 1.0, 0.0], (50, 1))
    hidden = masks(columns, matrix, 1000, np.random.default_rng(0))
    assert_array_equal(hidden[:, 1], hidden[:, 2])
    assert hidden.any(axis=1).all() and 0.2 < hidden.mean() < 0.8
    matrix[:, 0] = np.nan
    assert masks(columns, matrix, 1000, np.random.default_rng(0))[:, 0].mean() > hidden[:, 0].mean()


def test_patterns_of_the_user_are_drawn_and_checked():
    X, columns = np.arange(12.0).reshape(6, 2), Columns.infer(np.zeros((6, 2)))
    drawn = given_masks(np.array([[True, False]]), X, columns, 6, 0)
    assert_array_equal(drawn, [[True, False]] * 6)
    assert_array_equal(given_masks(lambda X, seed: 5 + seed < X, X, columns, 6, 2), X > 7)
    for wrong in (np.ones((1, 2)), np.ones((1, 3), bool), lambda X, _: X, lambda X, _: X[:2] > 0):
        with pytest.raises(InvalidInput, match="patterns must be booleans"):
            given_masks(wrong, X, columns, 6, 0)


def test_patterns_are_of_the_columns_that_the_table_has():
    columns = Columns((Column("a"), Column("b")))
    table = pd.DataFrame({"b": [1.0, 2.0], "c": [3.0, 4.0], "a": [5.0, 6.0]})
    hide_b = np.array([[True, False, False]])
    for patterns in (hide_b, lambda table, _: table.columns.to_numpy() == np.array([["b"]] * 2)):
        assert_array_equal(given_masks(patterns, table, columns, 2, 0), [[False, True]] * 2)
    named = pd.DataFrame({"a": [False], "b": [True]})
    assert_array_equal(given_masks(named, table, columns, 2, 0), [[False, True]] * 2)
    with pytest.raises(InvalidInput, match=r"shape \(patterns, 3\)"):
        given_masks(hide_b[:, :2], table, columns, 2, 0)
    with pytest.raises(InvalidInput, match="must name each of the model's columns: 'a', 'b'"):
        given_masks(named[["b"]], table, columns, 2, 0)


def test_patterns_are_what_it_learns_from():
    X, y = copied(600)
    model = xgboost.XGBRegressor(**SMALL).fit(X, y)
    asked = []

    def mechanism(table, seed):
        asked.append((np.shape(table), seed))
        return np.tile([True, False, True], (len(table), 1))

    robust = kh.wrap(model, X, y, kh.Factorized(), correction=True, patterns=mechanism)
    assert asked and {shape for shape, _ in asked} == {(200, 3)}
    rows, _ = copied(500, 4)
    rows[:, [0, 2]] = np.nan
    own = model.predict(copied(500, 4)[0])
    before, after = (
        np.mean((robust.predict(rows, corrected=each) - own) ** 2) for each in (False, True)
    )
    assert after < 0.8 * before


def test_strange_requests_are_refused():
    X, y = copied(100)
    model = DecisionTreeRegressor(max_depth=3).fit(X, y)
    with pytest.raises(InvalidInput, match="correction must be"):
        kh.wrap(model, X, y, kh.Factorized(), correction="yes")
    with pytest.raises(InvalidInput, match="correction=False leaves it out"):
        kh.wrap(model, X, y, kh.Factorized(), correction=False, X_valid=X)


def test_new_leaves_leave_the_correction_behind(wrapped):
    robust, _ = wrapped
    X, y = copied(300)
    refitted = robust.refit_leaves(X, y)
    assert refitted.correction_ is None
    assert_array_equal(
        refitted.predict(with_missing()), refitted.predict(with_missing(), corrected=False)
    )

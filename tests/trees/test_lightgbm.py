"""LightGBM: every objective, boosting and kind of missing value, read exactly and written back."""

import pickle
import re

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from knothole.columns.columns import Kind
from knothole.errors import InvalidInput, NotFitted, UnsupportedModel
from knothole.trees import verify
from knothole.trees.links import Link
from knothole.trees.read import read, write
from knothole.trees.readers.lightgbm import ZERO

QUIET = {"verbose": -1, "num_threads": 1, "seed": 0}
SMALL = {**QUIET, "num_leaves": 7, "min_data_in_leaf": 3, "min_data_in_bin": 1, "max_bin": 31}
SMALL |= {"min_data_per_group": 3, "cat_smooth": 1, "cat_l2": 1}
CATEGORICAL = [3]

BOOSTING = {
    "gbdt": {},
    "dart": {"boosting": "dart", "drop_rate": 0.5},
    "goss": {"data_sample_strategy": "goss", "learning_rate": 0.5},
    "rf": {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6},
}
MISSING = {
    "nan": {},
    "zero": {"zero_as_missing": True},
    "none": {"use_missing": False},
}
OBJECTIVES = {
    "regression": ("real", "identity"),
    "regression_l1": ("real", "identity"),
    "huber": ("real", "identity"),
    "fair": ("real", "identity"),
    "quantile": ("real", "identity"),
    "mape": ("real", "identity"),
    "poisson": ("positive", "exp"),
    "gamma": ("positive", "exp"),
    "tweedie": ("positive", "exp"),
    "binary": ("binary", "sigmoid"),
    "cross_entropy": ("binary", "sigmoid"),
    "multiclass": ("classes", "softmax"),
    "multiclassova": ("classes", "sigmoid"),
    "lambdarank": ("classes", "identity"),
    "rank_xendcg": ("classes", "identity"),
}


def make_data(seed=0, rows=200):
    """A number, one with NaN, one mostly zero, integer categories, one of tiny numbers."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [
            rng.normal(size=rows),
            np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
            np.where(rng.random(rows) < 0.5, 0.0, rng.normal(size=rows)),
            rng.integers(0, 9, rows),
            rng.choice([-2, -1, -0.5, 0, 0.5, 1, 2], rows) * ZERO,
        ]
    )
    y = X[:, 0] + np.isnan(X[:, 1]) + 2 * (X[:, 2] == 0) + np.isin(X[:, 3], [1, 4]) + (X[:, 4] > 0)
    y = y + 0.1 * rng.normal(size=rows)
    targets = {
        "real": y,
        "positive": np.abs(y) + 0.1,
        "binary": (y > np.median(y)).astype(float),
        "classes": np.digitize(y, np.quantile(y, [0.3, 0.8])),
    }
    return X, targets


def rows_to_try(seed=1, rows=120):
    """Rows like those of training with NaN in every column, zeros, and categories never seen."""
    rng = np.random.default_rng(seed)
    X, _ = make_data(seed, rows)
    X[rng.random(X.shape) < 0.15] = np.nan
    X[rng.random(rows) < 0.2, 0] = 0.0
    X[rng.random(rows) < 0.1, 3] = 9
    return X


def train(X, y, objective="regression", rounds=6, categorical=CATEGORICAL, **options):
    params = {**SMALL, "objective": objective, **options}
    if objective.startswith("multi"):
        params["num_class"] = 3
    group = [20] * (len(y) // 20) if "rank" in objective else None
    data = lgb.Dataset(X, y, group=group, categorical_feature=categorical)
    return lgb.train(params, data, rounds)


def assert_parity(model, ensemble, codes, native=None):
    """Leaves equal, margins to the rounding of a sum, predictions as the Booster's own."""
    native = codes if native is None else native
    booster = getattr(model, "booster_", model)
    leaves = ensemble.leaves(codes)
    own = np.asarray(booster.predict(native, pred_leaf=True)).reshape(len(codes), -1)
    assert np.array_equal(ensemble.native_leaf[leaves], own)
    raw = np.asarray(booster.predict(native, raw_score=True)).reshape(len(codes), -1)
    if "\naverage_output\n" in booster.model_to_string():
        raw = raw / (ensemble.n_trees / ensemble.n_outputs)
    assert (np.abs(ensemble.margin(codes) - raw) <= verify.rounding(ensemble, leaves)).all()
    response = np.asarray(booster.predict(native)).reshape(len(codes), -1)
    np.testing.assert_allclose(ensemble.predict(codes), response, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("boosting", BOOSTING)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objective_and_boosting(objective, boosting):
    target, link = OBJECTIVES[objective]
    X, targets = make_data()
    for options in MISSING.values():
        model = train(X, targets[target], objective, **BOOSTING[boosting], **options)
        ensemble = read(model)
        assert ensemble.link.name == link
        assert_parity(model, ensemble, rows_to_try())


@pytest.mark.parametrize(
    "options",
    [
        {"boost_from_average": False},
        {"objective": "binary", "sigmoid": 2.5},
        {"objective": "multiclassova", "sigmoid": 0.3},
        {"objective": "binary", "is_unbalance": True},
        {"max_cat_to_onehot": 20},
        {"max_cat_to_onehot": 1},
        {"extra_trees": True},
        {"monotone_constraints": [1, 0, 0, 0, 0]},
        {"path_smooth": 1.0, "max_depth": 3},
        {"num_leaves": 2},
        {"num_leaves": 100, "min_data_in_leaf": 1},
        {"min_data_in_bin": 1, "max_bin": 255},
        {"use_quantized_grad": True},
        {"enable_bundle": False, "is_enable_sparse": False},
    ],
    ids=str,
)
def test_option(options):
    X, targets = make_data(3)
    target, _ = OBJECTIVES[options.get("objective", "regression")]
    model = train(X, targets[target], **options)
    assert_parity(model, read(model), rows_to_try(4))


def test_every_leaf_and_split():
    # The self-check visits some; here are all, from the library's own dump.
    X, targets = make_data()
    model = train(X, targets["classes"], "multiclass", rounds=4)
    ensemble = read(model)
    for tree, leaf, value in zip(
        ensemble.leaf_tree, ensemble.native_leaf, ensemble.value[:, 0], strict=True
    ):
        assert value == model.get_leaf_output(int(tree), int(leaf))

    def compare(dumped, node):
        if "leaf_index" in dumped:
            assert ensemble.feature[node] == -1
            assert ensemble.native_leaf[ensemble.left[node]] == dumped["leaf_index"]
            return 1
        assert ensemble.feature[node] == dumped["split_feature"]
        if dumped["decision_type"] == "==":
            codes = np.flatnonzero(verify.left_codes(ensemble, node))
            assert "||".join(map(str, codes)) == dumped["threshold"]
        elif ZERO < abs(dumped["threshold"]) < 1e300:  # the dump says 1e300 for infinity
            assert ensemble.threshold[node] == np.nextafter(dumped["threshold"], np.inf)
        left = ensemble.left[node]
        return compare(dumped["left_child"], left) + compare(dumped["right_child"], left + 1)

    trees = model.dump_model()["tree_info"]
    seen = sum(
        compare(tree["tree_structure"], root)
        for tree, root in zip(trees, ensemble.roots, strict=True)
    )
    assert seen == ensemble.n_leaves


def test_sigmoid_parameter_is_the_scale_of_the_link():
    X, targets = make_data()
    ensemble = read(train(X, targets["binary"], "binary", sigmoid=2.5))
    assert ensemble.link == Link("sigmoid", 2.5)


def test_own_objective_leaves_the_margin_alone():
    X, targets = make_data()

    def squared(margin, data):
        return margin - data.get_label(), np.ones_like(margin)

    data = lgb.Dataset(X, targets["real"])
    model = lgb.train({**SMALL, "objective": squared}, data, 4)
    ensemble = read(model)
    assert ensemble.link.linear
    assert_parity(model, ensemble, rows_to_try())


# --- scikit-learn wrappers ------------------------------------------------------------------------


def test_regressor():
    X, targets = make_data()
    model = lgb.LGBMRegressor(n_estimators=5, **SMALL).fit(X, targets["real"])
    ensemble = read(model)
    assert ensemble.classes is None
    rows = rows_to_try()
    np.testing.assert_allclose(ensemble.predict(rows)[:, 0], model.predict(rows), rtol=1e-12)


@pytest.mark.parametrize("boosting", BOOSTING)
@pytest.mark.parametrize("target", ["binary", "classes"])
def test_classifier_probabilities_and_labels(target, boosting):
    X, targets = make_data()
    labels = np.array(["low", "mid", "top"])[targets[target].astype(int)]
    model = lgb.LGBMClassifier(n_estimators=5, **SMALL, **BOOSTING[boosting])
    model.fit(X, labels, categorical_feature=CATEGORICAL)
    ensemble = read(model)
    assert ensemble.classes == tuple(model.classes_)
    rows = rows_to_try()
    own = model.predict_proba(rows)
    own = own[:, 1:] if ensemble.n_outputs == 1 else own
    np.testing.assert_allclose(ensemble.predict(rows), own, rtol=1e-12)
    assert_parity(model, ensemble, rows)


def test_classifier_with_own_objective_has_margins_not_classes():
    X, targets = make_data()

    def logistic(y, margin):
        p = 1 / (1 + np.exp(-margin))
        return p - y, p * (1 - p)

    model = lgb.LGBMClassifier(n_estimators=3, objective=logistic, **SMALL)
    model.fit(X, targets["binary"])
    ensemble = read(model)
    assert ensemble.classes is None and ensemble.link.linear
    assert_parity(model, ensemble, rows_to_try())


def test_ranker():
    X, targets = make_data()
    model = lgb.LGBMRanker(n_estimators=5, **SMALL)
    model.fit(X, targets["classes"], group=[50] * 4)
    rows = rows_to_try()
    np.testing.assert_allclose(read(model).predict(rows)[:, 0], model.predict(rows), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:The argument 'eval_set'")
def test_early_stopping_of_a_wrapper():
    X, targets = make_data()
    y = np.random.default_rng(0).permutation(targets["real"])  # nothing to learn: stops early
    model = lgb.LGBMRegressor(n_estimators=60, **SMALL)
    stop = lgb.early_stopping(3, verbose=False)
    model.fit(X[:100], y[:100], eval_set=[(X[100:], y[100:])], callbacks=[stop])
    ensemble = read(model)
    assert ensemble.n_trees == model.best_iteration_ < 60
    assert_parity(model, ensemble, rows_to_try())


# --- iterations -----------------------------------------------------------------------------------


def stopped_booster():
    """A Booster with more trees than its best iteration."""
    X, targets = make_data()
    y = targets["classes"]
    data = lgb.Dataset(X[:100], y[:100])
    params = {**SMALL, "objective": "multiclass", "num_class": 3, "learning_rate": 0.9}
    model = lgb.train(
        params,
        data,
        60,
        valid_sets=[data.create_valid(X[100:], y[100:])],
        callbacks=[lgb.early_stopping(5, verbose=False)],
        keep_training_booster=True,
    )
    assert model.num_trees() > 3 * model.best_iteration > 0
    return model


def test_best_iteration():
    model = stopped_booster()
    ensemble = read(model)
    assert ensemble.n_trees == 3 * model.best_iteration
    assert_parity(model, ensemble, rows_to_try())


def test_iterations_saved_from_the_middle(tmp_path):
    X, targets = make_data()
    model = train(X, targets["classes"], "multiclass", rounds=6)
    path = tmp_path / "part.txt"
    model.save_model(path, start_iteration=2, num_iteration=3)
    ensemble = read(path)
    rows = rows_to_try()
    own = model.predict(rows, raw_score=True, start_iteration=2, num_iteration=3)
    np.testing.assert_allclose(ensemble.margin(rows), own, rtol=1e-12)


def test_forest_saved_from_the_middle_averages_what_is_left(tmp_path):
    X, targets = make_data()
    model = train(X, targets["real"], **BOOSTING["rf"])
    path = tmp_path / "part.txt"
    model.save_model(path, num_iteration=3)
    rows = rows_to_try()
    own = model.predict(rows, num_iteration=3)
    np.testing.assert_allclose(read(path).predict(rows)[:, 0], own, rtol=1e-12)


def test_continued_training():
    X, targets = make_data()
    first = train(X, targets["real"], rounds=3)
    data = lgb.Dataset(X, targets["real"], categorical_feature=CATEGORICAL)
    model = lgb.train({**SMALL, "objective": "regression"}, data, 4, init_model=first)
    ensemble = read(model)
    assert ensemble.n_trees == 7
    assert_parity(model, ensemble, rows_to_try())


def test_continued_training_where_zero_and_nan_part_ways_is_refused():
    X, targets = make_data()
    X[::7, 2] = np.nan
    X = X[:, :3]
    first = train(X, targets["real"], rounds=3, categorical="auto", zero_as_missing=True)
    data = lgb.Dataset(X, targets["real"])
    model = lgb.train({**SMALL, "objective": "regression"}, data, 20, init_model=first)
    with pytest.raises(UnsupportedModel, match="zero_as_missing"):
        read(model)


def test_continued_training_without_missing_suits_zero_as_missing():
    # Where a NaN is a zero, zero as missing changes nothing.
    X, targets = make_data()
    X = X[:, [0, 2]]
    first = train(X, targets["real"], rounds=3, categorical="auto", zero_as_missing=True)
    data = lgb.Dataset(X, targets["real"])
    params = {**SMALL, "objective": "regression", "use_missing": False}
    model = lgb.train(params, data, 4, init_model=first)
    types = set(" ".join(re.findall(r"decision_type=(.*)", model.model_to_string())).split())
    assert {int(t) >> 2 for t in types} == {0, 1}
    assert_parity(model, read(model), rows_to_try()[:, [0, 2]])


def test_continued_training_that_makes_a_number_a_category_is_refused():
    X, targets = make_data()
    first = train(X, targets["real"], rounds=8, categorical="auto")
    data = lgb.Dataset(X, targets["real"], categorical_feature=CATEGORICAL)
    model = lgb.train({**SMALL, "objective": "regression"}, data, 8, init_model=first)
    with pytest.raises(UnsupportedModel, match="categorical_feature"):
        read(model)


# --- missing values, zeros, thresholds ------------------------------------------------------------


def test_nan_in_a_column_that_was_complete_is_zero():
    # shap sends it to the default side.
    rng = np.random.default_rng(0)
    X = rng.normal(loc=[5, -5], size=(200, 2))
    model = train(X, X @ [1, 2], categorical="auto", num_leaves=15)
    assert all(
        int(t) >> 2 == 0 for t in re.findall(r"decision_type=(\d+)", model.model_to_string())
    )
    ensemble = read(model)
    incomplete = np.array([[np.nan, -5.0], [5.0, np.nan], [np.nan, np.nan]])
    assert_parity(model, ensemble, incomplete)
    assert np.array_equal(ensemble.margin(incomplete), ensemble.margin(np.nan_to_num(incomplete)))


def test_zero_as_missing():
    # treelite ignores it, and is off by the size of the effect.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    X[rng.random(X.shape) < 0.4] = 0
    y = (X[:, 0] == 0) * 3.0 + X[:, 1]
    model = train(X, y, categorical="auto", zero_as_missing=True)
    ensemble = read(model)
    np.testing.assert_array_equal(ensemble.sentinel, [[-ZERO, ZERO], [-ZERO, ZERO]])
    assert_parity(model, ensemble, X)
    rows = np.array([[np.nan, 1.0]] + [[z, 1.0] for z in zero_and_neighbours()])
    assert_parity(model, ensemble, rows)


def zero_and_neighbours():
    up, down = np.nextafter(ZERO, 1), np.nextafter(ZERO, 0)
    return np.array([-up, -ZERO, -down, -ZERO / 2, -0.0, 0.0, ZERO / 2, down, ZERO, up])


@pytest.mark.parametrize("options", MISSING.values(), ids=MISSING)
def test_values_next_to_zero(options):
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 0.0, 1.0], (300, 1))
    y = X[:, 0] ** 2 + 0.1 * X[:, 0]
    model = train(X, y, categorical="auto", **options)
    text = model.model_to_string()
    assert "-1.0000000180025095e-35" in text and " 1.0000000180025095e-35" in text.replace("=", " ")
    assert_parity(model, read(model), zero_and_neighbours()[:, None])


@pytest.mark.parametrize("scale", [1e-300, 1e-34, 1e30, 1e300])
def test_thresholds_of_any_size(scale):
    rng = np.random.default_rng(0)
    X = np.sort(rng.normal(size=(200, 1)), axis=0) * scale
    X[::10] = np.nan
    y = np.arange(200) % 50 + 10.0 * np.isnan(X[:, 0])
    model = train(X, y, categorical="auto", num_leaves=31, max_bin=255)
    thresholds = read(model).threshold
    thresholds = thresholds[np.isfinite(thresholds)]
    near = np.concatenate(
        [thresholds, np.nextafter(thresholds, -np.inf), np.nextafter(thresholds, np.inf)]
    )
    assert_parity(model, read(model), np.append(near, np.nan)[:, None])


def test_leaf_that_only_a_nan_reaches():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1))
    X[:100] = np.nan
    model = train(X, np.isnan(X[:, 0]) * 5.0, categorical="auto", num_leaves=2)
    ensemble = read(model)
    assert np.isposinf(ensemble.threshold[ensemble.feature >= 0]).all()
    assert_parity(model, ensemble, np.array([[np.nan], [-1e300], [np.finfo(float).max]]))


def test_training_on_infinite_values():
    X, targets = make_data()
    X[:3, 0] = [np.inf, -np.inf, np.inf]
    model = train(X, targets["real"])
    assert_parity(model, read(model), rows_to_try())


def test_constant_trees():
    X, targets = make_data(rows=8)
    model = train(X, targets["real"], min_data_in_leaf=20)
    ensemble = read(model)
    assert ensemble.n_leaves == ensemble.n_trees == 1
    assert_parity(model, ensemble, rows_to_try())


def test_class_without_rows_has_constant_trees():
    X, targets = make_data()
    model = train(X, targets["binary"], "multiclass", rounds=3)
    ensemble = read(model)
    assert (np.diff(ensemble.leaf_start) == 1).any() and (np.diff(ensemble.leaf_start) > 1).any()
    assert_parity(model, ensemble, rows_to_try())


# --- categories -----------------------------------------------------------------------------------


def test_integer_categories_count_from_zero():
    X, targets = make_data()
    ensemble = read(train(X, targets["real"]))
    column = ensemble.columns[3]
    assert column.kind is Kind.CATEGORICAL and column.levels == tuple(range(9))
    assert not ensemble.columns.named
    assert (ensemble.set_start >= 0).any()


def test_integer_categories_far_apart_are_those_the_model_knows():
    X, targets = make_data()
    names = np.array([0, 7, 8, 90210, 100000, 2**20, 2**20 + 1, 3, 5000])
    codes = X[:, 3].astype(int)
    X[:, 3] = names[codes]
    model = train(X, targets["real"])
    ensemble = read(model)
    levels = np.array(ensemble.columns[3].levels)
    assert np.array_equal(levels, np.sort(names))
    coded = X.copy()
    coded[:, 3] = np.searchsorted(levels, X[:, 3])
    assert_parity(model, ensemble, coded, X)
    coded[:, 3], X[:, 3] = len(levels), 4  # unknown
    assert_parity(model, ensemble, coded, X)


def test_category_never_seen_negative_or_nan_goes_right():
    X, targets = make_data()
    model = train(X, targets["real"])
    ensemble = read(model)
    rows = np.repeat(rows_to_try()[:1], 5, axis=0)
    native = rows.copy()
    native[:, 3] = [9, 31, 10_000, -1, np.nan]
    rows[:, 3] = [9, 9, 9, np.nan, np.nan]
    assert_parity(model, ensemble, rows, native)
    assert np.array_equal(*ensemble.leaves(rows[[0, 4]]))


def make_frame(seed=0, rows=200):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "number": rng.normal(size=rows),
            "city": pd.Categorical(rng.choice(["Wien", "Graz", "Linz", "Čáslav"], rows)),
            "flag": rng.integers(0, 2, rows) > 0,
            "size": pd.Categorical(rng.choice([0.5, 1.5, 2.5], rows)),
            "constant": pd.Categorical(["only"] * rows),
            "yes": pd.Categorical(rng.choice([True, False], rows)),
        }
    )
    y = frame["number"] + (frame["city"] == "Graz") * 2 + (frame["size"] == 1.5) + frame["flag"]
    frame.loc[rng.random(rows) < 0.1, "city"] = np.nan
    return frame, y.to_numpy(dtype=float)


def assert_frame_parity(model, frame):
    ensemble = read(model)
    codes = ensemble.columns.matrix(frame)
    np.testing.assert_allclose(ensemble.predict(codes)[:, 0], model.predict(frame), rtol=1e-12)
    booster = getattr(model, "booster_", model)
    leaves = ensemble.native_leaf[ensemble.leaves(codes)]
    assert np.array_equal(leaves, booster.predict(frame, pred_leaf=True))
    return ensemble


@pytest.mark.parametrize("options", MISSING.values(), ids=MISSING)
def test_pandas_categories(options):
    frame, y = make_frame()
    model = lgb.LGBMRegressor(n_estimators=8, **SMALL, **options).fit(frame, y)
    ensemble = assert_frame_parity(model, frame)
    assert ensemble.columns.named and ensemble.columns.names == tuple(frame.columns)
    assert ensemble.columns[1].levels == ("Graz", "Linz", "Wien", "Čáslav")
    assert ensemble.columns[3].levels == (0.5, 1.5, 2.5)
    assert ensemble.columns[4].levels == ("only",)
    assert ensemble.columns[5].levels == (False, True)


def test_pandas_category_never_seen():
    frame, y = make_frame()
    model = lgb.LGBMRegressor(n_estimators=8, **SMALL).fit(frame, y)
    ensemble = read(model)
    codes = ensemble.columns.matrix(frame)
    codes[:, 1] = 4
    frame["city"] = pd.Categorical(["Zell"] * len(frame))
    np.testing.assert_allclose(ensemble.predict(codes)[:, 0], model.predict(frame), rtol=1e-12)


@pytest.mark.parametrize("options", MISSING.values(), ids=MISSING)
def test_ordered_pandas_categories_become_sets(options):
    frame, y = make_frame()
    order = ["Linz", "Čáslav", "Graz", "Wien"]
    frame["city"] = pd.Categorical(frame["city"], categories=order, ordered=True)
    frame = frame.drop(columns=["flag"])  # a flag could be an ordered column of two categories
    model = lgb.LGBMRegressor(n_estimators=8, **SMALL, **options).fit(frame, y)
    ensemble = assert_frame_parity(model, frame)
    assert ensemble.columns[1].levels == tuple(order)
    assert ((ensemble.feature == 1) & (ensemble.set_start >= 0)).any()
    codes = ensemble.columns.matrix(frame)
    codes[:, 1] = 4
    frame["city"] = pd.Categorical(["Zell"] * len(frame))
    np.testing.assert_allclose(ensemble.predict(codes)[:, 0], model.predict(frame), rtol=1e-12)


def test_ordered_pandas_categories_that_could_be_another_column_are_refused():
    frame, y = make_frame()
    frame["yes"] = frame["yes"].cat.as_ordered()
    frame["no"] = ~frame["flag"]  # two values, like the column before it
    model = lgb.LGBMRegressor(n_estimators=4, **SMALL).fit(frame, y)
    with pytest.raises(UnsupportedModel, match=r"\.cat\.codes"):
        read(model)


def test_pandas_categories_beside_declared_integers():
    frame, y = make_frame()
    frame = frame[["number", "city"]].assign(store=np.arange(200) % 12)
    y = y + (frame["store"] == 3) * 3
    model = lgb.LGBMRegressor(n_estimators=8, **SMALL)
    model.fit(frame, y, categorical_feature=["city", "store"])
    ensemble = assert_frame_parity(model, frame)
    assert ensemble.columns[1].levels == ("Graz", "Linz", "Wien", "Čáslav")
    assert ensemble.columns[2].levels == tuple(range(12))


def test_column_names_with_spaces_and_other_letters(tmp_path):
    frame, y = make_frame()
    frame = frame.rename(columns={"number": "Größe=m", "city": "the city"})
    model = lgb.LGBMRegressor(n_estimators=3, **SMALL).fit(frame, y)
    expected = ("Größe=m", "the_city", "flag", "size", "constant", "yes")  # LightGBM's own names
    assert read(model).columns.names == expected
    model.booster_.save_model(tmp_path / "model.txt")
    assert read(tmp_path / "model.txt").columns.names == expected


# --- what is refused ------------------------------------------------------------------------------


def test_linear_trees_are_refused_with_the_way_out():
    X, targets = make_data()
    model = train(X, targets["real"], linear_tree=True)
    with pytest.raises(UnsupportedModel, match="linear_tree=False"):
        read(model)


@pytest.mark.parametrize(
    ("objective", "options", "name"),
    [
        ("regression", {"reg_sqrt": True}, "reg_sqrt"),
        ("cross_entropy_lambda", {}, "cross_entropy_lambda"),
    ],
)
def test_unknown_link_is_refused_by_name(objective, options, name):
    X, targets = make_data()
    model = train(X, targets["binary"], objective, **options)
    with pytest.raises(UnsupportedModel, match=name):
        read(model)


def test_predictions_that_stop_early_are_refused():
    X, targets = make_data()
    model = lgb.LGBMClassifier(n_estimators=3, pred_early_stop=True, **SMALL)
    with pytest.raises(UnsupportedModel, match="pred_early_stop"):
        read(model.fit(X, targets["binary"]))


@pytest.mark.parametrize("kind", [lgb.LGBMRegressor, lgb.LGBMClassifier, lgb.LGBMRanker])
def test_unfitted_wrapper(kind):
    with pytest.raises(NotFitted, match=kind.__name__):
        read(kind())


def test_booster_without_trees():
    X, targets = make_data()
    with pytest.raises(NotFitted, match="no trees"):
        read(lgb.Booster(SMALL, lgb.Dataset(X, targets["real"])))


# --- files ----------------------------------------------------------------------------------------


def same_ensemble(one, other):
    arrays = ["roots", "feature", "threshold", "left", "missing_left", "set_start", "sets", "value"]
    arrays += ["native_leaf", "tree_output", "tree_weight", "base", "sentinel"]
    for name in arrays:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.columns == other.columns and one.link == other.link


def test_file_is_read_like_the_live_model(tmp_path):
    frame, y = make_frame()
    model = lgb.LGBMClassifier(n_estimators=4, **SMALL).fit(frame, np.digitize(y, [0, 1]))
    model.booster_.save_model(tmp_path / "model.txt")
    ensemble = read(tmp_path / "model.txt")
    same_ensemble(ensemble, read(model))
    assert ensemble.classes == (0, 1, 2)  # by number: a text does not keep names


def test_file_without_the_line_of_python(tmp_path):
    X, targets = make_data()
    model = train(X, targets["real"])
    text = model.model_to_string()
    path = tmp_path / "model.txt"
    path.write_text(text[: text.index("\npandas_categorical")])
    same_ensemble(read(path), read(model))


def test_file_of_version_3(tmp_path):
    X, targets = make_data()
    model = train(X, targets["real"])
    path = tmp_path / "model.txt"
    path.write_text(model.model_to_string().replace("version=v4", "version=v3"))
    same_ensemble(read(path), read(model))


# --- writing --------------------------------------------------------------------------------------


def changed(ensemble, seed=0):
    return ensemble.with_values(np.random.default_rng(seed).normal(size=ensemble.value.shape))


@pytest.mark.parametrize("boosting", BOOSTING)
@pytest.mark.parametrize("objective", ["regression", "binary", "multiclass"])
def test_write_back(objective, boosting):
    X, targets = make_data()
    model = train(X, targets[OBJECTIVES[objective][0]], objective, **BOOSTING[boosting])
    rows = rows_to_try()
    before, text = model.predict(rows), model.model_to_string()
    ensemble = read(model)
    assert np.array_equal(write(model, ensemble).predict(rows), before)
    new = changed(ensemble)
    written = write(model, new)
    assert_parity(written, new, rows)
    assert model.model_to_string() == text
    reloaded = lgb.Booster(model_str=written.model_to_string())
    for copy in (pickle.loads(pickle.dumps(written)), reloaded):
        assert np.array_equal(copy.predict(rows), written.predict(rows))


def test_written_wrapper_keeps_what_was_fitted():
    frame, y = make_frame()
    labels = np.array(["a", "b", "c"])[np.digitize(y, [0, 1])]
    model = lgb.LGBMClassifier(n_estimators=4, **SMALL).fit(frame, labels)
    own = model.predict_proba(frame)
    new = changed(read(model))
    written = write(model, new)
    assert type(written) is lgb.LGBMClassifier
    codes = new.columns.matrix(frame)
    np.testing.assert_allclose(written.predict_proba(frame), new.predict(codes), rtol=1e-12)
    assert set(written.predict(frame)) <= {"a", "b", "c"}
    assert written.get_params() == model.get_params()
    assert list(written.feature_names_in_) == list(model.feature_names_in_)
    written.set_params(num_leaves=99)
    assert model.num_leaves == SMALL["num_leaves"]
    assert np.array_equal(model.predict_proba(frame), own)
    again = pickle.loads(pickle.dumps(written))
    assert np.array_equal(again.predict_proba(frame), written.predict_proba(frame))


def test_written_booster_keeps_its_best_iteration():
    model = stopped_booster()
    new = changed(read(model))
    written = write(model, new)
    assert written.best_iteration == model.best_iteration
    assert written.best_score == model.best_score and written.params == model.params
    assert written.num_trees() == model.num_trees()
    assert_parity(written, new, rows_to_try())
    last = model.num_trees() - 1
    assert written.get_leaf_output(last, 0) == model.get_leaf_output(last, 0)


def test_leaves_next_to_zero_are_written_as_zero():
    X, targets = make_data()
    model = train(X, targets["real"])
    ensemble = read(model)
    small = np.array([5e-36, -1e-35, 1e-37, -1e-300, 2e-35, -3e-30])
    value = np.resize(small, ensemble.value.shape)
    written = read(write(model, ensemble.with_values(value))).value
    np.testing.assert_array_equal(written, np.where(np.abs(value) <= 1e-35, 0.0, value))


def test_values_of_another_model_are_refused():
    X, targets = make_data()
    with pytest.raises(InvalidInput, match="ensemble"):
        write(train(X, targets["real"]), read(train(X, targets["real"], rounds=3)))


# --- random data ----------------------------------------------------------------------------------

VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, np.nan, 1.0, -1.0, ZERO, -ZERO, ZERO / 2, 1e300, -1e300]),
    st.floats(-5, 5, allow_nan=False),
)


@settings(max_examples=40, deadline=None)
@given(
    numbers=arrays(np.float64, (40, 2), elements=VALUES),
    categories=arrays(np.int64, 40, elements=st.integers(-1, 70)),
    y=arrays(np.float64, 40, elements=st.floats(-10, 10)),
    missing=st.sampled_from(list(MISSING)),
    boosting=st.sampled_from(list(BOOSTING)),
    objective=st.sampled_from(["regression", "binary", "multiclass", "poisson"]),
    fresh=arrays(np.float64, (20, 2), elements=VALUES),
)
def test_random_data(numbers, categories, y, missing, boosting, objective, fresh):
    X = np.column_stack([numbers, np.where(categories < 0, np.nan, categories)])
    targets = {"real": y, "positive": np.abs(y) + 0.1, "binary": y > 0}
    targets["classes"] = np.digitize(y, [-1, 1])
    options = {"min_data_in_leaf": 1, "min_data_per_group": 1}
    model = train(
        X,
        targets[OBJECTIVES[objective][0]],
        objective,
        rounds=3,
        categorical=[2],
        **{**options, **MISSING[missing], **BOOSTING[boosting]},
    )
    ensemble = read(model)
    native = np.vstack([X, np.column_stack([fresh, X[:20, 2]])])
    codes = native.copy()
    n_levels = len(ensemble.columns[2].levels)
    if n_levels:  # otherwise the column had nothing but NaN, or was of no use
        codes[native[:, 2] >= n_levels, 2] = n_levels
    assert_parity(model, ensemble, codes, native)
    assert_parity(write(model, changed(ensemble)), changed(ensemble), codes, native)

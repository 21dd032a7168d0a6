"""CatBoost models read, checked and written back: parity with the library's own answers.

Leaves must agree exactly. Margins agree to the rounding of adding the same float64 numbers in
another order (:func:`knothole.trees.verify.rounding`).
"""

import json

import catboost as cb
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knothole.columns.city_hash import hash_of, text_for
from knothole.columns.columns import HashedLevel, Kind
from knothole.errors import InvalidInput, NotFitted, UnsupportedModel
from knothole.trees import verify
from knothole.trees.read import read, write
from knothole.trees.readers import catboost as reader
from knothole.trees.readers.catboost import name_levels
from knothole.trees.thresholds import exact_less_equal_float32

POLICIES = ["SymmetricTree", "Lossguide", "Depthwise"]
TINY = {
    "iterations": 5,
    "depth": 3,
    "verbose": False,
    "allow_writing_files": False,
    "thread_count": 1,
    "max_ctr_complexity": 1,
}


pytestmark = pytest.mark.usefixtures("kept_child")


def numeric_table(rows=120, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, columns))
    X[rng.random(X.shape) < 0.1] = np.nan
    return X, np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) ** 2


def mixed_table(rows=150, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "size": rng.normal(size=rows),
            "city": rng.choice(["Linz", "Graz", "Wien", "Zürich", "", "a b"], rows),
            "age": rng.normal(size=rows),
            "plan": rng.integers(0, 30, rows),
        }
    )
    table.loc[::9, "size"] = np.nan
    target = np.nan_to_num(table["size"]) + 2 * (table.city < "L") + table["plan"] % 4
    return table, target.to_numpy()


def assert_parity(model, table, ensemble, X):
    """The ensemble gives rows ``X``, which are ``table`` in codes, what the model gives them."""
    pool = table
    if not isinstance(table, np.ndarray):
        pool = cb.Pool(table, cat_features=model.get_cat_feature_indices())
    leaves = ensemble.leaves(X)
    np.testing.assert_array_equal(ensemble.native_leaf[leaves], model.calc_leaf_indexes(pool))
    margin = ensemble.margin(X)
    native = cb.CatBoost.predict(model, pool, "RawFormulaVal").reshape(margin.shape)
    assert (np.abs(margin - native) <= verify.rounding(ensemble, leaves)).all()
    prediction = ensemble.predict(X)
    if ensemble.classes is not None and ensemble.n_outputs == 1:
        prediction = np.column_stack([1 - prediction, prediction])
    if ensemble.link.name in ("sigmoid", "softmax"):
        own = cb.CatBoost.predict(model, pool, "Probability")
    else:
        own = model.predict(pool).reshape(prediction.shape)
    np.testing.assert_allclose(prediction, own, rtol=1e-12, atol=1e-15)


# --- objectives -------------------------------------------------------------------------------

REGRESSION = {
    "RMSE": "identity",
    "MAE": "identity",
    "Quantile:alpha=0.3": "identity",
    "MultiQuantile:alpha=0.1,0.5,0.9": "identity",
    "Huber:delta=1": "identity",
    "Poisson": "exp",
    "Tweedie:variance_power=1.5": "exp",
    "MultiRMSE": "identity",
}
CLASSIFICATION = {
    "Logloss": "sigmoid",
    "CrossEntropy": "sigmoid",
    "MultiClass": "softmax",
    "MultiClassOneVsAll": "sigmoid",
    "MultiLogloss": "sigmoid",
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loss", REGRESSION)
def test_regressors(loss, policy):
    X, y = numeric_table()
    y = np.abs(y) if REGRESSION[loss] == "exp" else y
    y = np.column_stack([y, 1 - y]) if loss == "MultiRMSE" else y
    try:
        model = cb.CatBoostRegressor(loss_function=loss, grow_policy=policy, **TINY).fit(X, y)
    except cb.CatBoostError:
        pytest.skip(f"catboost does not train {loss} with {policy}")
    ensemble = read(model)
    assert ensemble.link.name == REGRESSION[loss]
    assert ensemble.classes is None
    assert_parity(model, X, ensemble, X)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_classifiers(loss, policy):
    X, y = numeric_table()
    target = np.digitize(y, [0.3, 1.0]) if loss.startswith("MultiClass") else (y > 0.5) * 1
    if loss == "MultiLogloss":
        target = np.column_stack([y > 0, y > 1, y < 0.5]) * 1
    model = cb.CatBoostClassifier(loss_function=loss, grow_policy=policy, **TINY).fit(X, target)
    ensemble = read(model)
    assert ensemble.link.name == CLASSIFICATION[loss]
    assert (ensemble.classes is None) == (loss == "MultiLogloss")
    assert_parity(model, X, ensemble, X)


@pytest.mark.parametrize("loss", ["YetiRank", "PairLogit", "QueryRMSE", "QuerySoftMax"])
def test_rankers(loss):
    X, y = numeric_table()
    model = cb.CatBoostRanker(loss_function=loss, **TINY)
    model.fit(X, (y > 0.5) * 1, group_id=np.repeat(np.arange(12), 10))
    assert_parity(model, X, read(model), X)


@pytest.mark.parametrize(
    "labels",
    [["no", "yes"], [False, True], [-2.0, 1.5], [3, 7], ["u", "v", "w"], [0.0, 10.5, 20.0]],
)
def test_class_labels_are_the_library_s(labels, tmp_path):
    X, y = numeric_table()
    target = np.array(labels)[np.digitize(y, [0.3, 1.0][: len(labels) - 1])]
    model = cb.CatBoostClassifier(**TINY).fit(X, target)
    ensemble = read(model)
    assert list(ensemble.classes) == model.classes_.tolist()
    assert [type(label) for label in ensemble.classes] == [type(label) for label in labels]
    model.save_model(str(tmp_path / "model.json"), format="json")
    assert read(tmp_path / "model.json").classes == ensemble.classes


def test_plain_catboost_by_its_loss():
    X, y = numeric_table()
    model = cb.CatBoost({"loss_function": "Poisson", **TINY}).fit(X, np.abs(y))
    np.testing.assert_allclose(read(model).predict(X)[:, 0], model.predict(X, "Exponent"))


def test_own_objectives():
    class Squared:
        def calc_ders_range(self, approxes, targets, weights):
            return [(targets[i] - approxes[i], -1.0) for i in range(len(targets))]

    X, y = numeric_table()
    model = cb.CatBoostRegressor(loss_function=Squared(), eval_metric="RMSE", **TINY).fit(X, y)
    assert read(model).link.name == "identity"
    assert_parity(model, X, read(model), X)
    model = cb.CatBoostClassifier(loss_function=Squared(), eval_metric="Logloss", **TINY)
    model.fit(X, y > 0.5)
    assert read(model).link.name == "sigmoid"
    assert_parity(model, X, read(model), X)


# --- what other readers get wrong ---------------------------------------------------------------


@pytest.mark.parametrize("loss", ["RMSE", "MAE", "MultiRMSE"])
def test_bias_is_part_of_the_margin(loss):
    """The mean of the target is no leaf value: shap leaves it out."""
    X, y = numeric_table()
    y = np.column_stack([y + 100, y - 50]) if loss == "MultiRMSE" else y + 100
    model = cb.CatBoostRegressor(loss_function=loss, boost_from_average=True, **TINY).fit(X, y)
    ensemble = read(model)
    np.testing.assert_array_equal(ensemble.base, np.reshape(model.get_scale_and_bias()[1], -1))
    assert (np.abs(ensemble.base) > 40).all()
    assert_parity(model, X, ensemble, X)


def test_scale_and_bias_set_by_hand():
    X, y = numeric_table()
    model = cb.CatBoostRegressor(**TINY).fit(X, y)
    model.set_scale_and_bias(2.5, -7.0)
    ensemble = read(model)
    assert ensemble.tree_weight.tolist() == [2.5] * 5
    assert ensemble.base.tolist() == [-7.0]
    assert_parity(model, X, ensemble, X)


def test_sums_of_models():
    X, y = numeric_table()
    models = [cb.CatBoostClassifier(random_seed=i, **TINY).fit(X, y > 0.5) for i in range(2)]
    total = cb.sum_models(models, weights=[0.3, 0.7])
    ensemble = read(total)
    assert (ensemble.n_trees, ensemble.classes) == (10, (False, True))
    assert_parity(total, X, ensemble, X)


@pytest.mark.parametrize("policy", POLICIES)
def test_cuts_are_exact_in_float64(policy):
    """Values next to where float32 rounding changes sides, for every border of the model."""
    X, y = numeric_table()
    X[:40, 0] = X[:40, 0].round(1) * 1e-40  # denormal in float32
    X[40:80, 1] *= 3e38
    model = cb.CatBoostRegressor(grow_policy=policy, border_count=30, **TINY).fit(X, y)
    ensemble = read(model)
    thresholds = ensemble.threshold[~np.isnan(ensemble.threshold)]
    column = ensemble.feature[~np.isnan(ensemble.threshold)]
    around = verify.steps_around(thresholds)
    rows = np.zeros((around.size, X.shape[1]))
    rows[np.arange(around.size), np.tile(column, len(around))] = around.ravel()
    assert_parity(model, rows, ensemble, rows)


def test_borders_become_cuts_by_slow_search():
    borders = np.array([0.0, 1.5, -2.25, 1e-45, np.finfo(np.float32).max], dtype=np.float32)
    for border, threshold in zip(borders, exact_less_equal_float32(borders), strict=True):
        with np.errstate(over="ignore"):
            assert np.float32(threshold) > border >= np.float32(np.nextafter(threshold, -np.inf))


def test_more_borders_and_values_than_fit_in_a_byte():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 1))
    options = {**TINY, "iterations": 150, "depth": 5, "border_count": 2000}
    model = cb.CatBoostRegressor(**options).fit(x, np.sin(50 * x))
    ensemble = read(model)
    assert len(np.unique(ensemble.threshold)) > 255
    assert_parity(model, x, ensemble, x)
    codes = pd.DataFrame({"c": rng.integers(0, 250, 2000)})
    options |= {"one_hot_max_size": 255}
    model = cb.CatBoostRegressor(**options).fit(codes, np.sin(1.7 * codes.c), cat_features=["c"])
    ensemble = name_levels(read(model), codes)
    assert len(ensemble.columns[0].levels) > 128
    assert_parity(model, codes, ensemble, ensemble.columns.describe(codes).matrix(codes))


# --- NaN ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", ["Min", "Max", "Forbidden"])
def test_nan_takes_the_library_s_side(mode, policy):
    X, y = numeric_table()
    complete = np.nan_to_num(X)
    model = cb.CatBoostRegressor(nan_mode=mode, grow_policy=policy, **TINY)
    model.fit(complete if mode == "Forbidden" else X, y)
    ensemble = read(model)
    X[::2] = np.nan
    assert_parity(model, X, ensemble, X)


def test_nan_in_a_column_that_was_complete_in_training():
    X, y = numeric_table()
    X[:, 1] = np.nan_to_num(X[:, 1])
    for mode in ("Min", "Max"):
        model = cb.CatBoostRegressor(nan_mode=mode, **TINY).fit(X, y)
        rows = X.copy()
        rows[:, 1] = np.nan
        assert_parity(model, rows, read(model), rows)


# --- categories -----------------------------------------------------------------------------------

CTRS = [
    "Borders",
    "Buckets",
    "BinarizedTargetMeanValue",
    "Counter",
    "Borders:TargetBorderCount=4",
    "Buckets:TargetBorderCount=4",
    "Borders:Prior=0.3:Prior=7",
    "Counter:CtrBorderCount=40",
]


def assert_categories_parity(model, table):
    """On real values, unseen ones among them, after naming the levels by the table."""
    ensemble = name_levels(read(model), table)
    rows = table.copy()
    rows["city"] = rows["city"].where(np.arange(len(rows)) % 5 > 0, "never seen")
    rows["plan"] = rows["plan"].where(np.arange(len(rows)) % 7 > 0, 12345)
    columns = ensemble.columns.describe(rows)
    assert_parity(model, rows, ensemble, columns.matrix(rows))
    # A missing value goes where an unseen category goes (CatBoost itself refuses it).
    incomplete = ensemble.columns.matrix(rows, handle_unknown="missing")
    assert_parity(model, rows, ensemble, incomplete)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ctr", CTRS)
def test_single_feature_ctrs(ctr, policy):
    table, y = mixed_table()
    model = cb.CatBoostRegressor(
        simple_ctr=[ctr], one_hot_max_size=1, grow_policy=policy, **TINY
    ).fit(table, y, cat_features=["city", "plan"])
    assert {f.key.kind for f in reader.cbm.parse(reader.saved(model)).ctrs} == {
        ctr.partition(":")[0]
    }
    assert_categories_parity(model, table)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("one_hot", [2, 8, 255])
def test_one_hot_splits(one_hot, policy):
    table, y = mixed_table()
    model = cb.CatBoostRegressor(one_hot_max_size=one_hot, grow_policy=policy, **TINY)
    model.fit(table, y, cat_features=["city", "plan"])
    assert_categories_parity(model, table)


@pytest.mark.parametrize("loss", ["Logloss", "MultiClass", "MultiClassOneVsAll"])
def test_ctrs_of_classifiers(loss):
    table, y = mixed_table()
    target = (y > 2) * 1 if loss == "Logloss" else np.digitize(y, [1, 2, 4])
    model = cb.CatBoostClassifier(loss_function=loss, one_hot_max_size=1, **TINY)
    model.fit(table, target, cat_features=["city", "plan"])
    assert_categories_parity(model, table)


def test_categories_by_dtype():
    table, y = mixed_table()
    table["city"] = table["city"].astype("category")
    table["plan"] = table["plan"].astype(str)
    model = cb.CatBoostRegressor(one_hot_max_size=1, **TINY)
    model.fit(table, y, cat_features=["city", "plan"])
    ensemble = name_levels(read(model), table)
    assert set(ensemble.columns[1].levels) == set(table["city"])
    assert_parity(model, table, ensemble, ensemble.columns.matrix(table))


def test_levels_must_be_named_before_they_are_looked_among():
    table, y = mixed_table()
    model = cb.CatBoostRegressor(**TINY).fit(table, y, cat_features=["city", "plan"])
    ensemble = read(model)
    assert all(isinstance(level, HashedLevel) for level in ensemble.columns[1].levels)
    with pytest.raises(InvalidInput, match="only by hash"):
        ensemble.columns.matrix(table)
    with pytest.raises(InvalidInput, match="only by hash"):
        ensemble.columns.describe(table)
    few = name_levels(ensemble, table[table.city != "Linz"])
    unnamed = [level for level in few.columns[1].levels if isinstance(level, HashedLevel)]
    assert [level.hash for level in unnamed] == [hash_of("Linz")]
    twice = table.assign(plan=pd.Series([3, "3"] * 75, dtype=object))
    with pytest.raises(InvalidInput, match="one category"):
        name_levels(ensemble, twice)
    with pytest.raises(InvalidInput, match=r"2\.5"):
        name_levels(ensemble, table.assign(plan=2.5))


def test_hashes_are_catboost_s(tmp_path):
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(33, 0x2FF, n))) for n in range(90)] * 2
    words += ["x" * 500, -4, 2**40, True]
    table = pd.DataFrame({"word": pd.Series(words, dtype=object)})
    pool = cb.Pool(table, np.arange(len(table)), cat_features=[0])
    model = cb.CatBoost({**TINY, "one_hot_max_size": 1}).fit(pool)
    model.save_model(str(tmp_path / "model.json"), format="json", pool=pool)
    info = json.loads((tmp_path / "model.json").read_text())["features_info"]
    theirs = {entry["value"]: entry["hash"] for entry in info["cat_features_hash"]}
    assert theirs == {value: hash_of(value) for value in theirs}
    assert {hash_of(word) for word in words} == set(theirs.values())
    ensemble = read(tmp_path / "model.json")
    assert {str(level) for level in ensemble.columns[0].levels} == set(theirs)


@given(st.integers(0, 2**32 - 1))
def test_some_text_has_any_hash(hash_value):
    assert hash_of(text_for(hash_value)) == hash_value


# --- columns ------------------------------------------------------------------------------------


def test_columns_in_the_table_s_order():
    table, y = mixed_table()
    table.insert(0, "constant", 1.0)
    model = cb.CatBoostRegressor(**TINY).fit(table, y, cat_features=["city", "plan"])
    columns = read(model).columns
    assert columns.names == tuple(table.columns)
    assert columns.named
    categorical = [column.name for column in columns if column.kind is Kind.CATEGORICAL]
    assert categorical == ["city", "plan"]
    X, y = numeric_table()
    columns = read(cb.CatBoostRegressor(**TINY).fit(X, y)).columns
    assert (columns.names, columns.named) == (("0", "1", "2"), False)


def test_unused_columns_stay():
    table, y = mixed_table()
    model = cb.CatBoostRegressor(ignored_features=[0, 3], **TINY)
    model.fit(table, y, cat_features=["city", "plan"])
    ensemble = read(model)
    assert len(ensemble.columns) == 4
    assert set(ensemble.feature.tolist()) <= {-1, 1, 2}
    model.drop_unused_features()
    with pytest.raises(UnsupportedModel, match="drop_unused_features"):
        read(model)


# --- trees --------------------------------------------------------------------------------------


def test_best_iteration():
    X, y = numeric_table(rows=200)
    options = {**TINY, "iterations": 60, "learning_rate": 1.0, "use_best_model": True}
    model = cb.CatBoostRegressor(**options)
    noise = np.random.default_rng(1).normal(size=100)
    model.fit(X[:100], y[:100] + noise, eval_set=(X[100:], y[100:]))
    ensemble = read(model)
    assert ensemble.n_trees == model.get_best_iteration() + 1 == model.tree_count_ < 60
    assert_parity(model, X, ensemble, X)
    model.shrink(2)
    assert read(model).n_trees == 2


@pytest.mark.parametrize("policy", ["SymmetricTree", "Lossguide"])
def test_trees_without_a_split_that_matters(policy):
    X, _ = numeric_table()
    options = {**TINY, "allow_const_label": True, "bootstrap_type": "No"}
    model = cb.CatBoostRegressor(grow_policy=policy, **options).fit(X, np.full(len(X), 3.0))
    ensemble = read(model)
    assert_parity(model, X, ensemble, X)


def test_lopsided_trees():
    X, y = numeric_table(rows=400)
    options = {**TINY, "grow_policy": "Lossguide", "depth": 14, "max_leaves": 40}
    model = cb.CatBoostRegressor(**options).fit(X, np.exp(3 * y))
    ensemble = read(model)
    assert np.diff(ensemble.leaf_start).max() > 2**5
    assert_parity(model, X, ensemble, X)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [cb.CatBoost, cb.CatBoostRegressor, cb.CatBoostClassifier])
def test_unfitted(kind):
    with pytest.raises(NotFitted, match="fit"):
        read(kind())


def test_combinations_are_refused_by_name():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"left": rng.integers(0, 8, 300), "right": rng.integers(0, 8, 300)})
    y = (table.left * 3 + table.right * 5) % 8
    options = {**TINY, "max_ctr_complexity": 2, "one_hot_max_size": 1, "iterations": 20}
    model = cb.CatBoostRegressor(**options).fit(table, y, cat_features=["left", "right"])
    with pytest.raises(UnsupportedModel, match=r"left, right.*max_ctr_complexity=1"):
        read(model)


def test_text_and_embedding_features_are_refused():
    table, y = mixed_table()
    words = table[["size", "age"]].assign(note=["good day " + c for c in table.city])
    model = cb.CatBoostRegressor(**TINY).fit(words, y, text_features=["note"])
    with pytest.raises(UnsupportedModel, match="text features"):
        read(model)
    vectors = table[["size"]].assign(place=np.random.default_rng(0).normal(size=(150, 3)).tolist())
    model = cb.CatBoostRegressor(**TINY).fit(vectors, y, embedding_features=["place"])
    with pytest.raises(UnsupportedModel, match="embedding features"):
        read(model)


def test_what_has_no_link_or_table_is_refused():
    X, y = numeric_table()
    with pytest.raises(UnsupportedModel, match="RMSEWithUncertainty"):
        read(cb.CatBoostRegressor(loss_function="RMSEWithUncertainty", **TINY).fit(X, y))
    table, y = mixed_table()
    options = {**TINY, "final_ctr_computation_mode": "Skip", "one_hot_max_size": 1}
    model = cb.CatBoostRegressor(**options).fit(table, y, cat_features=["city", "plan"])
    with pytest.raises(UnsupportedModel, match="final_ctr_computation_mode"):
        read(model)


# --- random models ------------------------------------------------------------------------------


@st.composite
def fitted(draw):
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    rows = draw(st.integers(20, 80))
    values = rng.choice([0.0, 1.0, -1.5, 0.1, 1e-42, 3e38, 1 / 3], size=(rows, 2))
    values = np.where(rng.random((rows, 2)) < 0.5, rng.normal(size=(rows, 2)), values)
    values[rng.random((rows, 2)) < draw(st.sampled_from([0, 0.3]))] = np.nan
    table = pd.DataFrame(values, columns=["x", "y"])
    table.insert(1, "c", rng.integers(0, draw(st.integers(2, 90)), rows))
    table["d"] = rng.choice(list("abcd"), rows)
    target = np.digitize(rng.normal(size=rows) + np.nan_to_num(np.tanh(values[:, 0])), [-0.5, 0.5])
    target[:3] = [0, 1, 2]
    options = {
        "loss_function": draw(st.sampled_from(["RMSE", "MAE", "Poisson", "MultiClass"])),
        "grow_policy": draw(st.sampled_from(POLICIES)),
        "depth": draw(st.integers(1, 6)),
        "nan_mode": draw(st.sampled_from(["Min", "Max"])),
        "one_hot_max_size": draw(st.sampled_from([2, 10, 255])),
        "border_count": draw(st.sampled_from([1, 5, 254])),
        "l2_leaf_reg": draw(st.sampled_from([0.1, 3])),
        "random_seed": seed,
    }
    model = cb.CatBoost({**TINY, **options, "bootstrap_type": "No"})
    return model.fit(table, target, cat_features=["c", "d"]), table


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(fitted())
def test_random_models(case):
    model, table = case
    reading = reader.read(model)
    verify.verify(reading, rows=200, seed=1)
    ensemble = name_levels(reading.ensemble, table)
    X = ensemble.columns.matrix(table, handle_unknown="missing")
    leaves = ensemble.native_leaf[ensemble.leaves(X)]
    pool = cb.Pool(table, cat_features=["c", "d"])
    np.testing.assert_array_equal(leaves, model.calc_leaf_indexes(pool))
    copy = write(model, reading.ensemble.with_values(ensemble.value * 1.1 + 0.01))
    np.testing.assert_array_equal(leaves, copy.calc_leaf_indexes(pool))


# --- files and leaves written back ----------------------------------------------------------------


def classifier_of_categories(policy):
    table, y = mixed_table()
    model = cb.CatBoostClassifier(grow_policy=policy, one_hot_max_size=7, **TINY)
    return model.fit(table, np.digitize(y, [1, 3]), cat_features=["city", "plan"]), table


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", ["cbm", "json"])
def test_files_read_like_the_live_model(form, policy, tmp_path):
    model, _ = classifier_of_categories(policy)
    path = tmp_path / f"model.{form}"
    model.save_model(str(path), format=form)
    # CatBoost does not round to the nearest float64 when it loads JSON.
    live = read(model if form == "cbm" else cb.CatBoost().load_model(str(path), format="json"))
    filed = read(path)
    np.testing.assert_allclose(filed.value, read(model).value, rtol=1e-15)
    for name in ("roots", "feature", "threshold", "left", "missing_left", "set_start", "sets",
    "value",
                 "native_leaf", "base", "tree_weight"):  # fmt: skip
        np.testing.assert_array_equal(getattr(filed, name), getattr(live, name), err_msg=name)
    assert filed.columns == live.columns
    assert (filed.link, filed.classes) == (live.link, live.classes)


@pytest.mark.parametrize("policy", POLICIES)
def test_unchanged_leaves_predict_the_same(policy):
    model, table = classifier_of_categories(policy)
    before = model.predict(table, "RawFormulaVal")
    copy = write(model, read(model))
    assert type(copy) is cb.CatBoostClassifier
    assert copy.get_params() == model.get_params()
    assert copy.feature_names_ == model.feature_names_
    np.testing.assert_array_equal(copy.classes_, model.classes_)
    np.testing.assert_array_equal(copy.predict(table, "RawFormulaVal"), before)
    np.testing.assert_array_equal(copy.predict_proba(table), model.predict_proba(table))


@pytest.mark.parametrize("policy", POLICIES)
def test_new_leaves_predict_what_the_ensemble_does(policy, tmp_path):
    model, table = classifier_of_categories(policy)
    before = model.predict(table, "RawFormulaVal")
    ensemble = read(model)
    rng = np.random.default_rng(0)
    changed = ensemble.with_values(rng.normal(size=ensemble.value.shape) * np.pi)
    copy = write(model, changed)
    np.testing.assert_array_equal(read(copy).value, changed.value)  # to the last bit
    named = name_levels(changed, table)
    X = named.columns.describe(table).matrix(table)
    assert_parity(copy, table, named, X)
    np.testing.assert_array_equal(model.predict(table, "RawFormulaVal"), before)
    np.testing.assert_array_equal(read(model).value, ensemble.value)
    copy.save_model(str(tmp_path / "copy.cbm"))
    again = cb.CatBoostClassifier().load_model(str(tmp_path / "copy.cbm"))
    np.testing.assert_array_equal(again.predict_proba(table), copy.predict_proba(table))
    twice = write(copy, ensemble)
    np.testing.assert_array_equal(twice.predict(table, "RawFormulaVal"), before)


def test_written_copies_keep_what_the_model_remembers():
    X, y = numeric_table(rows=200)
    model = cb.CatBoostRegressor(use_best_model=True, **{**TINY, "iterations": 30})
    model.fit(X[:100], y[:100], eval_set=(X[100:], y[100:]))
    copy = write(model, read(model))
    assert copy.tree_count_ == model.tree_count_
    assert copy.n_features_in_ == model.n_features_in_
    assert copy.best_iteration_ == model.best_iteration_
    np.testing.assert_allclose(  # kept as text, and not read back to the last bit
        copy.evals_result_["validation"]["RMSE"], model.evals_result_["validation"]["RMSE"]
    )
    np.testing.assert_array_equal(copy.feature_importances_, model.feature_importances_)
    # Importances of other leaves are other importances.
    ensemble = read(model)
    value = np.random.default_rng(0).normal(size=ensemble.value.shape)
    changed = write(model, ensemble.with_values(value))
    remembered = changed.feature_importances_
    assert not np.allclose(remembered, model.feature_importances_)
    np.testing.assert_array_equal(remembered, changed.get_feature_importance())


def test_other_trees_are_refused():
    X, y = numeric_table()
    one = cb.CatBoostRegressor(**TINY).fit(X, y)
    other = cb.CatBoostRegressor(**{**TINY, "depth": 2}).fit(X, y)
    with pytest.raises(InvalidInput, match="not read from this model"):
        write(one, read(other))

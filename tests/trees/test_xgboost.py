"""XGBoost: every objective and option read exactly, from live models and files, and written back.

``read`` and ``write`` check themselves; here the native predictions are compared once more, on
rows the self-check does not make. Leaves must be equal; margins and predictions may differ by the
rounding of XGBoost's float32 sums.
"""

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from knothole.columns.columns import Kind
from knothole.errors import InvalidInput, NotFitted, ReaderMismatch, UnsupportedModel
from knothole.trees import verify
from knothole.trees.links import Link
from knothole.trees.read import read, write
from knothole.trees.readers import ubjson
from knothole.trees.readers import xgboost as reader

ROWS = 200


def make_data(seed=0, rows=ROWS, missing_rate=0.1):
    """Columns of different scales with NaN, and a response that depends on them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [
            rng.normal(size=rows),
            rng.integers(-2, 3, rows),
            1e6 + rng.normal(size=rows),
            rng.normal(size=rows) * 1e-30,
        ]
    )
    y = X[:, 0] + np.sin(X[:, 1]) + (X[:, 3] > 0) + 0.3 * rng.normal(size=rows)
    X[rng.random(X.shape) < missing_rate] = np.nan
    return X, y


def booster_of(model):
    return model.get_booster() if isinstance(model, xgb.XGBModel) else model


def matrix(booster, X, missing=np.nan):
    return xgb.DMatrix(
        X,
        missing=missing,
        feature_names=booster.feature_names,
        feature_types=booster.feature_types,
        enable_categorical=True,
        nthread=1,
    )


def assert_same(ensemble, booster, X, rounds=0):
    """The Booster's own leaves, margins and predictions for rows of codes."""
    data = matrix(booster, X)
    leaves = ensemble.leaves(X)
    native = booster.predict(data, pred_leaf=True, iteration_range=(0, rounds))
    assert np.array_equal(ensemble.native_leaf[leaves], native.reshape(len(X), -1))
    margin = booster.predict(data, output_margin=True, iteration_range=(0, rounds))
    error = np.abs(ensemble.margin(X) - margin.reshape(len(X), -1))
    assert (error <= verify.rounding(ensemble, leaves)).all()
    response = booster.predict(data, iteration_range=(0, rounds)).reshape(len(X), -1)
    if ensemble.link.name == "softmax" and response.shape[1] == 1:
        assert np.array_equal(ensemble.predict(X).argmax(axis=1), response[:, 0])
    else:
        assert np.allclose(ensemble.predict(X), response, rtol=1e-4, atol=1e-6)


def assert_equal(one, other):
    """Two ensembles that are the same in every array."""
    for name, value in vars(one).items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(other, name), equal_nan=value.dtype.kind == "f")
    assert (one.columns, one.link, one.classes) == (other.columns, other.link, other.classes)


def labels_for(objective, y):
    rng = np.random.default_rng(9)
    if objective.startswith("multi:"):
        return np.digitize(y, np.quantile(y, [0.3, 0.6]))
    if objective.startswith(("binary:", "rank:")) or objective == "reg:logistic":
        return (y > 0).astype(float)
    if objective == "count:poisson":
        return rng.poisson(np.exp(y / 2))
    if objective.startswith(("reg:gamma", "reg:tweedie", "survival:", "reg:squaredlog")):
        return np.abs(y) + 0.1
    return y


def train(objective="reg:squarederror", rounds=6, seed=0, **params):
    X, y = make_data(seed)
    data = xgb.DMatrix(X, label=labels_for(objective, y))
    if objective.startswith("multi:"):
        params["num_class"] = 3
    if objective.startswith("rank:"):
        data.set_group([ROWS // 2, ROWS // 2])
    if objective == "survival:aft":
        data.set_float_info("label_lower_bound", data.get_label())
        data.set_float_info("label_upper_bound", data.get_label())
    if objective == "reg:quantileerror":
        params.setdefault("quantile_alpha", 0.7)
    settings = {"max_depth": 3, "nthread": 1, "seed": seed, "objective": objective} | params
    return xgb.train(settings, data, rounds), X


# --- objectives and options --------------------------------------------------------------------


@pytest.mark.parametrize("objective", sorted(reader.LINKS))
@pytest.mark.parametrize("base_score", [None, 0.3])
def test_objectives(objective, base_score):
    params = {} if base_score is None else {"base_score": base_score}
    booster, X = train(objective, **params)
    ensemble = read(booster)
    assert ensemble.link == Link(reader.LINKS[objective])
    assert_same(ensemble, booster, X)


OPTIONS = {
    "exact, pruned": {"tree_method": "exact", "gamma": 2.0, "max_depth": 6},
    "approx": {"tree_method": "approx"},
    "by loss": {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 13},
    "forest": {"num_parallel_tree": 3, "subsample": 0.6, "colsample_bynode": 0.5},
    "dart": {"booster": "dart", "rate_drop": 0.5},
    "dart forest": {"booster": "dart", "rate_drop": 0.5, "num_parallel_tree": 2},
    "dart by tree": {"booster": "dart", "rate_drop": 0.3, "normalize_type": "forest"},
    "deep": {"max_depth": 14, "min_child_weight": 0},
    "stumps": {"max_depth": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "multi:softprob"])
def test_options(objective, options):
    booster, X = train(objective, **options)
    assert_same(read(booster), booster, X)


def test_dart_weights_count():
    booster, X = train(booster="dart", rate_drop=0.5, rounds=10)
    ensemble = read(booster)
    assert len(set(ensemble.tree_weight.tolist())) > 1
    assert_same(ensemble, booster, X)


def test_several_quantiles_of_one_model():
    booster, X = train("reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9])
    ensemble = read(booster)
    assert ensemble.n_outputs == 3 and len(set(ensemble.base.tolist())) == 3
    assert_same(ensemble, booster, X)


@pytest.mark.parametrize("strategy", ["one_output_per_tree", "multi_output_tree"])
@pytest.mark.parametrize("targets", [2, 5])
def test_several_targets(strategy, targets):
    X, y = make_data()
    Y = np.column_stack([y * k + (X[:, 1] == k) for k in range(targets)])
    model = xgb.XGBRegressor(n_jobs=1, n_estimators=4, max_depth=3, multi_strategy=strategy).fit(
        X, Y
    )
    ensemble = read(model)
    assert ensemble.value.shape[1] == (targets if strategy == "multi_output_tree" else 1)
    assert_same(ensemble, model.get_booster(), X)
    assert np.allclose(ensemble.predict(X), model.predict(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", [0.002, 0.5, 0.9995])
def test_rounding_of_a_logit_is_reproduced(share):
    """With one small tree and a rare class, the base score is all there is."""
    X, _ = make_data(rows=4000)
    label = np.arange(4000) < share * 4000
    model = xgb.XGBClassifier(n_jobs=1, n_estimators=1, max_depth=1, learning_rate=1e-6).fit(
        X, label
    )
    ensemble = read(model)
    margin = model.predict(X, output_margin=True)
    assert np.allclose(ensemble.margin(X)[:, 0], margin, rtol=3e-7, atol=0)


@settings(max_examples=20, deadline=None)
@given(
    X=arrays(
        np.float64,
        st.tuples(st.integers(3, 25), st.integers(1, 3)),
        elements=st.one_of(
            st.just(np.nan),
            st.integers(-3, 3).map(float),
            st.floats(-(2.0**100), 2.0**100, width=32),
        ),
    ),
    objective=st.sampled_from(["reg:squarederror", "binary:logistic", "multi:softprob"]),
    seed=st.integers(0, 99),
)
def test_any_data(X, objective, seed):
    label = np.random.default_rng(seed).integers(0, 2, len(X))
    params = {"objective": objective, "min_child_weight": 0, "max_depth": 4, "nthread": 1}
    if objective == "multi:softprob":
        params["num_class"] = 2
    booster = xgb.train(params, xgb.DMatrix(X, label=label), 3)
    ensemble = read(booster)
    assert_same(ensemble, booster, X)
    assert_same(ensemble, booster, verify.probe_rows(ensemble, 50, np.random.default_rng(seed)))


def with_thresholds(booster, thresholds):
    """A copy whose first splits have other thresholds."""
    document = json.loads(bytes(booster.save_raw("json")))
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    for tree, threshold in zip(trees, thresholds, strict=True):
        tree["split_conditions"][0] = float(np.float32(threshold))
    return xgb.Booster(model_file=bytearray(json.dumps(document).encode()))


def test_cuts_are_exact_to_the_bit():
    """At thresholds, at the midpoints to their float32 neighbours, and one ulp around both."""
    largest, tiny = np.finfo(np.float32).max, np.float32(1e-45)
    thresholds = [0.0, -0.0, tiny, -tiny, 3 * tiny, 1.0, 0.1, -0.1, 16777216.0, 16777218.0]
    thresholds += [largest, -np.nextafter(largest, np.float32(0)), np.finfo(np.float32).tiny]
    booster, _ = train(max_depth=1, rounds=len(thresholds))
    booster = with_thresholds(booster, thresholds)
    ensemble = read(booster)
    t = np.array(thresholds, dtype=np.float32)
    with np.errstate(over="ignore"):
        above = np.nextafter(t, np.float32(np.inf))
    near = np.concatenate([t, np.nextafter(t, np.float32(-np.inf)), above]).astype(np.float64)
    near = near[np.isfinite(near)]
    near = np.concatenate([near, (near[:, None] + near).ravel() / 2])
    near = np.concatenate([near, np.nextafter(near, -np.inf), np.nextafter(near, np.inf)])
    near = near[np.abs(near) <= largest]
    assert_same(ensemble, booster, np.repeat(near[:, None], 4, axis=1))


# --- wrappers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator",
    [xgb.XGBRegressor(n_jobs=1, n_estimators=5), xgb.XGBRFRegressor(n_jobs=1, n_estimators=5)],
)
def test_regressors(estimator):
    X, y = make_data()
    model = estimator.fit(X, y)
    ensemble = read(model)
    assert ensemble.classes is None
    assert np.allclose(ensemble.predict(X)[:, 0], model.predict(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [xgb.XGBClassifier, xgb.XGBRFClassifier])
def test_classifiers(kind, classes):
    X, y = make_data()
    label = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    model = kind(n_jobs=1, n_estimators=5, max_depth=3).fit(X, label)
    ensemble = read(model)
    assert ensemble.classes == tuple(range(classes))
    probability = ensemble.predict(X)
    if classes == 2:
        probability = np.column_stack([1 - probability, probability])
    assert np.allclose(probability, model.predict_proba(X), atol=1e-6)


def test_several_labels_at_once():
    X, y = make_data()
    model = xgb.XGBClassifier(n_jobs=1, n_estimators=4).fit(
        X, np.column_stack([y > 0, y > 1]).astype(int)
    )
    ensemble = read(model)
    assert ensemble.link == Link("sigmoid") and ensemble.classes is None
    assert np.allclose(ensemble.predict(X), model.predict_proba(X), atol=1e-6)


def test_ranker():
    X, y = make_data()
    query = np.repeat([0, 1], ROWS // 2)
    model = xgb.XGBRanker(n_jobs=1, n_estimators=4).fit(X, (y > 0).astype(int), qid=query)
    assert np.allclose(read(model).predict(X)[:, 0], model.predict(X), rtol=1e-5, atol=1e-6)


def test_objective_of_the_users():
    """predict applies the link of the objective that the model carries; so do we."""
    X, y = make_data()

    def gradient(label, margin):
        return margin - label, np.ones_like(margin)

    regressor = xgb.XGBRegressor(n_jobs=1, n_estimators=3, objective=gradient).fit(X, y)
    assert read(regressor).link == Link("identity")
    classifier = xgb.XGBClassifier(n_jobs=1, n_estimators=3, objective=gradient).fit(X, y > 0)
    probability = read(classifier).predict(X)[:, 0]
    assert np.allclose(probability, classifier.predict_proba(X)[:, 1], atol=1e-6)


@pytest.fixture(scope="module")
def stopped():
    """A wrapper whose training went on for some rounds after the best one."""
    X, y = make_data()
    label = np.digitize(y + np.random.default_rng(0).normal(size=ROWS), [-1, 1])
    model = xgb.XGBClassifier(
        n_jobs=1, n_estimators=60, max_depth=3, num_parallel_tree=2, early_stopping_rounds=4
    )
    model.fit(X[:100], label[:100], eval_set=[(X[100:], label[100:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    return model, X


def test_early_stopping(stopped, tmp_path):
    """A wrapper predicts with the rounds up to the best one, a Booster with all."""
    model, X = stopped
    ensemble = read(model)
    assert ensemble.n_trees == (model.best_iteration + 1) * 2 * 3
    assert np.allclose(ensemble.predict(X), model.predict_proba(X), atol=1e-6)
    booster = model.get_booster()
    everything = read(booster)
    assert everything.n_trees == booster.num_boosted_rounds() * 2 * 3
    assert_same(everything, booster, X)
    model.save_model(tmp_path / "wrapper.ubj")
    assert_equal(reader.read_file(tmp_path / "wrapper.ubj"), ensemble)
    booster.save_model(tmp_path / "booster.ubj")
    assert_equal(reader.read_file(tmp_path / "booster.ubj"), everything)


@pytest.mark.parametrize("missing", [0.0, -999.0, 0.1, 16777217.0, np.inf])
def test_number_for_missing(missing):
    X, y = make_data()
    X[:, 0] = np.round(X[:, 0])
    if np.isfinite(missing):
        X[np.isnan(X)] = missing
        X[:9, 3] = missing * np.linspace(0.9999999, 1.0000001, 9)
    model = xgb.XGBRegressor(n_jobs=1, n_estimators=5, max_depth=3, missing=missing).fit(X, y)
    ensemble = read(model)
    X = X[np.isfinite(X).all(axis=1)] if missing == np.inf else X
    assert np.allclose(ensemble.predict(X)[:, 0], model.predict(X), rtol=1e-5, atol=1e-5)


def test_number_for_missing_is_compared_in_float32():
    X, y = make_data(missing_rate=0)
    missing = 0.1
    X[X[:, 0] < 0, 0] = missing
    model = xgb.XGBRegressor(n_jobs=1, n_estimators=3, max_depth=3, missing=missing).fit(X, y)
    ensemble = read(model)
    first, last = ensemble.sentinel[0]
    assert first < missing < last
    for value in (first, last):
        assert np.float32(value) == np.float32(missing)
    outside = [np.nextafter(first, -np.inf), np.nextafter(last, np.inf)]
    rows = np.tile(X[:1], (4, 1))
    rows[:, 0] = [first, last, *outside]
    data = matrix(model.get_booster(), rows, missing)
    native = model.get_booster().predict(data, pred_leaf=True)
    assert np.array_equal(ensemble.native_leaf[ensemble.leaves(rows)], native)
    assert np.allclose(ensemble.predict(rows)[:, 0], model.predict(rows), atol=1e-6)


# --- columns and categories --------------------------------------------------------------------


def make_table(seed=0, rows=ROWS):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "number": rng.normal(size=rows),
            "letter": pd.Categorical(rng.choice(list("dacbfe"), rows), list("dacbfe")),
            "count": rng.integers(0, 9, rows),
            "year": pd.Categorical(rng.choice([1990, 2000, -5], rows), [1990, 2000, -5]),
            "flag": rng.random(rows) < 0.5,
        }
    )
    table.loc[rng.random(rows) < 0.1, "letter"] = None
    y = table["letter"].cat.codes % 3 + table["number"] + 2 * (table["year"] == 2000)
    return table, y.to_numpy()


@pytest.mark.parametrize("onehot_up_to", [1, 100], ids=["partition", "one-hot"])
def test_categories_of_a_table(onehot_up_to):
    table, y = make_table()
    model = xgb.XGBRegressor(
        n_jobs=1,
        n_estimators=6,
        max_depth=4,
        enable_categorical=True,
        max_cat_to_onehot=onehot_up_to,
    ).fit(table, y)
    ensemble = read(model)
    assert ensemble.columns.named and ensemble.columns.names == tuple(table.columns)
    kinds = [column.kind for column in ensemble.columns]
    assert kinds == [
        Kind.CONTINUOUS,
        Kind.CATEGORICAL,
        Kind.INTEGER,
        Kind.CATEGORICAL,
        Kind.INTEGER,
    ]
    assert ensemble.columns[1].levels == tuple("dacbfe")
    assert ensemble.columns[3].levels == (1990, 2000, -5)
    native = model.predict(table)
    X = ensemble.columns.matrix(table)
    assert np.allclose(ensemble.predict(X)[:, 0], native, rtol=1e-5, atol=1e-5)
    # Levels in another order are other codes for the same table; XGBoost 3.1 and we see to it.
    other = table.assign(letter=table["letter"].cat.reorder_categories(list("abcdef")))
    assert np.array_equal(ensemble.columns.matrix(other), X, equal_nan=True)
    assert np.array_equal(model.predict(other), native)


@pytest.mark.parametrize("levels", [3, 63, 64, 65, 200])
@pytest.mark.parametrize("onehot_up_to", [1, 1000], ids=["partition", "one-hot"])
def test_codes_as_categories(levels, onehot_up_to):
    """Codes on a numpy array; every code above those that splits name is one never seen."""
    rng = np.random.default_rng(levels)
    X = np.column_stack([rng.integers(0, levels, 900), rng.normal(size=900)]).astype(float)
    y = np.sin(X[:, 0] * 7) + 0.1 * X[:, 1]
    X[:20, 0] = np.nan
    types = ["c", "q"]
    booster = xgb.train(
        {"max_depth": 5, "max_cat_to_onehot": onehot_up_to, "nthread": 1},
        xgb.DMatrix(X, label=y, feature_types=types, enable_categorical=True),
        5,
    )
    ensemble = read(booster)
    known = ensemble.columns[0].levels
    assert not ensemble.columns.named
    assert known == tuple(range(len(known))) and len(known) <= levels
    X[20:60, 0] = rng.choice([levels, levels + 1, 64, 1000, 2**24 - 1, 2**24, 1e30], 40)
    assert_same(ensemble, booster, X)


def test_codes_with_large_gaps_are_refused():
    X = np.repeat([[0.0], [2.0**21]], 20, axis=0)
    data = xgb.DMatrix(X, label=-X[:, 0], feature_types=["c"], enable_categorical=True)
    booster = xgb.train({"max_cat_to_onehot": 1, "nthread": 1}, data, 1)
    with pytest.raises(UnsupportedModel, match="without gaps"):
        read(booster)


def test_a_column_of_codes_that_no_split_uses():
    X, y = make_data(missing_rate=0)
    X = np.column_stack([X[:, 0], np.zeros(ROWS)])
    data = xgb.DMatrix(X, label=y, feature_types=["q", "c"], enable_categorical=True)
    booster = xgb.train({"max_depth": 2}, data, 2)
    column = read(booster).columns[1]
    assert column.kind is Kind.CATEGORICAL and column.levels == ()


@pytest.mark.parametrize("levels", [["é", "a", "b"], ["éa", "b"]])
def test_names_that_xgboost_cuts_short_are_refused(levels):
    """XGBoost 3.2 counts characters where it stores bytes; the names cannot be told."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"c": pd.Categorical(rng.choice(levels, 100), levels)})
    model = xgb.XGBRegressor(n_jobs=1, n_estimators=2, enable_categorical=True, max_cat_to_onehot=1)
    model.fit(table, table["c"].cat.codes)
    with pytest.raises(UnsupportedModel, match="ASCII"):
        read(model)


def test_codes_without_their_meaning_are_refused(tmp_path):
    """Before 3.1 a table's categories were codes in the model, and their names nowhere."""
    table, y = make_table()
    model = xgb.XGBRegressor(n_jobs=1, n_estimators=2, enable_categorical=True).fit(table, y)
    document = json.loads(bytes(model.get_booster().save_raw("json")))
    document["version"] = [3, 0, 5]
    del document["learner"]["gradient_booster"]["model"]["cats"]
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UnsupportedModel, match="letter"):
        read(path)
    document["learner"]["feature_names"] = []
    path.write_text(json.dumps(document))
    levels = reader.read_file(path).columns[1].levels
    assert levels == tuple(range(len(levels)))


def test_names_of_columns_are_checked():
    table, y = make_table()
    table = table[["number", "count"]]
    ensemble = read(xgb.XGBRegressor(n_jobs=1, n_estimators=2).fit(table, y))
    expected = ensemble.columns.matrix(table)
    turned = ensemble.columns.matrix(table[["count", "number"]])
    np.testing.assert_array_equal(turned, expected)
    with pytest.raises(InvalidInput, match="count"):
        ensemble.columns.matrix(table[["number"]])


# --- files -------------------------------------------------------------------------------------

SAVED = {
    "dart": lambda: train(booster="dart", rate_drop=0.5)[0],
    "poisson": lambda: train("count:poisson")[0],
    "softprob": lambda: train("multi:softprob", num_parallel_tree=2)[0],
    "pruned": lambda: train(tree_method="exact", gamma=2.0, max_depth=6)[0],
    "vector": lambda: booster_of(
        xgb.XGBRegressor(n_jobs=1, n_estimators=3, multi_strategy="multi_output_tree").fit(
            make_data()[0], make_data()[0][:, [1, 1]].round() == 1
        )
    ),
    "table": lambda: booster_of(
        xgb.XGBRegressor(n_jobs=1, n_estimators=3, enable_categorical=True).fit(*make_table())
    ),
}


@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED)
def test_files_hold_what_the_model_holds(make, tmp_path):
    booster = make()
    ensemble = read(booster)
    for name in ("model.json", "model.ubj"):
        booster.save_model(tmp_path / name)
        assert_equal(reader.read_file(tmp_path / name), ensemble)


@pytest.mark.parametrize("make", SAVED.values(), ids=SAVED)
def test_both_forms_say_the_same(make):
    booster = make()

    def plain(value):
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            return value.astype(np.float32).tolist()
        return value.tolist() if isinstance(value, np.ndarray) else value

    def single(value):
        return float(np.float32(value))

    binary = plain(ubjson.parse(bytes(booster.save_raw("ubj"))))
    text = json.loads(bytes(booster.save_raw("json")), parse_float=single)
    assert binary == text


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_files_are_checked_with_the_library(stopped, suffix, tmp_path):
    """Whatever the file is called; XGBoost itself goes by the end of the name."""
    model, _ = stopped
    model.save_model(tmp_path / f"model.{suffix}")
    path = (tmp_path / f"model.{suffix}").rename(tmp_path / "model.txt")
    assert_equal(read(str(path)), read(model))


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*not used")
def test_what_has_no_trees_is_refused_by_name():
    X, y = make_data(missing_rate=0)
    linear = xgb.train({"booster": "gblinear"}, xgb.DMatrix(X, label=y), 2)
    with pytest.raises(UnsupportedModel, match=r"gblinear.*gbtree"):
        read(linear)
    hinge = xgb.train({"objective": "binary:hinge"}, xgb.DMatrix(X, label=y > 0), 2)
    with pytest.raises(UnsupportedModel, match="binary:hinge"):
        read(hinge)


def test_not_fitted():
    X, y = make_data()
    for model in (
        xgb.XGBRegressor(),
        xgb.Booster(),
        xgb.XGBRegressor(n_jobs=1, n_estimators=0).fit(X, y),
    ):
        with pytest.raises(NotFitted):
            read(model)


def test_the_link_is_checked(monkeypatch):
    booster, _ = train(base_score=0.3)
    monkeypatch.setitem(reader.LINKS, "reg:squarederror", "exp")
    with pytest.raises(ReaderMismatch, match="link"):
        read(booster)


# --- writing -----------------------------------------------------------------------------------


def snapshot(model):
    """Everything there is to an object."""
    return pickle.dumps(model)


WRITTEN = SAVED | {
    "classifier": lambda: xgb.XGBClassifier(n_jobs=1, n_estimators=3).fit(
        make_data()[0], make_data()[1] > 0
    ),
    "forest": lambda: xgb.XGBRFRegressor(n_jobs=1, n_estimators=3).fit(*make_data()),
    "wrapped table": lambda: xgb.XGBRegressor(
        n_jobs=1, n_estimators=3, enable_categorical=True
    ).fit(*make_table()),
}


@pytest.mark.parametrize("make", WRITTEN.values(), ids=WRITTEN)
def test_round_trip(make):
    model = make()
    before = snapshot(model)
    ensemble = read(model)
    same = write(model, ensemble)
    assert snapshot(same) == before
    assert snapshot(model) == before
    value = np.random.default_rng(1).normal(size=ensemble.value.shape)
    changed = write(model, ensemble.with_values(value))
    assert snapshot(model) == before
    assert type(changed) is type(model)
    written = read(changed)
    assert np.array_equal(written.value, value.astype(np.float32))
    rows = verify.probe_rows(ensemble, 60, np.random.default_rng(0))
    assert_same(written, booster_of(changed), rows)
    error = np.abs(written.margin(rows) - ensemble.with_values(value).margin(rows))
    assert (error <= verify.rounding(written, ensemble.leaves(rows))).all()


def test_trees_after_the_best_stay_unused(stopped):
    model, X = stopped
    before = snapshot(model)
    ensemble = read(model)
    value = np.random.default_rng(0).normal(size=ensemble.value.shape)
    changed = write(model, ensemble.with_values(value))
    assert snapshot(model) == before
    assert changed.best_iteration == model.best_iteration
    assert np.array_equal(changed.classes_, model.classes_)
    assert changed.n_features_in_ == model.n_features_in_
    assert changed.evals_result() == model.evals_result()
    assert np.allclose(changed.predict_proba(X), ensemble.with_values(value).predict(X), atol=1e-5)
    rest, changed_rest = (
        read(m.get_booster()).value[ensemble.n_leaves :] for m in (model, changed)
    )
    assert len(rest) and np.array_equal(rest, changed_rest)


def test_a_copy_is_independent():
    X, y = make_data()
    model = xgb.XGBRegressor(
        n_jobs=1, n_estimators=2, kwargs={"fail_on_invalid_gpu_id": False}
    ).fit(X, y)
    before = snapshot(model)
    copy = write(model, read(model))
    copy.kwargs["fail_on_invalid_gpu_id"] = True
    copy.set_params(max_depth=9)
    copy.get_booster().set_attr(note="changed")
    assert snapshot(model) == before


def test_values_too_large_for_float32():
    booster, _ = train()
    ensemble = read(booster)
    with pytest.raises(InvalidInput, match="float32"):
        write(booster, ensemble.with_values(np.full(ensemble.value.shape, 1e39)))

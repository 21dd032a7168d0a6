"""``nan_policy`` with models of all libraries: what holds whatever the density makes of rows."""

import catboost as cb
import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

import knothole as kh


def training_table(n=400):
    """Numbers and a category; what is not recorded goes with the hidden group."""
    rng = np.random.default_rng(0)
    z = rng.integers(0, 3, n)
    table = pd.DataFrame(
        {
            "a": rng.normal(size=n) + z,
            "b": rng.normal(size=n) - z,
            "c": rng.poisson(1 + z).astype(float),
            "g": pd.Categorical(np.array(["x", "y", "w"])[(z + (rng.random(n) < 0.3)) % 3]),
        }
    )
    table.loc[rng.random(n) < 0.1 + 0.4 * (z == 1), "a"] = np.nan
    table.loc[rng.random(n) < 0.15 + 0.3 * (z == 2), "g"] = np.nan
    return table, z


TABLE, GROUP = training_table()
NUMBERS = TABLE[["a", "b", "c"]]
SCORE = (2 * GROUP + TABLE["b"] + TABLE["a"].fillna(-2)).to_numpy()
MODELS = {
    "XGBoost": (xgb.XGBClassifier(n_estimators=6, max_depth=3, enable_categorical=True), TABLE),
    "XGBoost, zeros": (xgb.XGBRegressor(n_estimators=6, max_depth=3, missing=0.0), NUMBERS),
    "LightGBM": (lgb.LGBMClassifier(n_estimators=6, num_leaves=8, verbose=-1), TABLE),
    "LightGBM, zeros": (
        lgb.LGBMRegressor(n_estimators=6, num_leaves=8, verbose=-1, zero_as_missing=True),
        NUMBERS,
    ),
    "CatBoost": (
        cb.CatBoostClassifier(iterations=6, depth=3, verbose=0, allow_writing_files=False),
        NUMBERS,
    ),
    "scikit-learn": (
        HistGradientBoostingClassifier(max_iter=6, categorical_features="from_dtype"),
        TABLE,
    ),
    "forest": (RandomForestClassifier(6, max_depth=4, random_state=0), NUMBERS),
    "imputer": (
        make_pipeline(SimpleImputer(), RandomForestClassifier(6, max_depth=4, random_state=0)),
        NUMBERS,
    ),
}
DENSITIES = {
    "Mixture": kh.Mixture(3, n_init=1, random_state=0),
    "GaussianMixture": kh.GaussianMixture(2, random_state=0),
}


def with_missing(table):
    """Forty rows: the first lacks everything, the second nothing."""
    missing = np.random.default_rng(1).random((40, table.shape[1])) < 0.4
    missing[0], missing[1] = True, False
    return table.iloc[:40].mask(missing)


def answer(model):
    return model.predict_proba if hasattr(model, "predict_proba") else model.predict


@pytest.fixture(scope="module", params=[(m, d) for m in MODELS for d in DENSITIES], ids=str)
def wrapped(request):
    """A model, its table, and what "infer" and "native" make of it."""
    name, density = request.param
    model, table = MODELS[name]
    model.fit(table, GROUP if hasattr(model, "classes_") or "Cl" in repr(model) else SCORE)
    robust = {
        policy: kh.wrap(
            model, table, density=DENSITIES[density], nan_policy=policy, correction=False,
            sample_weight=np.linspace(0.5, 1.5, len(table)),
        )
        for policy in ("infer", "native")
    }  # fmt: skip
    return model, table, robust


def test_answers_are_numbers_and_of_rows_alone(wrapped):
    _, table, robust = wrapped
    rows = with_missing(table)
    lost = rows.isna() & (np.arange(len(rows)) % 3 == 0)[:, None]
    found = {}
    for policy, each in robust.items():
        ask = answer(each)
        for values in (ask(rows), ask(rows, lost), ask(rows, return_std=True)[1]):
            assert np.isfinite(np.asarray(values)).all()
        found[policy] = np.asarray(ask(rows))
        if found[policy].ndim == 2:
            np.testing.assert_allclose(found[policy].sum(axis=1), 1.0, atol=1e-6)
        for row in (0, 5, 12):
            alone = np.asarray(ask(rows.iloc[[row]], lost.iloc[[row]]))[0]
            np.testing.assert_array_equal(alone, np.asarray(ask(rows, lost))[row])
    assert not np.allclose(found["infer"], found["native"], atol=1e-3)


def test_complete_rows_and_the_models_own_missing_values(wrapped):
    """Complete rows are the model's under any policy, all rows of training under "native"."""
    model, table, robust = wrapped
    complete = table.dropna().iloc[:20]
    for each in robust.values():
        np.testing.assert_allclose(answer(each)(complete), answer(model)(complete), atol=1e-5)
    missing = table[table.isna().any(axis=1)].iloc[:20]
    native = answer(robust["native"])
    np.testing.assert_allclose(native(missing), answer(model)(missing), atol=1e-5)


def test_explanations_and_gains_are_numbers(wrapped):
    _, table, robust = wrapped
    rows = with_missing(table).iloc[:5]
    assert np.isfinite(robust["infer"].explain(rows).values).all()
    gain = robust["infer"].acquire(rows).gain.to_numpy()
    # A zero that a model takes for NaN is no missing value of the table.
    assert np.isfinite(gain[rows.isna().to_numpy()]).all()


def test_what_the_raw_table_shows_counts():
    """An imputer of the pipeline has no say in what was lost."""
    model, table = MODELS["imputer"]
    density = DENSITIES["Mixture"]
    piped = kh.wrap(model.fit(table, GROUP), table, density=density, correction=False)
    plain, _ = MODELS["forest"]
    bare = kh.wrap(plain.fit(table, GROUP), table, density=density, correction=False)
    rows = with_missing(table)
    found, expected = (
        each.expectation_.lost_probability(each.encode(rows)) for each in (piped, bare)
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    missing = np.isnan(found)
    np.testing.assert_array_equal(missing, rows.notna().to_numpy())
    assert ((found[~missing] >= 0) & (found[~missing] <= 1)).all()
    assert (found[rows["b"].isna(), 1] == 1).all() and found[rows["a"].isna(), 0].min() < 0.9


def test_zeros_that_the_model_takes_for_nan_are_known():
    """They were recorded as zeros, so they tell nothing of losses."""
    model, table = MODELS["XGBoost, zeros"]
    robust = kh.wrap(model.fit(table, SCORE), table, density=DENSITIES["Mixture"], correction=False)
    rows = table[table["a"].notna() & (table["c"] == 0)].iloc[:10]
    assert robust.encode(rows).hypotheses is None
    np.testing.assert_allclose(robust.predict(rows), model.predict(rows), atol=1e-5)
    probability = robust.expectation_.lost_probability(robust.encode(rows))
    assert np.isnan(probability).all()

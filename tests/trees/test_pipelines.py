"""Pipelines and models of models, as trees over the raw columns.

The judge: every step is fitted on one raw column by itself, what it makes is put side by side, and
the last step alone is wrapped on that, with NaN in the outputs of a column that is missing. Both
are given the same donors as missing, so that their answers must be the same.
"""

import itertools

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import knothole as kh
from knothole.errors import InvalidInput, NotFitted, UnsupportedModel

MISSING = np.nan
NUMBERS, CATEGORIES = ["a", "b"], ["city", "month"]


def mixed_table(n=300, seed=0):
    rng = np.random.default_rng(seed)
    b = rng.exponential(size=n) + 0.1
    table = pd.DataFrame(
        {
            "a": np.log(b) + rng.normal(size=n),
            "b": b,
            "city": rng.choice(["Graz", "Linz", "Wien", "Rust"], n, p=[0.4, 0.3, 0.2, 0.1]),
            "month": rng.integers(1, 7, n),
        }
    )
    worth = table["city"].map({"Graz": 0.0, "Linz": 1.0, "Wien": 3.0, "Rust": -2.0})
    return table, (table["a"] + b + worth + 2 * (table["month"] == 3)).to_numpy()


TABLE, Y = mixed_table()
ROWS, _ = mixed_table(40, seed=1)
MASK = np.random.default_rng(2).random(ROWS.shape) < 0.4


def with_missing(table, mask):
    """The table with NaN where the mask is, a column of text with None."""
    return table.astype({"month": float}).mask(pd.DataFrame(mask, columns=table.columns))


def forest(**options):
    return RandomForestRegressor(4, max_depth=5, random_state=0, **options)


class Donors:
    """A density that takes the missing values of every row from the same training rows."""

    def __init__(self, matrix):
        self.matrix = matrix

    def complete(self, X, draws):
        donors = self.matrix[np.random.default_rng(0).integers(len(self.matrix), size=draws)]
        return np.where(np.isnan(X)[:, None], donors[None], X[:, None])


def by_donors(model, table):
    """The model with missing values from the rows of its training table."""
    donors = Donors(None)
    robust = kh.wrap(model, table, density=donors, tol=None)
    donors.matrix = robust.columns_.matrix(table)
    return robust


STEPS = {
    "standard": (StandardScaler(), None),
    "min max": (MinMaxScaler(), None),
    "max abs": (MaxAbsScaler(), None),
    "robust": (RobustScaler(), None),
    "yeo-johnson": (PowerTransformer(), None),
    "box-cox": (make_pipeline(FunctionTransformer(np.exp), PowerTransformer("box-cox")), None),
    "quantile": (QuantileTransformer(n_quantiles=50), None),
    "quantile to normal": (QuantileTransformer(n_quantiles=40, output_distribution="normal"), None),
    "bins": (KBinsDiscretizer(5, encode="onehot-dense", quantile_method="linear"), None),
    "bins in order": (KBinsDiscretizer(5, encode="ordinal", quantile_method="linear"), None),
    "imputer": (SimpleImputer(), None),
    "function": (FunctionTransformer(np.arctan), None),
    "function that turns": (FunctionTransformer(np.abs), None),
    "function of two outputs": (FunctionTransformer(lambda X: np.hstack([np.sin(X), -X])), None),
    "one-hot": (None, OneHotEncoder(sparse_output=False)),
    "one-hot without the first": (None, OneHotEncoder(sparse_output=False, drop="first")),
    "one-hot that ignores": (None, OneHotEncoder(sparse_output=False, handle_unknown="ignore")),
    "one-hot of frequent": (
        None,
        OneHotEncoder(sparse_output=False, min_frequency=50, handle_unknown="infrequent_if_exist"),
    ),
    "ordinal": (None, OrdinalEncoder()),
    "target": (None, TargetEncoder(target_type="continuous")),
    "imputed, scaled and encoded": (
        make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
        make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False)),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_as_good_as_what_it_makes_with_missing_values_put_back(name):
    numeric, categorical = STEPS[name]
    parts = [("numbers", numeric, NUMBERS), ("categories", categorical, CATEGORIES)]
    given = [(label, clone(step), columns) for label, step, columns in parts if step is not None]
    used = [column for _, _, columns in given for column in columns]
    pipeline = make_pipeline(ColumnTransformer(given), forest()).fit(TABLE, Y)
    robust = by_donors(pipeline, TABLE)
    np.testing.assert_allclose(robust.predict(ROWS), pipeline.predict(ROWS), rtol=1e-12)

    fitted = {c: clone(s).fit(TABLE[[c]], Y) for _, s, columns in given for c in columns}

    def by_hand(table, mask):
        made = [np.asarray(fitted[c].transform(table[[c]]), dtype=float) for c in used]
        incomplete = [mask[:, TABLE.columns.get_loc(c)] for c in used]
        # A function's outputs of all columns follow one another, output by output.
        made = [
            np.where(missing[:, None], MISSING, part)
            for part, missing in zip(made, incomplete, strict=True)
        ]
        if name == "function of two outputs":
            made = [part[:, [i]] for i in range(2) for part in made]
        return np.hstack(made)

    nowhere = np.zeros(TABLE.shape, dtype=bool)
    transformed = by_hand(TABLE, nowhere)
    np.testing.assert_allclose(transformed, pipeline[:-1].transform(TABLE), rtol=1e-12)
    last = kh.wrap(pipeline[-1], transformed, density=Donors(transformed), tol=None)
    ours = robust.predict(with_missing(ROWS, MASK), return_std=True)
    theirs = last.predict(by_hand(ROWS, MASK), return_std=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    assert (np.asarray(ours[1]) > 0).any()


def test_an_encoders_outputs_are_the_one_hot_group_that_they_are():
    """Learned densities agree too: a category is what its group of dummies is."""
    pipeline = make_pipeline(OneHotEncoder(sparse_output=False), forest())
    table = TABLE[["city"]]
    pipeline.fit(table, Y)
    dummies = pipeline[0].transform(table)
    density = kh.Factorized(random_state=0)
    robust = kh.wrap(pipeline, table, density=density)
    one_hot = {"city": list(range(dummies.shape[1]))}
    last = kh.wrap(pipeline[-1], dummies, density=density, one_hot=one_hot)
    nothing = pd.DataFrame({"city": [None]}, dtype=object)
    np.testing.assert_allclose(
        robust.predict(nothing), last.predict(np.full((1, dummies.shape[1]), MISSING)), rtol=1e-12
    )


def test_enumeration_is_the_judge():
    """E[f | x_o] over all categories of the missing values, by the pipeline's own predictions."""
    table = TABLE[CATEGORIES]
    encoders = [("one", OneHotEncoder(), ["city"]), ("two", OrdinalEncoder(), ["month"])]
    pipeline = make_pipeline(ColumnTransformer(encoders), forest()).fit(table, Y)
    robust = kh.wrap(pipeline, table, density=kh.Mixture(3, random_state=0))
    months = sorted(table["month"].unique())
    for month in months:
        every = pd.DataFrame({"city": ["Graz", "Linz", "Rust", "Wien"], "month": month})
        weight = np.exp(robust.density_.score_samples(every))
        expected = (weight * pipeline.predict(every)).sum() / weight.sum()
        asked = pd.DataFrame({"city": [None], "month": [month]})
        assert robust.predict(asked)[0] == pytest.approx(expected, rel=1e-9)


# ---- what NaN is --------------------------------------------------------------------------------


def test_an_imputers_fill_is_not_taken_for_a_value():
    pipeline = make_pipeline(SimpleImputer(), forest()).fit(TABLE[NUMBERS], Y)
    robust = kh.wrap(pipeline, TABLE[NUMBERS], density=kh.Factorized())
    row = pd.DataFrame({"a": [MISSING], "b": [5.0]})
    expected = pipeline.predict(TABLE[NUMBERS].assign(b=5.0)).mean()
    assert robust.predict(row)[0] == pytest.approx(expected, abs=0.02 * Y.std())
    assert abs(robust.predict(row)[0] - pipeline.predict(row)[0]) > 0.1 * Y.std()


@pytest.mark.parametrize("indicator", [False, True])
def test_where_training_had_nan_it_is_what_the_pipeline_makes_of_it(indicator):
    table = TABLE[NUMBERS].mask(np.random.default_rng(3).random((len(TABLE), 2)) < 0.2)
    pipeline = make_pipeline(SimpleImputer(add_indicator=indicator), StandardScaler(), forest())
    pipeline.fit(table, Y)
    density = kh.Mixture(3, random_state=0)
    robust = kh.wrap(pipeline, table, density=density, nan_policy="native")
    np.testing.assert_allclose(robust.predict(table), pipeline.predict(table), rtol=1e-12)
    some = table.isna().any(axis=1)
    lost = robust.predict(table, lost=table.isna())
    assert (lost[some] != robust.predict(table)[some]).mean() > 0.9


def test_an_imputer_that_looks_at_other_columns_needs_every_nan_to_be_missing():
    table = TABLE[NUMBERS].mask(np.random.default_rng(3).random((len(TABLE), 2)) < 0.2)
    pipeline = make_pipeline(KNNImputer(), forest()).fit(table, Y)
    with pytest.raises(
        InvalidInput, match=r"column 'a'.*depends on other columns.*nan_policy='lost'"
    ):
        kh.wrap(pipeline, table, density=kh.Factorized())
    robust = kh.wrap(pipeline, table, density=kh.Factorized(), nan_policy="lost")
    np.testing.assert_allclose(robust.predict(ROWS), pipeline.predict(ROWS[NUMBERS]), rtol=1e-12)


@pytest.mark.parametrize(
    "before", [StandardScaler(), make_pipeline(SimpleImputer(), MaxAbsScaler())]
)
def test_zeros_that_a_sparse_table_omits_are_nan_to_xgboost(before):
    xgboost = pytest.importorskip("xgboost")
    parts = [("numbers", before, NUMBERS), ("categories", OneHotEncoder(), CATEGORIES)]
    model = xgboost.XGBRegressor(n_estimators=10, max_depth=4)
    pipeline = make_pipeline(ColumnTransformer(parts, sparse_threshold=1), model).fit(TABLE, Y)
    robust = kh.wrap(pipeline, TABLE, density=kh.Factorized())
    zero = TABLE[:5].assign(a=TABLE["a"].mean() if before.__class__ is StandardScaler else 0.0)
    for table in (TABLE, ROWS, zero):
        np.testing.assert_allclose(robust.predict(table), pipeline.predict(table), atol=1e-5)


# ---- shapes that pipelines have -----------------------------------------------------------------


def nested():
    inner = ColumnTransformer(
        [
            ("scaled", make_pipeline(SimpleImputer(), StandardScaler()), ["a"]),
            ("both", FeatureUnion([("x", MinMaxScaler()), ("y", KBinsDiscretizer(3))]), ["b"]),
            ("city", OneHotEncoder(handle_unknown="ignore"), ["city"]),
            ("gone", "drop", ["note"]),
        ],
        remainder="passthrough",
        sparse_threshold=0,
    )
    return Pipeline(
        [
            ("columns", inner),
            ("nothing", "passthrough"),
            ("last", make_pipeline(StandardScaler(), forest())),
        ]
    )


@pytest.mark.filterwarnings("ignore:The current default behavior, quantile_method")
def test_nested_pipelines_take_the_raw_table_with_columns_that_they_drop():
    table = TABLE.assign(note=pd.date_range("2020", periods=len(TABLE)))
    pipeline = nested().fit(table, Y)
    robust = kh.wrap(pipeline, table, density=kh.Mixture(3, random_state=0))
    assert robust.columns_.names == ("a", "b", "city", "month")
    np.testing.assert_allclose(robust.predict(table), pipeline.predict(table), rtol=1e-12)
    rows = with_missing(ROWS, MASK)
    np.testing.assert_array_equal(robust.predict(rows.iloc[:, ::-1]), robust.predict(rows))
    from_polars = robust.predict(pl.from_pandas(rows))
    np.testing.assert_array_equal(from_polars, robust.predict(rows))


def test_a_step_may_hand_on_tables_of_pandas():
    encoder = ColumnTransformer(
        [("codes", OrdinalEncoder(), CATEGORIES), ("rest", "passthrough", NUMBERS)]
    ).set_output(transform="pandas")
    model = HistGradientBoostingRegressor(max_iter=5, categorical_features=["codes__city"])
    pipeline = make_pipeline(encoder, model).fit(TABLE, Y)
    robust = kh.wrap(pipeline, TABLE, density=kh.Factorized())
    np.testing.assert_allclose(robust.predict(ROWS), pipeline.predict(ROWS), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, object])
def test_arrays_are_matched_by_place(dtype):
    X = TABLE[["a", "month", "b"]].to_numpy().astype(dtype)
    steps = ColumnTransformer([("s", StandardScaler(), [0, 2]), ("o", OneHotEncoder(), [1])])
    pipeline = make_pipeline(steps, forest()).fit(X, Y)
    robust = kh.wrap(pipeline, X, density=kh.Factorized())
    assert [column.kind.value for column in robust.columns_] == [
        "continuous", "categorical", "continuous",
    ]  # fmt: skip
    np.testing.assert_allclose(robust.predict(X), pipeline.predict(X), rtol=1e-12)
    rows = X[:3].astype(float)
    rows[:, 1] = MISSING
    assert np.isfinite(robust.predict(rows)).all()


def test_a_table_vectorizer_of_skrub():
    skrub = pytest.importorskip("skrub")
    pipeline = make_pipeline(skrub.TableVectorizer(), forest()).fit(TABLE, Y)
    robust = kh.wrap(pipeline, TABLE, density=kh.Mixture(3, random_state=0))
    np.testing.assert_allclose(robust.predict(ROWS), pipeline.predict(ROWS), rtol=1e-12)
    twin = ColumnTransformer([("o", OneHotEncoder(), ["city"])], remainder="passthrough")
    by_hand = make_pipeline(twin, forest()).fit(TABLE, Y)
    other = kh.wrap(by_hand, TABLE, density=kh.Mixture(3, random_state=0))
    rows = with_missing(ROWS, MASK)
    difference = robust.predict(rows) - other.predict(rows)
    assert np.sqrt((difference**2).mean()) < 0.2 * Y.std()


def test_a_category_that_training_did_not_have():
    pipeline = make_pipeline(OneHotEncoder(handle_unknown="ignore"), forest())
    pipeline.fit(TABLE[["city"]], Y)
    robust = kh.wrap(pipeline, TABLE[["city"]], density=kh.Factorized())
    strange = pd.DataFrame({"city": ["Rom"]})
    with pytest.raises(kh.errors.UnseenCategory, match="'Rom'"):
        robust.predict(strange)
    nothing = pd.DataFrame({"city": [None]}, dtype=object)
    np.testing.assert_array_equal(
        robust.predict(strange, handle_unknown="missing"), robust.predict(nothing)
    )


# ---- what is refused ----------------------------------------------------------------------------


def product(X):
    return np.asarray(X) * np.asarray(X)[:, [0]]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (PCA(2), "the step PCA makes one column of several .'a', 'b'."),
        (Normalizer(), "the step Normalizer"),
        (PolynomialFeatures(2), "the step PolynomialFeatures"),
        (FunctionTransformer(product), "the step FunctionTransformer"),
        (ColumnTransformer([("both", PCA(1), NUMBERS)]), r"the step PCA \('both'\)"),
    ],
    ids=["pca", "normalizer", "polynomial", "function", "inside"],
)
def test_what_mixes_columns_is_refused_by_name(step, message):
    pipeline = make_pipeline(step, forest()).fit(TABLE[NUMBERS], Y)
    with pytest.raises(UnsupportedModel, match=f"{message}.*before the pipeline"):
        kh.wrap(pipeline, TABLE[NUMBERS], density=kh.Factorized())


def test_a_mixture_that_hides_is_found_by_its_leaves():
    def hidden(X):
        X = np.array(X, dtype=float)
        X[:, 0] = np.where((X[:, 1] > 0.9) & (X[:, 1] < 0.95), -X[:, 0], X[:, 0])
        return X

    pipeline = make_pipeline(FunctionTransformer(hidden), forest()).fit(TABLE[NUMBERS], Y)
    with pytest.raises((kh.errors.ReaderMismatch, UnsupportedModel)):
        kh.wrap(pipeline, TABLE[NUMBERS], density=kh.Factorized())


def test_a_date_that_matters_is_refused_by_name():
    def days(X):
        return ((X - pd.Timestamp("2020-01-01")).dt.days).to_numpy()[:, None]

    table = TABLE.assign(when=pd.date_range("2020", periods=len(TABLE)))
    steps = [("when", FunctionTransformer(days), "when"), ("rest", "passthrough", NUMBERS)]
    pipeline = make_pipeline(ColumnTransformer(steps), forest()).fit(table, Y + np.arange(300.0))
    with pytest.raises(InvalidInput, match=r"'when'.*do that before the pipeline"):
        kh.wrap(pipeline, table, density=kh.Factorized())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            VotingClassifier([("t", DecisionTreeClassifier(max_depth=2))], voting="hard"),
            "voting='soft'",
        ),
        (
            StackingRegressor([("t", DecisionTreeRegressor(max_depth=2))], cv=2),
            "StackingRegressor: use a VotingRegressor",
        ),
    ],
    ids=["hard votes", "stacking"],
)
def test_models_of_models_that_are_no_means_are_refused(model, message):
    y = (Y > 0) if isinstance(model, VotingClassifier) else Y
    model.fit(TABLE[NUMBERS], y)
    with pytest.raises(UnsupportedModel, match=message):
        kh.wrap(model, TABLE[NUMBERS], density=kh.Factorized())


def test_a_pipeline_that_is_not_fitted():
    with pytest.raises(NotFitted, match="Call its fit first"):
        kh.wrap(make_pipeline(StandardScaler(), forest()), TABLE[NUMBERS])


# ---- models of models ---------------------------------------------------------------------------


def encoded(model):
    parts = [("s", StandardScaler(), NUMBERS), ("o", OneHotEncoder(), CATEGORIES)]
    return make_pipeline(ColumnTransformer(parts), model)


def trees(seed):
    return RandomForestClassifier(3, max_depth=4, random_state=seed)


LABELS = np.where(Y > 1, "yes", "no")
THREE = np.select([Y < 0, Y < 2], ["low", "middle"], "high")
CLASSIFIERS = {
    "votes of forests": (
        VotingClassifier(
            [("a", trees(0)), ("b", ExtraTreesClassifier(2, max_depth=3))], voting="soft"
        ),
        LABELS,
    ),
    "votes with boosting": (
        VotingClassifier(
            [("a", encoded(trees(0))), ("b", encoded(GradientBoostingClassifier(n_estimators=3)))],
            voting="soft",
            weights=[2, 1],
        ),
        THREE,
    ),
    "calibrated by a sigmoid": (CalibratedClassifierCV(encoded(trees(0)), cv=2), LABELS),
    "calibrated, isotonic, of margins": (
        CalibratedClassifierCV(
            encoded(GradientBoostingClassifier(n_estimators=3)), cv=2, method="isotonic"
        ),
        LABELS,
    ),
    "calibrated, three classes": (CalibratedClassifierCV(encoded(trees(0)), cv=2), THREE),
    "calibrated afterwards": (
        CalibratedClassifierCV(FrozenEstimator(encoded(trees(0)).fit(TABLE, THREE))),
        THREE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_made_of_classifiers(name, tmp_path):
    model, y = CLASSIFIERS[name]
    table = TABLE
    if name == "votes of forests":  # without steps before them
        table = TABLE[NUMBERS]
    model.fit(table, y)
    robust = kh.wrap(model, table, density=kh.Mixture(3, random_state=0))
    np.testing.assert_allclose(
        robust.predict_proba(table), model.predict_proba(table), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_array_equal(robust.predict(table), model.predict(table))
    np.testing.assert_array_equal(robust.classes_, model.classes_)
    rows = with_missing(ROWS, MASK)
    found = robust.predict_proba(rows)
    np.testing.assert_allclose(np.asarray(found).sum(axis=1), 1.0, rtol=1e-9)
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    np.testing.assert_array_equal(again.predict_proba(rows), found)


def exactly(model, rows, density):
    """E[prediction] by enumeration over all rows of whole numbers that a small table can have."""
    values = range(4)
    nothing = np.full((1, 3), MISSING)
    ends = [-np.inf, 0.5, 1.5, 2.5, np.inf]  # trees divide nowhere else
    shares = {
        c: [np.exp(density.log_mass(nothing, {c: ends[v : v + 2]})[0]) for v in values]
        for c in rows
    }
    every = pd.DataFrame(list(itertools.product(values, repeat=3)), columns=rows.columns)
    classes = hasattr(model, "classes_")
    predicted = model.predict_proba(every)[:, 1] if classes else model.predict(every)
    out = []
    for _, row in rows.iterrows():
        weight = np.ones(len(every))
        for c in rows:
            known = every[c] == row[c]
            weight *= known if known.any() else every[c].map(dict(enumerate(shares[c])))
        out.append(weight @ predicted / weight.sum())
    return np.array(out)


DISCRETE = pd.DataFrame(np.random.default_rng(5).integers(0, 4, (400, 3)), columns=list("pqr"))
POSITIVE = np.exp(DISCRETE @ [0.5, -0.3, 0.2]).to_numpy()


MODELS = {
    "log of the target": TransformedTargetRegressor(forest(), func=np.log, inverse_func=np.exp),
    "scaled target": TransformedTargetRegressor(
        DecisionTreeRegressor(max_depth=4), transformer=StandardScaler()
    ),
    "power of the target": TransformedTargetRegressor(
        make_pipeline(StandardScaler(), forest()), transformer=PowerTransformer("box-cox")
    ),
    "votes": VotingRegressor(
        [("a", forest()), ("b", DecisionTreeRegressor(max_depth=3))], weights=[3, 1]
    ),
    "search": GridSearchCV(
        make_pipeline(MinMaxScaler(), forest()), {"randomforestregressor__max_depth": [3]}, cv=2
    ),
    "calibrated": CalibratedClassifierCV(trees(1), cv=2),
    "soft votes": VotingClassifier(
        [("a", trees(0)), ("b", GradientBoostingClassifier(n_estimators=4))], voting="soft"
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_expectations_of_models_of_models_by_enumeration(name):
    """The inverse of a target's transformation is inside: E[g(f)], which is not g(E[f])."""
    model = MODELS[name]
    y = POSITIVE > 1 if hasattr(model, "predict_proba") else POSITIVE
    model.fit(DISCRETE, y)
    robust = kh.wrap(model, DISCRETE, density=kh.Factorized(), tol=0.005)
    rows = DISCRETE[:20].astype(float).mask(np.random.default_rng(6).random((20, 3)) < 0.5)
    truth = exactly(model, rows, robust.density_)
    if hasattr(model, "predict_proba"):
        found, error = robust.predict_proba(rows, return_error=True)
        found, error = np.asarray(found)[:, 1], np.asarray(error)[:, 1]
    else:
        found, error = map(np.asarray, robust.predict(rows, return_error=True))
        np.testing.assert_allclose(robust.predict(DISCRETE), model.predict(DISCRETE), rtol=1e-9)
    assert (np.abs(found - truth) <= 4 * error + 1e-6).all()
    assert error.max() <= 0.01 * y.std()


def test_an_inverse_of_ones_own_cannot_be_saved_and_numpys_can(tmp_path):
    own = TransformedTargetRegressor(forest(), func=np.log, inverse_func=lambda y: np.exp(y))
    robust = kh.wrap(own.fit(DISCRETE, POSITIVE), DISCRETE, density=kh.Factorized())
    with pytest.raises(InvalidInput, match="cannot be saved; use one of numpy's"):
        robust.save(tmp_path / "own.knothole")
    with pytest.raises(UnsupportedModel, match="models inside it one by one"):
        robust.refit_leaves(DISCRETE, POSITIVE)
    named = TransformedTargetRegressor(forest(), func=np.log, inverse_func=np.exp)
    robust = kh.wrap(named.fit(DISCRETE, POSITIVE), DISCRETE, density=kh.Factorized())
    robust.save(tmp_path / "named.knothole")
    nothing = np.full((1, 3), MISSING)
    again = kh.load(tmp_path / "named.knothole")
    np.testing.assert_array_equal(again.predict(nothing), robust.predict(nothing))


# ---- files, refitting, the meta-estimators
# --------------------------------------------------------


def test_a_saved_pipeline_takes_raw_rows(tmp_path):
    pipeline = encoded(forest()).fit(TABLE, Y)
    robust = kh.wrap(pipeline, TABLE, density=kh.Mixture(3, random_state=0))
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    for rows in (ROWS, with_missing(ROWS, MASK)):
        np.testing.assert_array_equal(again.predict(rows), robust.predict(rows))
    assert again.model_name_ == "Pipeline of RandomForestRegressor"


def test_refitted_leaves_go_back_into_the_pipeline():
    rng = np.random.default_rng(7)
    table = with_missing(TABLE, rng.random(TABLE.shape) < 0.2)
    parts = [
        ("s", make_pipeline(SimpleImputer(), StandardScaler()), NUMBERS),
        ("o", OneHotEncoder(handle_unknown="ignore"), CATEGORIES),
    ]
    pipeline = make_pipeline(ColumnTransformer(parts), forest()).fit(table, Y)
    robust = kh.wrap(pipeline, table, density=kh.Mixture(3, random_state=0), nan_policy="lost")
    refitted = robust.refit_leaves(table, Y)
    native = refitted.to_native()
    assert isinstance(native, Pipeline)
    np.testing.assert_allclose(native.predict(ROWS), refitted.predict(ROWS), rtol=1e-9)
    assert np.abs(native.predict(ROWS) - pipeline.predict(ROWS)).max() > 1e-3
    assert refitted.refit_.after < refitted.refit_.before


def test_a_meta_estimator_around_a_pipeline():
    expected = kh.ExpectedRegressor(encoded(forest()), density=kh.Mixture(3, random_state=0))
    expected.fit(TABLE, Y)
    rows = with_missing(ROWS, MASK)
    robust = kh.wrap(expected.estimator_, TABLE, Y, density=kh.Mixture(3, random_state=0))
    np.testing.assert_array_equal(expected.predict(rows), robust.predict(rows))


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_an_encoder_before_a_meta_estimator_hides_no_missing_value(kind):
    """A row of zeros that an encoder made of a missing value is an error, or missing again."""
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    if kind == "frame":
        encoder.set_output(transform="pandas")
    expected = kh.ExpectedRegressor(forest(), density=kh.Factorized(random_state=0))
    pipeline = make_pipeline(encoder, expected).fit(TABLE[CATEGORIES], Y)
    pipeline.predict(TABLE[CATEGORIES])
    rows = pd.DataFrame({"city": [None, "Graz"], "month": [3, 3]})
    with pytest.raises(InvalidInput, match=r"row 0.*zeros in columns 0 to 3.*make_pipeline"):
        pipeline.predict(rows)
    dummies = np.array(encoder.transform(rows))
    dummies[0, :4] = MISSING
    found = pipeline.predict(rows, handle_unknown="missing")
    np.testing.assert_array_equal(found, expected.robust_.predict(dummies))


def test_no_pipeline_is_much_worse_than_the_model_on_raw_columns():
    """RMSE on a mixed table with 30 % missing values, within 1 % of that of the model itself."""
    table, y = mixed_table(1000, seed=8)
    test, truth = mixed_table(1000, seed=9)
    rows = with_missing(test, np.random.default_rng(10).random(test.shape) < 0.3)
    model = HistGradientBoostingRegressor(max_iter=30, categorical_features="from_dtype")

    def error(model, X, X_test):
        robust = kh.wrap(model.fit(X, y), X, density=kh.Mixture(6, random_state=0))
        return np.sqrt(((robust.predict(X_test) - truth) ** 2).mean())

    kinds = table.astype({"city": "category", "month": "category"}).dtypes.to_dict()
    plain = error(clone(model), table.astype(kinds), rows.astype(kinds))
    for numeric, encoder in (
        (StandardScaler(), OneHotEncoder(sparse_output=False)),
        (QuantileTransformer(n_quantiles=200), TargetEncoder(target_type="continuous")),
    ):
        parts = [("n", numeric, NUMBERS), ("c", encoder, CATEGORIES)]
        pipeline = make_pipeline(ColumnTransformer(parts), clone(model))
        assert error(pipeline, table, rows) < 1.01 * plain

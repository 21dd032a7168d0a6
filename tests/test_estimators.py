"""``wrap`` and ``Robust``: the face over trees, densities and expectations."""

import os
import pickle
import sys

import catboost
import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pytest
import xgboost
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

import knothole as kh
from knothole.densities.names import from_name, name_of
from knothole.errors import (
    ColumnMismatch,
    InvalidInput,
    NotFitted,
    UnseenCategory,
    UnsupportedModel,
)
from knothole.loss_priors import HARM, _harm
from knothole.missingness.inference import INFER, PRIORS

QUIET = {"n_estimators": 5, "max_depth": 3, "n_jobs": 1}


def xgb_regressor(**options):
    return xgboost.XGBRegressor(**QUIET, **options)


@pytest.fixture(scope="module")
def data():
    """Correlated columns without missing values, targets, and the same rows with missing values."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 3))
    incomplete = np.where(rng.random(X.shape) < 0.3, np.nan, X)
    return X, X.sum(axis=1), incomplete


def mixture():
    return kh.Mixture(4, random_state=0)


# ---- the model's own prediction -----------------------------------------------------------------

REGRESSORS = {
    "xgboost": xgb_regressor(),
    "xgboost, counts": xgb_regressor(objective="count:poisson"),
    "lightgbm": lightgbm.LGBMRegressor(**QUIET, verbose=-1),
    "catboost": catboost.CatBoostRegressor(
        iterations=5, depth=3, verbose=0, allow_writing_files=False, thread_count=1
    ),
    "forest": RandomForestRegressor(n_estimators=5, max_depth=3, random_state=0),
    "tree": DecisionTreeRegressor(max_depth=3, random_state=0),
}

CLASSIFIERS = {
    "xgboost": xgboost.XGBClassifier(**QUIET),
    "lightgbm": lightgbm.LGBMClassifier(**QUIET, verbose=-1),
    "catboost": catboost.CatBoostClassifier(
        iterations=5, depth=3, verbose=0, allow_writing_files=False, thread_count=1
    ),
    "forest": RandomForestClassifier(n_estimators=5, max_depth=3, random_state=0),
    "hist": HistGradientBoostingClassifier(max_iter=5, max_depth=3),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_regressor_without_missing_values_predicts_as_ever(name, data):
    X, y, incomplete = data
    model = clone(REGRESSORS[name]).fit(X, np.exp(y / 4))
    robust = kh.wrap(model, X, density=mixture())
    prediction = robust.predict(X)
    assert prediction.shape == (300,) and prediction.dtype == np.float64
    assert_allclose(prediction, model.predict(X), rtol=1e-5)
    assert np.isfinite(robust.predict(incomplete)).all()


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_without_missing_values_predicts_as_ever(name, n_classes, data):
    X, y, incomplete = data
    labels = np.digitize(y, [0.0] if n_classes == 2 else [-1.0, 1.0])
    model = clone(CLASSIFIERS[name]).fit(X, labels)
    robust = kh.wrap(model, X, density=mixture())
    assert robust.classes_.tolist() == list(range(n_classes))
    assert_array_equal(robust.predict(X), model.predict(X).reshape(-1))
    assert_allclose(robust.predict_proba(X), model.predict_proba(X), atol=1e-5)
    proba = robust.predict_proba(incomplete)
    assert proba.shape == (300, n_classes)
    assert_allclose(proba.sum(axis=1), 1, atol=1e-9)
    assert_array_equal(robust.predict(incomplete), proba.argmax(axis=1))


def test_labels_are_the_models_own(data):
    X, y, incomplete = data
    names = np.where(y > 0, "up", "down")
    robust = kh.wrap(DecisionTreeClassifier(max_depth=3).fit(X, names), X, density=mixture())
    assert robust.classes_.tolist() == ["down", "up"]
    assert set(robust.predict(incomplete)) == {"down", "up"}


def test_several_targets(data):
    X, y, incomplete = data
    model = DecisionTreeRegressor(max_depth=3).fit(X, np.column_stack([y, -y]))
    robust = kh.wrap(model, X, np.column_stack([y, -y]), mixture())
    assert_allclose(robust.predict(X), model.predict(X))
    assert robust.predict(incomplete, return_std=True)[1].shape == (300, 2)
    labels = np.column_stack([y > 0, np.digitize(y, [-1, 1])]).astype(int)
    classifier = RandomForestClassifier(n_estimators=3, max_depth=3).fit(X, labels)
    robust = kh.wrap(classifier, X, labels, mixture())
    assert_array_equal(robust.predict(X), classifier.predict(X))
    for ours, theirs in zip(robust.predict_proba(X), classifier.predict_proba(X), strict=True):
        assert_allclose(ours, theirs)
    assert [len(classes) for classes in robust.classes_] == [2, 3]
    assert robust.predict(incomplete, return_std=True)[1].shape == (300, 2)


def test_a_single_class():
    X = np.arange(40.0).reshape(20, 2)
    robust = kh.wrap(DecisionTreeClassifier().fit(X, np.ones(20)), X, density=kh.Factorized())
    assert robust.predict_proba([[np.nan, 1.0]]).tolist() == [[1.0]]


# ---- missing values
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def by_hand():
    """Two fair coins; the model is 2 a + b."""
    X = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 10)
    model = DecisionTreeRegressor().fit(X, 2 * X[:, 0] + X[:, 1])
    return kh.wrap(model, X, density=kh.Factorized(random_state=0))


def test_expectation_by_hand(by_hand):
    missing = np.nan
    rows = [[1.0, 0.0], [1.0, missing], [missing, 0.0], [missing, missing]]
    prediction, std = by_hand.predict(rows, return_std=True)
    assert_allclose(prediction, [2.0, 2.5, 1.0, 1.5])
    assert_allclose(std, [0.0, 0.5, 1.0, np.sqrt(1.25)], atol=1e-7)
    quantiles = by_hand.predict(rows, quantiles=[0.0, 1.0])
    assert_allclose(quantiles, [[2, 2], [2, 3], [0, 2], [0, 3]])
    margin, error = by_hand.margin(rows, return_error=True)
    assert_allclose(margin, prediction)
    assert (error == 0).all()
    probabilities = by_hand.leaf_probabilities(rows).toarray()
    expected = [[0, 0, 0, 1], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5], [0.25] * 4]
    assert_allclose(np.sort(probabilities, axis=1), expected)


def test_the_spread_of_a_probability(data):
    X, y, _ = data
    model = xgboost.XGBClassifier(**QUIET).fit(X, y > 0)
    robust = kh.wrap(model, X, density=kh.Factorized(random_state=0))
    rows = np.array([[np.nan, 0.5, 0.5], [0.5, 0.5, 0.5]])
    completions = np.tile(rows[:1], (300, 1))
    completions[:, 0] = X[:, 0]  # the column's own values stand for its density
    own = model.predict_proba(completions)[:, 1]
    proba, std = robust.predict_proba(rows, return_std=True)
    assert_allclose(proba[0, 1], own.mean(), atol=0.05)
    assert_allclose(std[0], own.std(), atol=0.05)
    assert std[1].tolist() == [0.0, 0.0]
    label, of_label = robust.predict(rows, return_std=True)
    assert_array_equal(label, proba.argmax(axis=1))
    assert_array_equal(of_label, std[:, 0])


def test_the_spread_of_a_label_is_that_of_its_own_probability(data):
    """With three classes each probability has a spread of its own."""
    X, y, incomplete = data
    model = xgboost.XGBClassifier(**QUIET).fit(X, np.digitize(y, [-2.0, 1.0]))
    robust = kh.wrap(model, X, density=kh.Factorized(random_state=0))
    rows = incomplete[np.isnan(incomplete).any(axis=1)][:40]
    proba, std = robust.predict_proba(rows, return_std=True)
    error = robust.predict_proba(rows, return_error=True)[1]
    assert (np.ptp(std, axis=1) > 0.01).any()
    label, of_label = robust.predict(rows, return_std=True)
    assert_array_equal(label, proba.argmax(axis=1))
    assert_array_equal(of_label, std[np.arange(40), label])
    of_label = robust.predict(rows, return_error=True)[1]
    assert_array_equal(of_label, error[np.arange(40), label])


def test_nan_of_training_is_the_models_own_if_native_and_lost_if_said(data):
    X, y, _ = data
    trained = X.copy()
    trained[:60, 0] = np.nan
    model = xgb_regressor().fit(trained, y)
    robust = kh.wrap(model, trained, density=mixture(), nan_policy="native")
    assert [column.nullable for column in robust.columns_] == [True, False, False]
    row = np.array([[np.nan, 0.3, 0.4]])
    assert_allclose(robust.predict(row), model.predict(row), rtol=1e-5)
    assert robust.predict(row, lost=np.isnan(row)) != robust.predict(row)
    other = np.array([[0.3, np.nan, 0.4]])
    assert robust.predict(other) == robust.predict(other, lost=np.isnan(other))
    every = kh.wrap(model, trained, density=mixture(), nan_policy="lost")
    assert not any(column.nullable for column in every.columns_)
    assert every.predict(row) == every.predict(row, lost=np.isnan(row))


def test_the_prior_of_losses_is_chosen_where_targets_are_known(monkeypatch):
    """NaN in the first column says much about y, in the second it is an accident."""
    rng = np.random.default_rng(3)
    size = rng.normal(size=3000)
    X = np.column_stack([rng.normal(size=3000), size, size + 0.5 * rng.normal(size=3000)])
    informative, accident = rng.random(3000) < 0.8, rng.random(3000) < 0.03
    X[informative, 0], X[accident, 1] = np.nan, np.nan
    y = 4 * size + 3 * informative
    model = xgboost.XGBRegressor(n_estimators=30, max_depth=4, n_jobs=1).fit(X, y)
    robust = kh.wrap(model, X, y, kh.GaussianMixture(n_components=1, random_state=0))
    table = robust.prior_selection_.set_index("prior")
    assert PRIORS[table["chosen"].idxmax()] == robust.loss_prior_ and table["chosen"].sum() == 1
    harmless = table[table["harm"] <= max(HARM, table["harm"].min())]
    assert harmless["behind"].idxmin() == table["chosen"].idxmax()
    usual, unusual = robust.lost_probability([[np.nan, 0.3, 0.4], [0.3, np.nan, 0.4]])
    assert usual[0] < 0.5 < unusual[1]
    # "Anything" predicts rows as they came far worse than the model does.
    assert table["harm"].idxmax() == "anything" and table.loc["anything", "harm"] > HARM
    # The only prior that does no harm is chosen, however good the others are.
    harms = iter([1.0, 1.0, 1.0, 0.0])
    monkeypatch.setattr("knothole.loss_priors._harm", lambda worse, own: next(harms))
    other = kh.wrap(model, X, y, kh.GaussianMixture(n_components=1, random_state=0))
    table = other.prior_selection_.set_index("prior")
    assert table["chosen"].idxmax() == "anything" != table["behind"].idxmin()
    unmeasured = kh.wrap(model, X, density=kh.Factorized())
    assert unmeasured.prior_selection_ is None and unmeasured.loss_prior_ == INFER.prior


def test_harm_is_what_rows_with_missing_values_of_their_own_lose():
    """Not where it may be chance, or rows are too few to tell."""
    own, worse = np.full(40, 0.5), np.linspace(0.0, 0.1, 40)
    assert _harm(worse, own) == pytest.approx(0.1)
    assert _harm(-worse, own) == _harm(np.resize([1.0, -0.99], 40), own) == 0.0
    assert _harm(worse[:19], own[:19]) == _harm(worse[:0], own[:0]) == 0.0


def test_a_value_that_the_model_takes_for_nan(data):
    X, y, _ = data
    trained = X.copy()
    trained[:60, 0] = -999
    model = xgb_regressor(missing=-999).fit(trained, y)
    robust = kh.wrap(model, trained, density=mixture())
    assert [column.nullable for column in robust.columns_] == [True, False, False]
    rows = np.array([[-999, 0.3, 0.4], [0.3, 0.3, 0.4]])
    assert_allclose(robust.predict(rows), model.predict(rows), rtol=1e-5)
    never_met = np.array([[0.3, -999, 0.4], [0.3, np.nan, 0.4]])
    assert len(set(robust.predict(never_met))) == 1


def test_one_hot_groups(data):
    _, y, _ = data
    city = pd.Series(np.where(y > 1, "Wien", np.where(y > -1, "Graz", "Linz")), name="city")
    table = pd.get_dummies(city.to_frame()).astype(float).assign(size=y)
    model = DecisionTreeRegressor(max_depth=3).fit(table, y)
    robust = kh.wrap(model, table, density=mixture(), one_hot="auto")
    assert [variable.name for variable in robust.columns_.variables] == ["city", "size"]
    not_wien = table.iloc[:1].assign(city_Graz=np.nan, city_Linz=np.nan, city_Wien=0.0)
    assert np.isfinite(robust.predict(not_wien)).all()


def test_unseen_categories_are_refused_or_missing(data):
    X, y, _ = data
    table = pd.DataFrame({"size": X[:, 0], "city": pd.Categorical(np.where(y > 0, "Graz", "Linz"))})
    robust = kh.wrap(lightgbm.LGBMRegressor(**QUIET, verbose=-1).fit(table, y), table,
                     density=mixture())  # fmt: skip
    rows = pd.DataFrame({"size": [0.1], "city": ["Wien"]})
    with pytest.raises(
        UnseenCategory, match=r"'city' holds the category 'Wien'.*handle_unknown='missing'"
    ):
        robust.predict(rows)
    missing = pd.DataFrame({"size": [0.1], "city": [None]})
    assert robust.predict(rows, handle_unknown="missing")[0] == robust.predict(missing)[0]


# ---- tables in and out --------------------------------------------------------------------------


def test_pandas_keeps_the_index(data):
    X, y, incomplete = data
    index = pd.Index(np.arange(300) * 7, name="id")
    frame = pd.DataFrame(incomplete, columns=["a", "b", "c"], index=index)
    training = pd.DataFrame(X, columns=["a", "b", "c"])
    robust = kh.wrap(DecisionTreeRegressor(max_depth=3).fit(training, y), training,
                     density=mixture())  # fmt: skip
    prediction, std = robust.predict(frame, return_std=True)
    assert isinstance(prediction, pd.Series) and prediction.index.equals(index)
    assert isinstance(std, pd.Series) and std.index.equals(index)
    assert robust.predict(frame, quantiles=[0.1, 0.9]).columns.tolist() == [0.1, 0.9]
    assert_array_equal(robust.predict(frame.to_numpy()), prediction)
    labels = np.where(y > 0, "up", "down")
    classifier = kh.wrap(DecisionTreeClassifier(max_depth=3).fit(training, labels), training,
                         density=mixture())  # fmt: skip
    proba = classifier.predict_proba(frame)
    assert proba.columns.tolist() == ["down", "up"] and proba.index.equals(index)
    assert classifier.predict(frame).index.equals(index)


def test_polars_and_lists(data):
    X, y, incomplete = data
    names = ["a", "b", "c"]
    training = pl.DataFrame(dict(zip(names, X.T, strict=True)))
    model = xgb_regressor().fit(pd.DataFrame(X, columns=names), y)
    robust = kh.wrap(model, training, density=mixture())
    rows = pl.DataFrame(dict(zip(names, incomplete.T, strict=True)))
    assert_array_equal(robust.predict(rows), robust.predict(incomplete))
    assert robust.predict([[None, 0.1, 0.2]]).shape == (1,)


# ---- densities ----------------------------------------------------------------------------------


class Resampler:
    """A density of a user's own: draws whole values of training rows, whatever is observed."""

    def __init__(self, X):
        self.X = X

    def complete(self, X, draws):
        rng = np.random.default_rng(0)
        drawn = self.X[rng.integers(len(self.X), size=(len(X), draws))]
        return np.where(np.isnan(X)[:, None], drawn, X[:, None])


def test_auto_selects_and_says_so(data):
    X, y, incomplete = data
    model = DecisionTreeRegressor(max_depth=4).fit(X, y)
    for targets in (None, y):
        robust = kh.wrap(model, X, targets, {"plain": kh.Factorized(), "better": mixture()})
        assert robust.selection_["name"].tolist() == ["better", "plain"]
        assert type(robust.density_) is kh.Mixture
        error = np.mean((robust.predict(incomplete) - y) ** 2)
        assert error < np.mean(
            (kh.wrap(model, X, density=kh.Factorized()).predict(incomplete) - y) ** 2
        )


def test_auto_tries_all_densities():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 1)) + 0.3 * rng.normal(size=(60, 3))
    robust = kh.wrap(DecisionTreeRegressor(max_depth=3).fit(X, X[:, 0]), X)
    names = set(robust.selection_["name"])
    assert names == {"independent", "mixture", "latent-tree", "gaussian-mixture"}
    assert not robust.selection_["note"].str.startswith("failed").any()


def test_auto_with_missing_values_everywhere_goes_by_log_p():
    """No row's own prediction is known, so that predictions cannot be compared."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 3))
    X[np.arange(200), rng.integers(3, size=200)] = np.nan
    model = xgb_regressor().fit(X, np.nansum(X, axis=1))
    robust = kh.wrap(model, X, density=[kh.Factorized(), mixture()], nan_policy="lost")
    assert type(robust.density_) is kh.Mixture


def test_a_density_that_is_not_fitted_is_cloned(data):
    X, y, incomplete = data
    model = DecisionTreeRegressor(max_depth=3).fit(X, y)
    density = mixture()
    robust = kh.wrap(model, X, density=density)
    assert not hasattr(density, "weights_") and robust.selection_ is None
    fitted = mixture().fit(X)
    with_fitted = kh.wrap(model, X, density=fitted)
    assert with_fitted.density_ is fitted
    assert_array_equal(with_fitted.predict(incomplete), robust.predict(incomplete))


def test_weights_go_to_the_density_that_is_given(data):
    X, y, _ = data
    weight = np.where(X[:, 0] > 0, 3.0, 0.1)
    model = xgb_regressor().fit(X, y)
    for density in (kh.Factorized(random_state=0), [kh.Factorized(random_state=0)]):
        robust = kh.wrap(model, X, density=density, sample_weight=weight)
        weighted, plain = (
            kh.Factorized(random_state=0).fit(X, sample_weight=each).score_samples(X[:9])
            for each in (weight, None)
        )
        assert_allclose(robust.density_.score_samples(X[:9]), weighted, rtol=1e-9)
        assert np.abs(weighted - plain).min() > 1e-3


@pytest.mark.filterwarnings("ignore::knothole.errors.ToleranceMissed")  # its draws are plain
def test_a_density_of_ones_own(data):
    X, y, _ = data
    model = DecisionTreeRegressor(max_depth=3).fit(X, y)
    robust = kh.wrap(model, X, density=Resampler(X))
    rows = np.full((3, 3), np.nan)
    margin, error = robust.margin(rows, return_error=True)
    assert (error > 0).all()
    assert (abs(margin - model.predict(X).mean()) < 5 * error).all()
    assert "Resampler" in repr(robust)
    with pytest.raises(
        InvalidInput, match="needs leaf probabilities, which a density of your own does not have"
    ):
        robust.refit_leaves(X, y)


@pytest.mark.parametrize(
    ("complete", "message"),
    [
        (lambda X, draws: X, r"must return \(1, 64, 3\)"),
        (lambda X, draws: np.repeat(X[:, None], draws, axis=1), "left missing values in 'x1'"),
    ],
)
def test_a_density_of_ones_own_is_checked(data, complete, message):
    X, y, _ = data
    density = Resampler(X)
    density.complete = complete
    robust = kh.wrap(DecisionTreeRegressor(max_depth=3).fit(X, y), X, density=density)
    with pytest.raises(InvalidInput, match=message):
        robust.predict([[0.1, np.nan, 0.2]])


def test_a_fitted_density_keeps_its_states_whatever_the_policy(data):
    """Under "lost" a missing value then says nothing: "not recorded" keeps its probability."""
    _, y, incomplete = data
    model = xgb_regressor().fit(incomplete, y)
    met = kh.wrap(model, incomplete, density=mixture()).density_
    assert met.columns_.nullable.all()
    robust = kh.wrap(model, incomplete, density=met, nan_policy="lost")
    native = kh.wrap(model, incomplete, density=met, nan_policy="native")
    assert not np.allclose(robust.predict(incomplete), native.predict(incomplete))


# ---- new leaves, and the model's own library ----------------------------------------------------


def test_refitted_leaves_go_back_into_the_model(data):
    X, y, incomplete = data
    model = xgb_regressor().fit(incomplete, y)
    refitted = kh.wrap(model, incomplete, density=mixture(), nan_policy="lost").refit_leaves(
        incomplete, y, ridge=0.1
    )
    native = refitted.to_native()
    assert type(native) is xgboost.XGBRegressor
    assert_allclose(native.predict(X), refitted.predict(X), rtol=1e-4, atol=1e-5)
    assert not np.allclose(native.predict(X), model.predict(X))
    assert refitted.nan_policy_ == "lost" and refitted.refit_.after < refitted.refit_.before
    assert "refitted (boosting)" in repr(refitted)


def test_models_of_files_come_back_as_their_library_loads_them(data, tmp_path):
    X, y, _ = data
    model = xgb_regressor().fit(X, y)
    model.save_model(tmp_path / "model.json")
    robust = kh.wrap(tmp_path / "model.json", X, density=mixture())
    assert "model.json" in repr(robust)
    assert_array_equal(robust.to_native().predict(X), model.predict(X))


# ---- everything else ----------------------------------------------------------------------------


def test_score(data):
    X, y, incomplete = data
    robust = kh.wrap(DecisionTreeRegressor(max_depth=3).fit(X, y), X, density=mixture())
    assert robust.score(incomplete, y) == r2_score(y, robust.predict(incomplete))
    labels = y > 0
    classifier = kh.wrap(DecisionTreeClassifier().fit(X, labels), X, density=mixture())
    assert classifier.score(incomplete, labels) == accuracy_score(
        labels, classifier.predict(incomplete)
    )


def test_pickle(data):
    X, y, incomplete = data
    robust = kh.wrap(xgb_regressor().fit(X, y), X, density=mixture())
    again = pickle.loads(pickle.dumps(robust))
    assert_array_equal(again.predict(incomplete), robust.predict(incomplete))


def test_displays_say_which_model_which_density_and_how_good(data):
    X, y, _ = data
    trained = X.copy()
    trained[:60, 0] = np.nan
    robust = kh.wrap(xgb_regressor().fit(trained, y), trained, y, [kh.Factorized(), mixture()])
    line = repr(robust)
    for part in ("XGBRegressor (XGBoost), 5 trees over 3 columns", "mixture with 4 components",
                 "best of 2 with a held-out RMSE of ", "(next: independent, ",
                 "prior of losses, chosen on"):  # fmt: skip
        assert part in line
    page = robust._repr_html_()
    for part in ("XGBRegressor", "mixture with 4 components", "<summary>candidates</summary>",
                 "what missing values mean", "exact"):  # fmt: skip
        assert part in page
    assert "http" not in page


def test_a_row_passes_ten_classes_at_most():
    """The calls are listed in CONTRIBUTING.md; without missing values, and with them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4)) + rng.normal(size=(600, 1))
    X = pd.DataFrame(X, columns=list("abcd"))
    robust = kh.wrap(xgboost.XGBRegressor(**QUIET).fit(X, X.sum(axis=1)), X)
    package = os.path.dirname(kh.__file__)
    row = X.head(1)
    for rows in (row, row.assign(a=np.nan), row.assign(a=np.nan, c=np.nan)):
        robust.predict(rows, n_jobs=1)  # what is made once is made
        classes = set()

        def called(frame, event, _, classes=classes):
            if event == "call" and frame.f_code.co_filename.startswith(package):
                classes.add(type(frame.f_locals.get("self")))

        sys.setprofile(called)
        try:
            robust.predict(rows, n_jobs=1)
        finally:
            sys.setprofile(None)
        names = {one.__name__ for one in classes if one.__module__.startswith("knothole")}
        assert {"Robust", "Columns", "Expectation", "Evidence"} <= names
        assert len(names) <= 10, sorted(names)


def test_the_same_bits_for_any_number_of_threads(data):
    X, y, incomplete = data
    robust = kh.wrap(xgboost.XGBClassifier(**QUIET).fit(X, y > 0), X, density=mixture())
    one, two = (robust.predict_proba(incomplete, n_jobs=threads) for threads in (1, 2))
    assert_array_equal(one, two)


# ---- bad input ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(data):
    X, y, _ = data
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = DecisionTreeRegressor(max_depth=3).fit(frame, y)
    return kh.wrap(model, frame, density=kh.Factorized()), model, frame, y


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([[0.1, 0.2]], ColumnMismatch, "must have 3 columns .* got 2"),
        (pd.DataFrame({"a": [1.0], "b": [1.0]}), ColumnMismatch, "'c' missing"),
        (
            pd.DataFrame({"a": ["much"], "b": [1.0], "c": [1.0]}),
            InvalidInput,
            "'a' must hold numbers.*Convert",
        ),
        ([[0.1, 0.2, np.inf]], InvalidInput, "'c' must hold finite numbers.*Replace"),
        ([0.1, 0.2, 0.3], InvalidInput, r"X.reshape\(1, -1\)"),
    ],
    ids=[
        "wrong number of columns",
        "column missing",
        "strings where numbers were",
        "infinite",
        "one dimension",
    ],
)
def test_tables_that_are_not_the_models(fitted, rows, error, message):
    with pytest.raises(error, match=message):
        fitted[0].predict(rows)


def test_columns_in_another_order_and_no_rows_at_all(fitted):
    robust, _, frame, _ = fitted
    np.testing.assert_array_equal(robust.predict(frame[["c", "a", "b"]]), robust.predict(frame))
    nothing = robust.predict(frame[:0], return_std=True, return_error=True)
    assert [len(part) for part in nothing] == [0, 0, 0, 0]
    assert robust.predict(frame[:0], quantiles=[0.1, 0.9]).shape == (0, 2)
    assert robust.leaf_probabilities(frame[:0]).shape == (0, robust.ensemble_.n_leaves)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lost": "some"}, "lost must be booleans"),
        ({"lost": np.zeros((1, 3))}, "lost must be booleans"),
        ({"lost": np.ones((1, 3), dtype=bool)}, "is marked as lost, but it has a value"),
        ({"handle_unknown": "ignore"}, "handle_unknown must be 'error' or 'missing'"),
        ({"quantiles": [2.0]}, "quantiles must be numbers from 0 to 1"),
        ({"quantiles": [0.5], "return_std": True}, "quantiles: they are returned alone"),
    ],
)
def test_options_of_predict(fitted, options, message):
    with pytest.raises(InvalidInput, match=message):
        fitted[0].predict([[0.1, 0.2, 0.3]], **options)


@pytest.mark.parametrize("name", ["gaussian-mixture", "mixture", "latent-tree", "independent"])
def test_densities_by_name(fitted, name):
    _, model, frame, y = fitted
    density = kh.wrap(model, frame, density=name, random_state=3).density_
    assert name_of(density) == name and density.random_state == 3
    assert type(density) is type(from_name(name))
    expected = kh.ExpectedRegressor(model, density=name, prefit=True).fit(frame, y)
    assert name_of(expected.density_) == name_of(kh.Imputer(name).fit(frame).density_) == name


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"density": "gaussian"},
            InvalidInput,
            "density must be 'auto', 'gaussian-mixture', .*; got",
        ),
        ({"density": kh.Mixture}, InvalidInput, "density must be 'auto', a density such as"),
        ({"density": []}, InvalidInput, "at least one density"),
        ({"nan_policy": "none"}, InvalidInput, "nan_policy must be 'infer', 'lost' or 'native'"),
        ({"one_hot": {"q": ["a", "b"]}}, InvalidInput, "do not encode one category"),
        ({"one_hot": {"q": ["d"]}}, ColumnMismatch, "names column 'd'"),
        ({"y_train": [1.0]}, InvalidInput, "a target for each of the 300 rows"),
        ({"y_train": np.full(300, np.nan)}, InvalidInput, "y_train must be finite"),
        ({"y_train": np.full(300, "high")}, InvalidInput, "y_train must hold numbers"),
    ],
)
def test_options_of_wrap(fitted, options, error, message):
    _, model, frame, _ = fitted
    with pytest.raises(error, match=message):
        kh.wrap(model, frame, **options)


def test_a_density_fitted_on_other_columns(fitted):
    _, model, frame, _ = fitted
    others = frame.rename(columns={"c": "d"})
    with pytest.raises(ColumnMismatch, match=r"density was .*'c' missing; 'd' not expected"):
        kh.wrap(model, frame, density=kh.Factorized().fit(others))
    with pytest.raises(ColumnMismatch, match=r"density was .* 'c' missing\. "):
        kh.wrap(model, frame, density=kh.Factorized().fit(frame[["a", "b"]]))
    with pytest.raises(InvalidInput, match="settled when the density was fitted"):
        kh.wrap(model, frame, density=kh.Factorized().fit(frame), one_hot="auto")


def test_labels_that_the_model_does_not_know(data):
    X, y, _ = data
    model = DecisionTreeClassifier(max_depth=2).fit(X, y > 0)
    with pytest.raises(InvalidInput, match="'maybe' is none of the model's classes"):
        kh.wrap(model, X, np.full(300, "maybe"), kh.Factorized())


def test_a_model_of_an_unsupported_kind(data):
    X, y, _ = data
    with pytest.raises(UnsupportedModel, match=r"LinearRegression.*with their training table"):
        kh.wrap(LinearRegression().fit(X, y), X)


def test_a_model_that_is_not_fitted(data):
    with pytest.raises(NotFitted, match="Call its fit first"):
        kh.wrap(DecisionTreeRegressor(), data[0])


def test_a_training_table_without_rows(fitted):
    _, model, frame, _ = fitted
    with pytest.raises(InvalidInput, match="at least one row"):
        kh.wrap(model, frame[:0], density=kh.Factorized())


def test_a_column_without_any_value(data):
    X, y, _ = data
    empty = X.copy()
    empty[:, 2] = np.nan
    model = xgb_regressor().fit(empty, y)
    with pytest.raises(InvalidInput, match=r"'x2' has no observed value.*Leave it out, or"):
        kh.wrap(model, empty, density=kh.Factorized(), nan_policy="lost")
    robust = kh.wrap(model, empty, density=kh.Factorized())  # here NaN is the model's own value
    assert_allclose(robust.predict(empty), model.predict(empty), rtol=1e-5)


def test_probabilities_of_a_regressor(fitted):
    with pytest.raises(AttributeError, match="no classifier; use predict"):
        fitted[0].predict_proba([[0.1, 0.2, 0.3]])
    classifier = DecisionTreeClassifier().fit(fitted[2], fitted[3] > 0)
    robust = kh.wrap(classifier, fitted[2], density=kh.Factorized())
    with pytest.raises(InvalidInput, match="for regressors only"):
        robust.predict([[0.1, 0.2, 0.3]], quantiles=[0.5])


# ---- names --------------------------------------------------------------------------------------


def test_public_names_are_there_and_others_are_not():
    for name in kh.__all__:
        assert getattr(kh, name) is not None
    assert set(kh.__all__) <= set(dir(kh))
    with pytest.raises(AttributeError, match="no attribute 'Forest'"):
        kh.Forest  # noqa: B018

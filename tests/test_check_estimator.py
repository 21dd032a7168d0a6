"""The meta-estimators among scikit-learn's own tools, and under its own checks."""

import os
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

import knothole as kh
from knothole.errors import InvalidInput


def regressor(**options):
    options = {"density": kh.Mixture(4, random_state=0), **options}
    return kh.ExpectedRegressor(DecisionTreeRegressor(max_depth=4, random_state=0), **options)


def classifier(**options):
    options = {"density": kh.Mixture(4, random_state=0), **options}
    return kh.ExpectedClassifier(DecisionTreeClassifier(max_depth=3, random_state=0), **options)


@pytest.mark.filterwarnings("ignore::knothole.errors.FewRows")  # their tables are small
@parametrize_with_checks(
    [
        kh.ExpectedRegressor(DecisionTreeRegressor(random_state=0), density=kh.Factorized()),
        kh.ExpectedClassifier(DecisionTreeClassifier(random_state=0), density=kh.Factorized()),
    ]
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


FULL = bool(os.environ.get("KNOTHOLE_FULL"))
# "auto" learns several densities of each table: CI runs those checks that tell most of it.
TELLING = ("check_fit_idempotent", "check_methods_subset_invariance")


def by_default():
    """Estimators with nothing but a model, and checks of them."""
    for made in (
        kh.ExpectedRegressor(DecisionTreeRegressor(random_state=0)),
        kh.ExpectedClassifier(DecisionTreeClassifier(random_state=0)),
    ):
        for estimator, check in estimator_checks_generator(made):
            name = check.func.__name__
            if FULL or name in TELLING:
                yield pytest.param(estimator, check, id=f"{type(made).__name__}-{name}")


@pytest.mark.filterwarnings("ignore::knothole.errors.FewRows")
@pytest.mark.parametrize(("estimator", "check"), list(by_default()))
def test_scikit_learns_own_checks_by_default(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    """Rows with missing values, the same rows without, and targets."""
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(300, 1)) + 0.3 * rng.normal(size=(300, 3))
    incomplete = np.where(rng.random(whole.shape) < 0.2, np.nan, whole)
    return incomplete, whole, whole.sum(axis=1)


def test_tags_say_that_nan_is_allowed():
    assert get_tags(regressor()).input_tags.allow_nan
    assert get_tags(regressor()).estimator_type == "regressor"
    assert get_tags(classifier()).classifier_tags.multi_class


def test_missing_values_are_integrated_over(table):
    incomplete, whole, y = table
    fitted = regressor().fit(whole, y)
    robust = kh.wrap(fitted.estimator_, whole, y, kh.Mixture(4, random_state=0))
    assert_array_equal(fitted.predict(incomplete), robust.predict(incomplete))
    assert_allclose(fitted.predict(whole), fitted.estimator_.predict(whole))
    prediction, std = fitted.predict(incomplete, return_std=True)
    assert_array_equal(prediction, fitted.predict(incomplete))
    complete = ~np.isnan(incomplete).any(axis=1)
    assert (std[complete] == 0).all() and (std[~complete] > 0).any()


def test_pipeline_grid_search_and_cross_validation(table):
    incomplete, whole, y = table
    pipeline = make_pipeline(StandardScaler(), regressor(density=kh.Factorized()))
    assert cross_val_score(pipeline, whole, y, cv=2).min() > 0.5
    grid = {"estimator__max_depth": [1, 4], "density": [kh.Factorized()]}
    search = GridSearchCV(regressor(), grid, cv=2).fit(whole, y)
    assert search.best_params_["estimator__max_depth"] == 4
    assert search.predict(incomplete).shape == (300,)


def test_clone_has_the_parameters_and_nothing_learned(table):
    _, whole, y = table
    fitted = regressor(refit_leaves={"ridge": 2.0}).fit(whole, y)
    copy = clone(fitted)
    assert copy.refit_leaves == {"ridge": 2.0} and not hasattr(copy, "robust_")
    assert copy.get_params()["density__n_components"] == 4


def test_pickle_gives_the_same_predictions(table):
    incomplete, whole, y = table
    for fitted in (regressor().fit(whole, y), classifier().fit(whole, y > 0)):
        again = pickle.loads(pickle.dumps(fitted))
        assert_array_equal(again.predict(incomplete), fitted.predict(incomplete))


def test_frozen_and_fitted_models_are_used_as_they_are(table):
    incomplete, whole, y = table
    model = DecisionTreeRegressor(max_depth=2).fit(whole, 10 * y)
    density = kh.Factorized(random_state=0)
    expected = kh.wrap(model, whole, y, density).predict(incomplete)
    frozen = kh.ExpectedRegressor(FrozenEstimator(model), density=density)
    assert_array_equal(clone(frozen).fit(whole, y).predict(incomplete), expected)
    prefit = kh.ExpectedRegressor(model, density=density, prefit=True)
    assert_array_equal(prefit.fit(whole, y).predict(incomplete), expected)


def test_prefit_needs_a_fitted_model(table):
    _, whole, y = table
    with pytest.raises(sklearn.exceptions.NotFittedError):
        regressor(prefit=True).fit(whole, y)


def test_sample_weight_goes_to_the_model_and_the_density(table):
    _, whole, y = table
    weight = np.r_[np.ones(150), np.zeros(150)]
    fitted = regressor(density=kh.Factorized()).fit(whole, y, sample_weight=weight)
    half = DecisionTreeRegressor(max_depth=4, random_state=0).fit(whole, y, sample_weight=weight)
    assert_array_equal(fitted.estimator_.predict(whole), half.predict(whole))
    density = kh.Factorized().fit(whole, sample_weight=weight)
    found = fitted.robust_.density_.score_samples(whole[:5])
    assert_allclose(found, density.score_samples(whole[:5]), rtol=1e-9)
    assert np.abs(found - kh.Factorized().fit(whole).score_samples(whole[:5])).min() > 1e-3


def test_metadata_routing(table):
    _, whole, y = table
    weight = np.random.default_rng(0).random(300)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = DecisionTreeRegressor(max_depth=4).set_fit_request(sample_weight=True)
        expected = kh.ExpectedRegressor(inner, density=kh.Factorized())
        expected.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scores = cross_val_score(expected, whole, y, cv=2, params={"sample_weight": weight})
        assert (scores > 0.5).all()
        refused = kh.ExpectedRegressor(DecisionTreeRegressor(), density=kh.Factorized())
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            refused.fit(whole, y, sample_weight=weight)


def test_classifier(table):
    incomplete, whole, y = table
    names = np.array(["low", "middle", "high"])[np.digitize(y, [-1, 1])]
    forest = RandomForestClassifier(n_estimators=3, max_depth=3, random_state=0)
    fitted = kh.ExpectedClassifier(forest, density=kh.Mixture(4, random_state=0)).fit(whole, names)
    assert fitted.classes_.tolist() == ["high", "low", "middle"]
    proba = fitted.predict_proba(incomplete)
    assert_allclose(proba.sum(axis=1), 1)
    assert_array_equal(fitted.predict(incomplete), fitted.classes_[proba.argmax(axis=1)])
    assert_allclose(fitted.predict_proba(whole), fitted.estimator_.predict_proba(whole), atol=1e-12)
    assert_allclose(np.exp(fitted.predict_log_proba(incomplete)), proba)
    prediction, std = fitted.predict(incomplete, return_std=True)
    assert_array_equal(prediction, fitted.predict(incomplete))
    assert std.shape == (300,) and (std[np.isnan(incomplete).any(axis=1)] > 0).any()


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_frames_keep_their_columns(table, frame):
    incomplete, whole, y = table
    names = ["a", "b", "c"]
    training = frame(dict(zip(names, whole.T, strict=True)))
    rows = frame(dict(zip(names, incomplete.T, strict=True)))
    fitted = regressor().fit(training, y)
    assert fitted.feature_names_in_.tolist() == names
    assert fitted.robust_.columns_.names == ("a", "b", "c")
    prediction = fitted.predict(rows)
    assert type(prediction) is np.ndarray
    robust = kh.wrap(fitted.estimator_, training, y, kh.Mixture(4, random_state=0))
    assert_array_equal(prediction, robust.predict(rows))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame(dict(zip(["a", "b", "d"], incomplete.T, strict=True))))


def test_leaves_are_refitted_if_asked(table):
    incomplete, _, y = table
    refitted = regressor(refit_leaves={"ridge": 0.0}).fit(incomplete, y)
    robust = kh.wrap(
        refitted.estimator_, incomplete, y, kh.Mixture(4, random_state=0), nan_policy="lost"
    )
    assert_array_equal(
        refitted.predict(incomplete),
        robust.refit_leaves(incomplete, y, ridge=0.0).predict(incomplete),
    )
    assert refitted.robust_.refit_.after < refitted.robust_.refit_.before
    assert regressor(refit_leaves=True).fit(incomplete, y).robust_.nan_policy_ == "lost"
    with pytest.raises(InvalidInput, match="refit_leaves must be None, True, or a dictionary"):
        regressor(refit_leaves="forest").fit(incomplete, y)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (kh.ExpectedRegressor(DecisionTreeClassifier()), "use ExpectedClassifier"),
        (kh.ExpectedClassifier(DecisionTreeRegressor()), "use ExpectedRegressor"),
    ],
)
def test_a_model_of_the_other_kind_is_refused(table, expected, message):
    _, whole, y = table
    with pytest.raises(InvalidInput, match=message):
        expected.fit(whole, y > 0)

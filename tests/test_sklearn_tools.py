"""A wrapped model among scikit-learn's tools, and answers of the kind of table that was asked."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import PartialDependenceDisplay, partial_dependence, permutation_importance
from sklearn.metrics import get_scorer, roc_auc_score
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

import knothole as kh
from knothole.errors import ColumnMismatch, InvalidInput, UnseenCategory

RNG = np.random.default_rng(0)
WHOLE = pd.DataFrame(
    RNG.normal(size=(240, 1)) + 0.5 * RNG.normal(size=(240, 3)), columns=list("abc")
)
INCOMPLETE = WHOLE.mask(RNG.random(WHOLE.shape) < 0.2)
Y = WHOLE["a"] + 0.5 * WHOLE["b"]
LABELS = np.where(Y > 0, "yes", "no")


@pytest.fixture(scope="module")
def regressor():
    model = RandomForestRegressor(4, max_depth=4, random_state=0).fit(WHOLE, Y)
    return kh.wrap(model, WHOLE, density=kh.Mixture(3, random_state=0))


@pytest.fixture(scope="module")
def classifier():
    model = RandomForestClassifier(4, max_depth=4, random_state=0).fit(WHOLE, LABELS)
    return kh.wrap(model, WHOLE, density=kh.Mixture(3, random_state=0))


def test_it_is_an_estimator(regressor, classifier):
    assert is_regressor(regressor) and not is_classifier(regressor)
    assert is_classifier(classifier) and not is_regressor(classifier)
    assert get_tags(regressor).input_tags.allow_nan
    assert (regressor.n_features_in_, regressor.feature_names_in_.tolist()) == (3, ["a", "b", "c"])
    check_is_fitted(regressor)
    before = regressor.predict(INCOMPLETE)
    assert regressor.fit(WHOLE, -Y) is regressor and clone(regressor) is regressor
    assert_array_equal(regressor.predict(INCOMPLETE), before)
    assert hasattr(classifier, "predict_proba") and not hasattr(regressor, "predict_proba")
    with pytest.raises(AttributeError):
        _ = regressor.classes_


def test_columns_without_names_have_none():
    model = RandomForestRegressor(2, max_depth=2, random_state=0).fit(WHOLE.to_numpy(), Y)
    robust = kh.wrap(model, WHOLE.to_numpy(), density=kh.Factorized())
    assert not hasattr(robust, "feature_names_in_") and robust.n_features_in_ == 3


@pytest.mark.parametrize("form", [pd.DataFrame, np.asarray])
def test_inspection(regressor, classifier, form):
    rows = form(INCOMPLETE)
    found = permutation_importance(regressor, rows, Y, n_repeats=3, random_state=0)
    assert found.importances_mean.argmax() == 0
    rows = form(INCOMPLETE.assign(a=WHOLE["a"]))  # of NaN scikit-learn makes no grid
    curve = partial_dependence(regressor, rows, [0], grid_resolution=5)
    assert curve["average"].shape == (1, 5) and np.ptp(curve["average"]) > 0
    if form is pd.DataFrame:
        some = rows[:30].assign(b=np.nan)
        by_hand = [regressor.predict(some.assign(a=v)).mean() for v in (-1.0, 1.0)]
        grid = {"a": np.array([-1.0, 1.0])}
        found = partial_dependence(regressor, some, ["a"], custom_values=grid)
        assert_allclose(found["average"][0], by_hand)
    probability = partial_dependence(classifier, rows, [0], grid_resolution=4)
    assert ((probability["average"] >= 0) & (probability["average"] <= 1)).all()


def test_display_of_partial_dependence(regressor):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    rows = INCOMPLETE.assign(a=WHOLE["a"])
    display = PartialDependenceDisplay.from_estimator(regressor, rows, ["a"], grid_resolution=4)
    pyplot.close(display.figure_)
    assert display.lines_.size


@pytest.mark.parametrize("form", [pd.DataFrame, np.asarray])
def test_model_selection(regressor, classifier, form):
    rows = form(INCOMPLETE)
    scores = cross_val_score(FrozenEstimator(regressor), rows, Y, cv=3)
    parts = np.array_split(np.arange(len(rows)), 3)
    take = (lambda part: rows.iloc[part]) if form is pd.DataFrame else (lambda part: rows[part])
    assert_allclose(scores, [regressor.score(take(part), Y.iloc[part]) for part in parts])
    assert_allclose(cross_val_score(regressor, rows, Y, cv=3), scores)
    measured = cross_validate(
        FrozenEstimator(classifier), rows, LABELS, cv=3,
        scoring=["roc_auc", "accuracy", "neg_log_loss"],
    )  # fmt: skip
    assert measured["test_roc_auc"].min() > 0.8
    predicted = cross_val_predict(classifier, rows, LABELS, cv=3, method="predict_proba")
    assert_allclose(predicted, classifier.predict_proba(rows))
    again = get_scorer("roc_auc")(classifier, rows, LABELS)
    assert again == pytest.approx(
        roc_auc_score(LABELS, np.asarray(classifier.predict_proba(rows))[:, 1])
    )


@pytest.mark.parametrize("form", [pd.DataFrame, np.asarray])
@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_calibration(classifier, form, method):
    rows = form(INCOMPLETE)
    calibrated = CalibratedClassifierCV(FrozenEstimator(classifier), method=method)
    calibrated.fit(rows, LABELS)
    found = calibrated.predict_proba(rows)
    assert_allclose(found.sum(axis=1), 1.0)
    by_hand = (
        calibrated.calibrated_classifiers_[0]
        .calibrators[0]
        .predict(np.asarray(classifier.predict_proba(rows))[:, 1])
    )
    assert_allclose(found[:, 1], by_hand)


@pytest.mark.parametrize("form", [pd.DataFrame, np.asarray])
def test_thresholds(classifier, form):
    rows = form(INCOMPLETE)
    fixed = FixedThresholdClassifier(
        FrozenEstimator(classifier), threshold=0.8, pos_label="yes", response_method="predict_proba"
    ).fit(rows, LABELS)
    sure = np.asarray(classifier.predict_proba(rows))[:, 1] >= 0.8
    assert_array_equal(fixed.predict(rows) == "yes", sure)
    tuned = TunedThresholdClassifierCV(
        FrozenEstimator(classifier), cv="prefit", refit=False, thresholds=10
    ).fit(rows, LABELS)
    assert 0 < tuned.best_threshold_ < 1


def test_score_takes_every_argument(regressor):
    weight = np.linspace(0, 1, len(INCOMPLETE))
    found = regressor.score(
        INCOMPLETE,
        Y,
        weight,
        INCOMPLETE.isna(),
        handle_unknown="missing",
        absent="missing",
        n_jobs=1,
    )
    assert found == regressor.score(INCOMPLETE, Y, sample_weight=weight)


def test_jobs_are_counted_as_scikit_learn_does(regressor):
    answers = [regressor.predict(INCOMPLETE, n_jobs=n) for n in (1, 2, -1, -100, None)]
    for each in answers[1:]:
        assert_array_equal(each, answers[0])
    with pytest.raises(InvalidInput, match="n_jobs must be a whole number, -1 for all"):
        regressor.predict(INCOMPLETE, n_jobs=0)
    for name in ("jobs", "threads"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            regressor.predict(INCOMPLETE, **{name: 1})


# ---- tables ------------------------------------------------------------------------------------


def test_an_absent_column_is_missing_on_request(regressor):
    with pytest.raises(ColumnMismatch, match=r"'b' missing.*absent='missing'"):
        regressor.predict(INCOMPLETE[["a", "c"]])
    found = regressor.predict(INCOMPLETE[["c", "a"]], absent="missing")
    assert_array_equal(found, regressor.predict(INCOMPLETE.assign(b=np.nan)))


def test_a_mask_follows_the_names(regressor):
    turned = INCOMPLETE[["c", "a", "b"]]
    mask = turned.isna()
    expected = regressor.predict(INCOMPLETE)
    assert_array_equal(regressor.predict(turned, lost=mask), expected)
    assert_array_equal(regressor.predict(INCOMPLETE, lost=INCOMPLETE.isna().to_numpy()), expected)
    with pytest.raises(
        InvalidInput, match=r"not those of the model in their order.*DataFrame of booleans"
    ):
        regressor.predict(turned, lost=mask.to_numpy())


def test_every_question_takes_absent_columns(regressor):
    some, same = INCOMPLETE[["c", "a"]][:4], INCOMPLETE.assign(b=np.nan)[:4]
    found = regressor.explain(some, absent="missing", n_jobs=1).values
    assert_array_equal(found, regressor.explain(same).values)
    found = regressor.acquire(some, absent="missing").gain
    assert_array_equal(found, regressor.acquire(same).gain)
    assert_array_equal(regressor.impute(some, absent="missing"), regressor.impute(same)[["c", "a"]])
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_jobs'"):
        regressor.acquire(some, n_jobs=1)


def test_probabilities_are_a_frame_that_tools_can_take_apart(classifier):
    found = classifier.predict_proba(INCOMPLETE)
    assert_array_equal(found[:, 1], found["yes"])
    assert type(found[["yes"]]) is pd.DataFrame
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is pd.DataFrame
    pd.testing.assert_frame_equal(found, again)


def test_polars_in_polars_out(regressor, classifier):
    rows = pl.from_pandas(INCOMPLETE)
    for table in (rows, rows.lazy()):
        found, std = regressor.predict(table, return_std=True)
        assert isinstance(found, pl.Series) and isinstance(std, pl.Series)
        assert_array_equal(found, regressor.predict(INCOMPLETE))
    found = classifier.predict_proba(rows)
    assert isinstance(found, pl.DataFrame) and found.columns == ["no", "yes"]
    assert_array_equal(found, classifier.predict_proba(INCOMPLETE))
    assert classifier.predict(rows).to_list() == classifier.predict(INCOMPLETE).tolist()
    assert regressor.predict(rows, quantiles=[0.1, 0.9]).columns == ["0.1", "0.9"]


def test_arrow_in_arrow_out(regressor, classifier):
    rows = pa.Table.from_pandas(INCOMPLETE)
    found = regressor.predict(rows)
    assert isinstance(found, pa.Array)
    assert_array_equal(found, regressor.predict(INCOMPLETE))
    found = classifier.predict_proba(rows)
    assert isinstance(found, pa.Table) and found.column_names == ["no", "yes"]


def test_dictionaries_and_no_rows(regressor):
    rows = [{"a": 1.0}, {"c": 0.5, "b": 2.0}]
    expected = regressor.predict(pd.DataFrame(rows))
    assert_array_equal(regressor.predict(rows), expected)
    assert len(regressor.predict(INCOMPLETE[:0])) == 0
    assert len(regressor.predict(pl.from_pandas(INCOMPLETE)[:0])) == 0
    assert regressor.predict(np.empty((0, 3)), quantiles=[0.5]).shape == (0, 1)


# ---- the meta-estimators offer what a wrapped model offers -------------------------------------


@pytest.mark.filterwarnings("ignore::knothole.errors.FewCalibrationRows")
def test_meta_estimators_offer_what_a_wrapped_model_offers(tmp_path):
    forest = RandomForestRegressor(4, max_depth=4, random_state=0)
    expected = kh.ExpectedRegressor(forest, density=kh.Mixture(3, random_state=0))
    with pytest.raises(NotFittedError):
        expected.margin(INCOMPLETE)
    expected.fit(WHOLE[:160], Y[:160])
    robust = expected.robust_
    assert_array_equal(expected.margin(INCOMPLETE), robust.margin(INCOMPLETE))
    assert_array_equal(
        expected.predict(INCOMPLETE, quantiles=[0.1, 0.9]),
        robust.predict(INCOMPLETE, quantiles=[0.1, 0.9]),
    )
    assert (
        expected.leaf_probabilities(INCOMPLETE).shape == robust.leaf_probabilities(INCOMPLETE).shape
    )
    assert expected.impute(INCOMPLETE).notna().all().all()
    assert expected.robust_.predict(INCOMPLETE).index is INCOMPLETE.index
    gone = INCOMPLETE[["c", "a"]]
    found = expected.predict(gone, absent="missing", n_jobs=1)
    assert_array_equal(found, robust.predict(gone, absent="missing"))
    assert_array_equal(
        expected.explain(INCOMPLETE[:3]).values, robust.explain(INCOMPLETE[:3]).values
    )
    assert_array_equal(expected.acquire(INCOMPLETE[:3]).gain, robust.acquire(INCOMPLETE[:3]).gain)
    conformalized = expected.conformalize(WHOLE[160:], Y[160:])
    assert conformalized.predict_interval(INCOMPLETE, 0.8).columns.tolist() == ["low", "high"]
    assert not hasattr(expected, "predict_proba") and not hasattr(expected, "nothing")
    assert expected.density_ is robust.density_
    expected.save(tmp_path / "model.knothole")
    assert_array_equal(
        kh.load(tmp_path / "model.knothole").predict(INCOMPLETE), robust.predict(INCOMPLETE)
    )
    with pytest.raises(ValueError, match="feature names"):
        expected.margin(INCOMPLETE.rename(columns={"a": "z"}))


def test_a_level_that_is_in_no_other_fold():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=90), "b": rng.choice(["x", "y"], 90)})
    table.loc[0, "b"] = "rare"
    y = table["a"] + (table["b"] == "x")
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["b"]), remainder="passthrough"
    )
    model = make_pipeline(encoder, HistGradientBoostingRegressor(max_iter=5))
    expected = kh.ExpectedRegressor(
        model, density=kh.Factorized(), correction=False, handle_unknown="missing"
    )
    assert np.isfinite(cross_val_score(expected, table, y, cv=3, error_score="raise")).all()
    refusing = clone(expected).set_params(handle_unknown="error").fit(table[1:], y[1:])
    with pytest.raises(UnseenCategory, match="handle_unknown='missing'"):
        refusing.predict(table)
    assert_array_equal(
        refusing.predict(table, handle_unknown="missing"),
        expected.fit(table[1:], y[1:]).predict(table),
    )


def test_densities_are_estimators_without_inheriting_from_scikit_learn():
    density = kh.Mixture(n_components=4, max_iter=300, random_state=0)
    copy = clone(density)
    assert copy is not density and copy.get_params() == density.get_params()
    assert repr(copy) == "Mixture(n_components=4, max_iter=300, random_state=0)"
    assert copy.set_params(n_components=2) is copy and copy.n_components == 2
    with pytest.raises(InvalidInput, match="no parameter 'component'"):
        copy.set_params(component=1)
    tags = get_tags(density)
    assert tags.estimator_type == "density_estimator" and tags.input_tags.allow_nan
    assert "Mixture" in density._repr_html_()
    search = GridSearchCV(kh.Mixture(random_state=0), {"n_components": [1, 2]}).fit(INCOMPLETE)
    assert search.best_params_["n_components"] in (1, 2)
    assert "Mixture" in search._repr_html_() and "Mixture" in repr(search)
    fitted = search.best_estimator_
    again = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(again.score_samples(INCOMPLETE), fitted.score_samples(INCOMPLETE))


def test_weights_are_routed_to_densities():
    weight = np.r_[np.ones(120), np.zeros(120)]
    with config_context(enable_metadata_routing=True):
        density = kh.Factorized(random_state=0).set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, density).fit(WHOLE, sample_weight=weight)
    scaled = StandardScaler().fit_transform(WHOLE)
    alone = kh.Factorized(random_state=0).fit(scaled, sample_weight=weight)
    assert_array_equal(routed.score_samples(WHOLE), alone.score_samples(scaled))


@pytest.mark.parametrize("way", ["ignore", "infrequent_if_exist"])
def test_estimators_follow_the_encoder_where_a_fold_lacks_a_category(way):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=90), "b": rng.choice(["x", "y"], 90)})
    table.loc[0, "b"] = "rare"
    y = table["a"] > 0

    def estimator(**encoding):
        encoder = make_column_transformer(
            (OneHotEncoder(**encoding), ["b"]), remainder="passthrough"
        )
        model = make_pipeline(encoder, RandomForestClassifier(3, random_state=0))
        return kh.ExpectedClassifier(model, density="independent", correction=False)

    scores = cross_val_score(estimator(handle_unknown=way), table, y, cv=3, error_score="raise")
    assert np.isfinite(scores).all()
    refusing = estimator(handle_unknown="error").fit(table[1:], y[1:])
    with pytest.raises(
        UnseenCategory, match=r"'rare'.*ExpectedClassifier\(\.\.\., handle_unknown='missing'\)"
    ):
        refusing.predict(table)
    with pytest.raises(InvalidInput, match="handle_unknown must be 'auto', 'error' or 'missing'"):
        estimator().set_params(handle_unknown="ignore").fit(table, y)


def test_training_has_no_argument_absent_or_handle_unknown_to_advise():
    table = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20.0) % 3})
    model = HistGradientBoostingRegressor(max_iter=2).fit(table, table["a"])
    with pytest.raises(ColumnMismatch, match="'b' missing") as caught:
        kh.wrap(model, table[["a"]], density="independent")
    assert "absent=" not in str(caught.value)

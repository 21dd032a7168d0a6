"""Models of quantiles, files of classifiers, few rows: what users are told and can do."""

import warnings

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.errors import FewRows, NotAMean
from knothole.scoring import pinball, prediction_loss
from knothole.trees.read import read

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3))
X[:, 2] += X[:, 0]
y = X[:, 0] - X[:, 1] + rng.normal(size=400)
QUIET = {"verbose": -1}


def lgb(**options):
    return lightgbm.LGBMRegressor(n_estimators=4, verbose=-1, **options)


def cat(loss):
    return catboost.CatBoostRegressor(
        iterations=4, loss_function=loss, verbose=0, allow_writing_files=False
    )


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        (xgboost.XGBRegressor(n_estimators=4), ()),
        (xgboost.XGBRegressor(n_estimators=4, objective="reg:absoluteerror"), (0.5,)),
        (
            xgboost.XGBRegressor(
                n_estimators=4, objective="reg:quantileerror", quantile_alpha=[0.1, 0.9]
            ),
            (0.1, 0.9),
        ),
        (lgb(), ()),
        (lgb(objective="mae"), (0.5,)),
        (lgb(objective="quantile", alpha=0.8), (0.8,)),
        (cat("RMSE"), ()),
        (cat("MAE"), (0.5,)),
        (cat("Quantile:alpha=0.7"), (0.7,)),
        (cat("MultiQuantile:alpha=0.1,0.9"), (0.1, 0.9)),
        (GradientBoostingRegressor(n_estimators=4, loss="quantile", alpha=0.9), (0.9,)),
        (GradientBoostingRegressor(n_estimators=4, loss="huber"), ()),
        (HistGradientBoostingRegressor(max_iter=4, loss="quantile", quantile=0.2), (0.2,)),
        (HistGradientBoostingRegressor(max_iter=4, loss="absolute_error"), (0.5,)),
        (DecisionTreeRegressor(max_depth=2, criterion="absolute_error"), (0.5,)),
        (RandomForestRegressor(n_estimators=3, max_depth=2), ()),
    ],
    ids=lambda part: type(part).__name__,
)
def test_quantiles_that_a_model_was_trained_for_are_known_and_said(model, levels, tmp_path):
    model = model.fit(X, y)
    assert read(model).recipe.levels == pytest.approx(levels)
    density = kh.Factorized().fit(X)
    if not levels:
        assert kh.wrap(model, X, density=density).ensemble_.recipe.levels == ()
        return
    with pytest.warns(NotAMean, match="expected prediction is not a quantile of y"):
        robust = kh.wrap(model, X, density=density)
    robust.save(tmp_path / "model.knothole")
    assert kh.load(tmp_path / "model.knothole").ensemble_.recipe == robust.ensemble_.recipe


@pytest.mark.filterwarnings("ignore::knothole.errors.NotAMean")
@pytest.mark.parametrize(
    "model",
    [
        xgboost.XGBRegressor(
            n_estimators=20, objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9]
        ),
        catboost.CatBoostRegressor(
            iterations=20,
            loss_function="MultiQuantile:alpha=0.1,0.5,0.9",
            verbose=0,
            allow_writing_files=False,
        ),
    ],
    ids=lambda model: type(model).__name__,
)
def test_several_quantiles_are_chosen_for_by_their_own_loss(model):
    model = model.fit(X, y)
    robust = kh.wrap(model, X, y, [kh.Factorized(), kh.Mixture(2, n_init=1, random_state=0)])
    assert robust.selection_ is not None
    answers = robust.predict([[0.3, np.nan, 0.1]])
    assert answers.shape == (1, 3)
    ensemble = robust.ensemble_
    loss = prediction_loss(ensemble, X, robust.columns_, y)
    assert loss.truth.shape == (400, 3) and loss.eligible.all()
    found = loss.measure(ensemble.predict(X), loss.truth)
    slow = sum(
        np.where(y > f, q * (y - f), (1 - q) * (f - y))
        for q, f in zip((0.1, 0.5, 0.9), ensemble.predict(X).T, strict=True)
    )
    np.testing.assert_allclose(found, slow)


def test_the_pinball_loss_is_least_at_its_quantile():
    values = np.linspace(-3, 3, 601)
    losses = [pinball((0.8,))(np.full((400, 1), v), y[:, None]).mean() for v in values]
    best = values[int(np.argmin(losses))]
    assert abs(best - np.quantile(y, 0.8)) < 0.05


@pytest.mark.parametrize("classes", [2, 3])
def test_a_lightgbm_text_of_a_classifier_is_a_classifier(classes, tmp_path):
    labels = np.digitize(y, [0.0] if classes == 2 else [-1.0, 1.0])
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(X, labels)
    model.booster_.save_model(tmp_path / "model.txt")
    robust = kh.wrap(tmp_path / "model.txt", X, density=kh.Factorized())
    assert robust.classes_.tolist() == list(range(classes))
    np.testing.assert_array_equal(robust.predict(X), model.predict(X))
    np.testing.assert_allclose(robust.predict_proba(X), model.predict_proba(X), atol=1e-9)


def test_few_rows_are_said():
    model = DecisionTreeRegressor(max_depth=2).fit(X, y)
    with pytest.warns(FewRows, match=r"X_train has 5 row\(s\)"):
        kh.wrap(model, X[:5], density=kh.Factorized())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kh.wrap(model, X[:20], density=kh.Factorized())


def test_options_reach_the_meta_estimators():
    import pandas as pd

    table = pd.DataFrame({"x": X[:, 0], "c": pd.Categorical(np.where(X[:, 1] > 0, "a", "b"))})
    rows = pd.DataFrame({"x": [0.2, np.nan], "c": ["new", "a"]})
    density = kh.Factorized()
    regressor = kh.ExpectedRegressor(
        xgboost.XGBRegressor(n_estimators=5, enable_categorical=True), density=density
    ).fit(table, y)
    with pytest.raises(kh.errors.UnseenCategory, match="handle_unknown='missing'"):
        regressor.predict(rows)
    robust = regressor.robust_
    options = {"handle_unknown": "missing", "lost": rows.isna(), "n_jobs": 1}
    quantiles, errors = regressor.predict(rows, quantiles=[0.1, 0.9], return_error=True, **options)
    expected = robust.predict(rows, quantiles=[0.1, 0.9], return_error=True, **options)
    np.testing.assert_array_equal(quantiles, expected[0])
    np.testing.assert_array_equal(errors, expected[1])
    assert isinstance(quantiles, np.ndarray)
    prediction, std = regressor.predict(rows, return_std=True, **options)
    assert prediction.shape == std.shape == (2,)
    assert np.isfinite(robust.score(rows, [0.0, 1.0], **options))
    classifier = kh.ExpectedClassifier(
        xgboost.XGBClassifier(n_estimators=5, enable_categorical=True), density=density
    ).fit(table, y > 0)
    proba, error = classifier.predict_proba(rows, return_error=True, **options)
    assert proba.shape == error.shape == (2, 2)
    np.testing.assert_allclose(np.exp(classifier.predict_log_proba(rows, **options)), proba)
    with pytest.raises(kh.errors.UnseenCategory):
        robust.refit_leaves(rows, [0.0, 1.0])

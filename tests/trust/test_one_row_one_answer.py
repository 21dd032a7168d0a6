"""An answer is a function of the model, the density, the seed and what the row says.

Never of the row's place in the batch, the other rows, the chunk or the thread: to the last bit.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st

import knothole as kh
from knothole.expectation.monte_carlo.engine import MonteCarloEngine

ROWS = 24


def table(n, seed):
    """Numbers, whole numbers and a one-hot group, all of which depend on each other."""
    rng = np.random.default_rng(seed)
    group = rng.integers(3, size=n)
    x = rng.normal(size=(n, 3)) + group[:, None]
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    frame["n"] = rng.poisson(1 + group)
    for level in range(3):
        frame[f"g_{level}"] = (group == level).astype(float)
    return frame.astype(float)


def rows_with_missing(n, seed):
    """Missing values everywhere: also whole rows, and blocks of which a part is known."""
    rng = np.random.default_rng(seed)
    frame = table(n, seed)
    missing_mask = rng.random(frame.shape) < 0.4
    missing_mask[0] = True
    missing_mask[1] = False
    return frame.mask(missing_mask)


DENSITIES = {
    "Factorized": lambda: kh.Factorized(random_state=0),
    "Mixture": lambda: kh.Mixture(4, n_init=1, random_state=0),
    "LatentTree": lambda: kh.LatentTree(3, random_state=0),
    "GaussianMixture": lambda: kh.GaussianMixture(3, random_state=0),
    "Circuit": lambda: kh.Mixture(2, n_init=1, random_state=0),
}


@pytest.fixture(scope="module")
def models():
    X = table(400, 0)
    score = (X["a"] * X["b"] + X["n"]).to_numpy()
    common = {"n_estimators": 12, "max_depth": 3, "n_jobs": 1}
    return (
        X,
        score,
        xgb.XGBRegressor(**common).fit(X, score),
        xgb.XGBClassifier(**common).fit(X, score > 2),
    )


@pytest.fixture(scope="module", params=DENSITIES)
def wrapped(request, models):
    X, _, regressor, classifier = models
    density = DENSITIES[request.param]()
    if request.param == "Circuit":
        density = kh.wrap(regressor, X, density=density, one_hot="auto").density_.to_circuit()
        return kh.wrap(regressor, X, density=density), kh.wrap(classifier, X, density=density)
    return (
        kh.wrap(regressor, X, density=density, one_hot="auto"),
        kh.wrap(classifier, X, density=density, one_hot="auto"),
    )


def answers(wrapped, X):
    """Everything that can be asked of rows, each as (rows, ...)."""
    with warnings.catch_warnings():
        # Quantiles of a few steps lie on one side of a jump or on the other.
        warnings.simplefilter("ignore", kh.errors.ToleranceMissed)
        return _answers(wrapped, X)


def _answers(wrapped, X):
    regressor, classifier = wrapped
    prediction, std = regressor.predict(X, return_std=True)
    margin, error = regressor.margin(X, return_error=True)
    probability, spread = classifier.predict_proba(X, return_std=True)
    return {
        "predict": prediction,
        "std": std,
        "quantiles": regressor.predict(X, quantiles=[0.05, 0.5, 0.95]),
        "margin": margin,
        "error": error,
        "leaf_probabilities": regressor.leaf_probabilities(X).toarray(),
        "label": classifier.predict(X),
        "probability": probability,
        "spread of probability": spread,
        "complete": regressor.density_.complete(X, draws=3),
    }


def as_arrays(found):
    return {name: np.asarray(values) for name, values in found.items()}


@pytest.fixture(scope="module")
def whole(wrapped):
    X = rows_with_missing(ROWS, 1)
    return X, as_arrays(answers(wrapped, X))


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=2 * ROWS))
def test_rows_taken_in_any_order_and_number(wrapped, whole, rows):
    """Permuted, repeated, left out: every row has the answer it has in the whole table."""
    X, expected = whole
    found = as_arrays(answers(wrapped, X.iloc[rows].reset_index(drop=True)))
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name][rows], err_msg=name)


def test_parts_of_a_table(wrapped, whole):
    X, expected = whole
    parts = [as_arrays(answers(wrapped, X.iloc[i : i + 7])) for i in range(0, ROWS, 7)]
    for name, values in expected.items():
        together = np.concatenate([part[name] for part in parts])
        np.testing.assert_array_equal(together, values, err_msg=name)


def test_chunks_and_threads(wrapped, whole, monkeypatch):
    X, expected = whole
    for robust in wrapped:
        for engine in {robust.expectation_.engine, robust.expectation_.monte_carlo}:
            monkeypatch.setattr(engine, "chunk", 5)
    monkeypatch.setattr(MonteCarloEngine, "_rows_at_once", lambda self, words: 3)
    for threads in ("1", "8"):
        monkeypatch.setenv("KNOTHOLE_THREADS", threads)
        for name, values in as_arrays(answers(wrapped, X)).items():
            np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_another_seed_gives_other_draws(models):
    X, _, regressor, _ = models
    density = DENSITIES["GaussianMixture"]()
    robust = kh.wrap(regressor, X, density=density)
    other = kh.wrap(regressor, X, density=density, random_state=1)
    rows = rows_with_missing(8, 2)
    assert not np.array_equal(robust.predict(rows), other.predict(rows))


@pytest.mark.parametrize("name", ["Mixture", "GaussianMixture"])
def test_refitted_leaves_do_not_depend_on_the_order_of_rows(models, name):
    """Sums over rows are taken in another order, so that rounding is all that may differ."""
    X, score, _, _ = models
    rng = np.random.default_rng(3)
    missing_mask = X.mask(rng.random(X.shape) < 0.3)
    model = xgb.XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1).fit(missing_mask, score)
    density = DENSITIES[name]().fit(missing_mask)
    robust = kh.wrap(model, missing_mask, density=density, nan_policy="lost")
    order = rng.permutation(len(X))
    options = {"condition_on_target": False, "learning_rate": 0.3}
    refitted = robust.refit_leaves(missing_mask, score, **options)
    again = robust.refit_leaves(missing_mask.iloc[order], score[order], **options)
    np.testing.assert_allclose(
        refitted.ensemble_.value, again.ensemble_.value, rtol=1e-9, atol=1e-12
    )

"""IsolationForest: scores, thresholds and labels of the library itself."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import knothole as kh
from knothole.errors import InvalidInput, ReaderMismatch
from knothole.trees.read import read, write
from knothole.trees.readers import sklearn as reader
from knothole.trees.verify import probe_rows

ROWS = 5000
SETTINGS = {
    "default": {},
    "columns of each tree": {"max_features": 2},
    "a share of anomalies": {"contamination": 0.1, "bootstrap": True},
    "pairs of rows": {"max_samples": 2},
    "single rows": {"max_samples": 1},
    "one tree": {"n_estimators": 1},
}


def table(missing_rate=0.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 4)) * [1, 1e-3, 1e6, 1]
    X[:, 3] = rng.integers(0, 3, 400)
    X[rng.random(X.shape) < missing_rate] = np.nan
    return X


@pytest.mark.parametrize("missing_rate", [0.0, 0.1], ids=["complete", "incomplete"])
@pytest.mark.parametrize("name", SETTINGS)
def test_scores_at_and_beside_thresholds(name, missing_rate):
    settings = {"n_estimators": 20, **SETTINGS[name]}
    model = IsolationForest(**settings, random_state=0).fit(table(missing_rate))
    ensemble = read(model)
    rows = probe_rows(ensemble, ROWS, np.random.default_rng(1))
    np.testing.assert_allclose(ensemble.predict(rows)[:, 0], model.score_samples(rows), rtol=1e-12)
    assert ensemble.recipe.task == "anomaly" and ensemble.recipe.offset == model.offset_


def test_a_wrapped_one_answers_complete_rows_as_the_library_does():
    X = pd.DataFrame(table(), columns=list("abcd"))
    # The threshold is the score of a training row: rounding must not make an anomaly of it.
    model = IsolationForest(contamination=0.05, random_state=0).fit(X.iloc[:381])
    robust = kh.wrap(model, X, density=kh.Factorized())
    assert np.array_equal(robust.predict(X), model.predict(X))
    scores = robust.score_samples(X)
    assert scores.index.equals(X.index)
    np.testing.assert_allclose(scores, model.score_samples(X), rtol=1e-12)
    decision, error = robust.decision_function(X, return_error=True)
    np.testing.assert_allclose(decision, model.decision_function(X), atol=1e-12)
    assert not error.any()
    assert set(np.unique(robust.predict(X))) == {-1, 1}
    assert not hasattr(robust, "predict_proba") and not hasattr(robust, "predict_survival_function")


def test_in_a_pipeline_and_in_a_file(tmp_path):
    X = table()[:, [0, 1, 3]]
    model = make_pipeline(StandardScaler(), IsolationForest(n_estimators=20, random_state=0)).fit(X)
    robust = kh.wrap(model, X, density=kh.Factorized())
    np.testing.assert_allclose(robust.score_samples(X), model.score_samples(X), atol=1e-9)
    robust.save(tmp_path / "model.knothole")
    again = kh.load(tmp_path / "model.knothole")
    X[::2, 0] = np.nan
    assert np.array_equal(again.decision_function(X), robust.decision_function(X))


def test_a_wrong_reading_is_refused(monkeypatch):
    model = IsolationForest(n_estimators=5, random_state=0).fit(table())
    read(model)
    monkeypatch.setattr(reader, "average_path_length", lambda n: np.log1p(n))
    with pytest.raises(ReaderMismatch):
        read(model)


def test_what_it_has_no_answer_to_says_so():
    X = table()
    model = IsolationForest(n_estimators=5, random_state=0).fit(X)
    with pytest.raises(InvalidInput, match="y_train: an isolation forest has no target"):
        kh.wrap(model, X, X[:, 0], density=kh.Factorized())
    robust = kh.wrap(model, X, density=kh.Factorized())
    for name in ("refit_leaves", "conformalize", "score"):
        with pytest.raises(InvalidInput, match=f"{name}: an isolation forest has no target"):
            getattr(robust, name)(X, X[:, 0])
    with pytest.raises(InvalidInput, match="score_samples"):
        robust.predict(X, quantiles=[0.5])
    with pytest.raises(InvalidInput, match="depths"):
        write(model, read(model))

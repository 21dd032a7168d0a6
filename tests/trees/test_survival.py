"""Survival models: XGBoost's accelerated failure times and proportional hazards, survival forests.

scikit-survival is tested where it is installed.
"""

import numpy as np
import pandas as pd
import pytest
import xgboost

import knothole as kh
from knothole.errors import InvalidInput, ReaderMismatch, UnsupportedModel
from knothole.trees.curves import reached
from knothole.trees.links import Link
from knothole.trees.read import read, write
from knothole.trees.verify import probe_rows

ROWS = 5000


def data(missing_rate=0.0, n=250, seed=0):
    """Rows, times, and whether there was an event at them."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    time = rng.exponential(np.exp(X[:, 0])).round(2) + 0.01
    X[rng.random(X.shape) < missing_rate] = np.nan
    return X, time, rng.random(n) < 0.7


# ---- XGBoost -------------------------------------------------------------------------------------


def aft(X, time, event, distribution):
    rows = xgboost.DMatrix(X)
    rows.set_float_info("label_lower_bound", time)
    rows.set_float_info("label_upper_bound", np.where(event, time, np.inf))
    parameters = {"aft_loss_distribution": distribution, "aft_loss_distribution_scale": 1.2}
    parameters |= {"objective": "survival:aft", "max_depth": 3, "nthread": 1}
    return xgboost.train(parameters, rows, 15)


def cox(X, time, event):
    model = xgboost.XGBRegressor(objective="survival:cox", n_estimators=15, max_depth=3, n_jobs=1)
    return model.fit(X, np.where(event, time, -time))


@pytest.mark.parametrize("distribution", ["normal", "logistic", "extreme"])
def test_expected_times_of_xgboost(distribution):
    X, time, event = data(0.1)
    model = aft(X, time, event, distribution)
    ensemble = read(model)
    rows = probe_rows(ensemble, ROWS, np.random.default_rng(1))
    native = model.predict(xgboost.DMatrix(rows))
    np.testing.assert_allclose(ensemble.predict(rows)[:, 0], native, rtol=3e-6)
    assert ensemble.link == Link("exp") and ensemble.recipe.loss == "survival:aft"


def test_hazard_ratios_of_xgboost():
    X, time, event = data(0.1)
    model = cox(X, time, event)
    ensemble = read(model)
    rows = probe_rows(ensemble, ROWS, np.random.default_rng(1))
    np.testing.assert_allclose(ensemble.predict(rows)[:, 0], model.predict(rows), rtol=3e-6)
    robust = kh.wrap(model, X, density=kh.Factorized(), nan_policy="native")
    np.testing.assert_allclose(robust.predict(X), model.predict(X), rtol=3e-6)
    with pytest.raises(UnsupportedModel, match="survival:cox"):
        robust.refit_leaves(X, time)


# ---- scikit-survival -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sksurv():
    pytest.importorskip("sksurv")
    import sksurv.ensemble
    import sksurv.tree
    import sksurv.util

    return sksurv


MODELS = {
    "forest": lambda s: s.ensemble.RandomSurvivalForest(12, random_state=0),
    "extra trees": lambda s: s.ensemble.ExtraSurvivalTrees(12, random_state=0),
    "tree": lambda s: s.tree.SurvivalTree(random_state=0),
}


def fitted(sksurv, name, X, time, event):
    return MODELS[name](sksurv).fit(X, sksurv.util.Surv.from_arrays(event, time))


@pytest.mark.parametrize("missing_rate", [0.0, 0.1], ids=["complete", "incomplete"])
@pytest.mark.parametrize("name", MODELS)
def test_risks_and_curves_at_and_beside_thresholds(sksurv, name, missing_rate):
    model = fitted(sksurv, name, *data(missing_rate))
    ensemble = read(model)
    rows = probe_rows(ensemble, ROWS, np.random.default_rng(1))
    np.testing.assert_allclose(ensemble.predict(rows)[:, 0], model.predict(rows), rtol=1e-12)
    leaves = reached(ensemble.leaves(rows), ensemble.n_leaves)
    for what in ("survival", "cumulative hazard"):
        curves = ensemble.curves[what]
        ours = curves.at(leaves @ curves.jumps, np.arange(len(curves.grid)))
        function = getattr(model, f"predict_{what.replace(' ', '_')}_function")
        np.testing.assert_allclose(ours, function(rows, return_array=True), atol=1e-12)


def test_functions_at_given_times(sksurv, tmp_path):
    X, time, event = data()
    X = pd.DataFrame(X, columns=list("abc"))
    model = fitted(sksurv, "forest", X, time, event)
    robust = kh.wrap(model, X, density=kh.Factorized())
    np.testing.assert_allclose(robust.predict(X), model.predict(X), rtol=1e-12)
    everywhere = robust.predict_survival_function(X)
    assert list(everywhere.columns) == list(model.unique_times_)
    native = model.predict_survival_function(X, return_array=True)
    np.testing.assert_allclose(everywhere, native, atol=1e-12)
    times = [0.0, 0.5, float(model.unique_times_[3]), float(model.unique_times_[-1])]
    for name in ("predict_survival_function", "predict_cumulative_hazard_function"):
        found, error = getattr(robust, name)(X, times=times, return_error=True)
        expected = [function(times[1:]) for function in getattr(model, name)(X)]
        np.testing.assert_allclose(found[times[1:]], expected, atol=1e-12)
        assert not error.any(axis=None)
    assert (robust.predict_survival_function(X, times=[0.0]) == 1).all(axis=None)
    robust.save(tmp_path / "model.knothole")
    again, X = kh.load(tmp_path / "model.knothole"), X.mask(X > 1)
    for one in (again, robust):
        pd.testing.assert_frame_equal(
            one.predict_survival_function(X), robust.predict_survival_function(X)
        )


def test_what_survival_forests_have_no_answer_to_says_so(sksurv, monkeypatch):
    X, time, event = data()
    model = fitted(sksurv, "forest", X, time, event)
    robust = kh.wrap(model, X, density=kh.Factorized())
    with pytest.raises(InvalidInput, match=f"from 0 to {time.max():g}"):
        robust.predict_survival_function(X, times=[time.max() + 1])
    for name in ("refit_leaves", "conformalize", "score"):
        with pytest.raises(InvalidInput, match=f"{name}: .*may be censored"):
            getattr(robust, name)(X, time)
    with pytest.raises(InvalidInput, match=r"y_train: .*may be censored"):
        kh.wrap(model, X, time, density=kh.Factorized())
    with pytest.raises(InvalidInput, match="survival curves"):
        write(model, read(model))
    assert not hasattr(robust, "score_samples")
    light = sksurv.ensemble.RandomSurvivalForest(3, low_memory=True, random_state=0)
    light.fit(X, sksurv.util.Surv.from_arrays(event, time))
    robust = kh.wrap(light, X, density=kh.Factorized())
    np.testing.assert_allclose(robust.predict(X), light.predict(X), rtol=1e-12)
    with pytest.raises(InvalidInput, match="low_memory=False"):
        robust.predict_survival_function(X)


def test_a_wrong_curve_is_refused(sksurv, monkeypatch):
    from knothole.trees.readers import sksurv as reader

    model = fitted(sksurv, "forest", *data())
    original = reader._curves

    def shifted(model, value, trees):
        return {
            name: each.of_leaves(np.arange(len(value))[::-1])
            for name, each in original(model, value, trees).items()
        }

    monkeypatch.setattr(reader, "_curves", shifted)
    with pytest.raises(ReaderMismatch, match="the survival of what was read"):
        read(model)

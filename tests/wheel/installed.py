"""What the wheel must do where it is installed without extras: run by ``make wheel-test``.

Not collected by pytest: it runs with nothing but knothole and what it depends on, in a folder with
an ``xgboost.json`` and a ``lightgbm.txt``, which it must refuse with a way out.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.ensemble import (
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

import knothole as kh
from knothole.errors import MissingExtra

EXTRAS = (
    "xgboost",
    "lightgbm",
    "catboost",
    "matplotlib",
    "jinja2",
    "click",
    "polars",
    "pyarrow",
)


def nothing_else_is_there():
    assert Path(sys.prefix) in Path(kh.__file__).parents, kh.__file__
    for name in (*EXTRAS, "benchmarks", "tests", "tools"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed here"
    assert kh.__version__


def the_core_answers():
    """The build for this processor, or the one for all: a first wrap and a first answer."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) + rng.normal(size=(300, 1))
    model = GradientBoostingRegressor(n_estimators=10).fit(X, X.sum(axis=1))
    robust = kh.wrap(model, X, X.sum(axis=1))
    answers = robust.predict(np.where(rng.random(X.shape) < 0.3, np.nan, X))
    assert np.isfinite(answers).all()
    # Complete rows are answered by the trees alone.
    np.testing.assert_allclose(robust.predict(X), model.predict(X))


def a_scikit_learn_model_is_wrapped_and_answers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    incomplete = X[:5].copy()
    incomplete[:, 1] = np.nan
    model = RandomForestRegressor(5, max_depth=4, random_state=0).fit(X, X.sum(axis=1))
    robust = kh.wrap(model, X, density=kh.Factorized())
    np.testing.assert_allclose(robust.predict(X), model.predict(X))
    prediction, spread = robust.predict(incomplete, return_std=True)
    assert np.isfinite(prediction).all() and (spread > 0).all()
    robust.save("model.knothole")
    np.testing.assert_array_equal(kh.load("model.knothole").predict(incomplete), prediction)
    labels = np.where(X[:, 0] > 0, "high", "low")
    classifier = RandomForestClassifier(5, max_depth=4, random_state=0).fit(X, labels)
    robust = kh.wrap(classifier, X, density=kh.Factorized())
    np.testing.assert_allclose(robust.predict_proba(incomplete).sum(axis=1), 1)
    return robust, X, labels


def what_is_absent_is_named(robust, X, labels):
    from knothole import report

    for file, extra in (("xgboost.json", "xgboost"), ("lightgbm.txt", "lightgbm")):
        refused(extra, kh.wrap, file, X)
    quick = report.Comparison(rates=(0.0, 0.5), repeats=1, methods=("knothole", "median"))
    found = report.evaluate(report.Case.of(robust, X, X[:50], labels[:50]), quick)
    refused("plot", report.RobustnessDisplay(found.robustness).plot)
    refused("report", report.render, found, "A title")
    command = Path(sys.executable).with_name("knothole")
    done = subprocess.run([command, "--help"], capture_output=True, text=True)
    assert done.returncode == 1 and "pip install 'knothole[cli]'" in done.stderr, done.stderr


def refused(extra, call, *arguments):
    try:
        call(*arguments)
    except MissingExtra as error:
        assert f"pip install 'knothole[{extra}]'" in str(error), error
    else:
        raise AssertionError(f"nothing was said of the extra {extra!r}")


if __name__ == "__main__":
    nothing_else_is_there()
    the_core_answers()
    what_is_absent_is_named(*a_scikit_learn_model_is_wrapped_and_answers())

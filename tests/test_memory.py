"""``memory=`` of the meta-estimators: no density is learned twice from the same table."""

import pickle
import time
import warnings
from collections import Counter

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, cross_val_score

import knothole as kh
from knothole.errors import InvalidInput

RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(300, 1)) + 0.5 * RNG.normal(size=(300, 3)), columns=list("abc"))
X["d"] = pd.Categorical(np.where(RNG.random(300) < 0.5, "low", "high"))
X = X.mask((RNG.random(X.shape) < 0.1) & (X.columns == "b"))
Y = X["a"] + 0.5 * X["b"].fillna(0.0) + (X["d"] == "low")
FOREST = RandomForestRegressor(5, max_depth=4, random_state=0)


def numbers(table):
    """What scikit-learn's trees take."""
    return table.assign(d=table["d"].cat.codes.astype(float))


@pytest.fixture
def fits(monkeypatch):
    """How often densities have learned from a table with some weights."""
    seen = Counter()

    def counting(fit):
        def counted(self, evidence, weight):
            seen[
                joblib.hash((type(self).__name__, self.get_params(), evidence.points, weight))
            ] += 1
            return fit(self, evidence, weight)

        return counted

    for kind in (kh.Factorized, kh.Mixture, kh.LatentTree, kh.GaussianMixture):
        monkeypatch.setattr(kind, "_fit", counting(kind._fit))
    return seen


GRID = {"estimator__max_depth": [1, 3]}


@pytest.mark.parametrize("density", ["auto", kh.Mixture(3, random_state=0)], ids=["auto", "given"])
def test_a_search_over_the_models_parameters_learns_each_density_once(fits, tmp_path, density):
    def search(memory):
        expected = kh.ExpectedRegressor(FOREST, density=density, memory=memory)
        return GridSearchCV(expected, GRID, cv=2).fit(numbers(X), Y)

    without = search(None)
    assert set(fits.values()) != {1}
    fits.clear()
    found = search(tmp_path)
    assert set(fits.values()) == {1} and fits
    for name in ("mean_test_score", "std_test_score"):
        assert_array_equal(found.cv_results_[name], without.cv_results_[name])
    fits.clear()
    again = search(joblib.Memory(str(tmp_path), verbose=0))  # the same folder, another process even
    assert not fits
    assert_array_equal(again.predict(numbers(X)), without.predict(numbers(X)))


@pytest.mark.parametrize(
    "options", [{"refit_leaves": True}, {"learn": "expected"}, {"learn": "auto"}], ids=str
)
def test_so_do_refitted_leaves_and_grown_trees(fits, tmp_path, options):
    density = kh.Mixture(3, random_state=0)
    for depth in (2, 3):
        forest = RandomForestRegressor(5, max_depth=depth, random_state=0)
        kh.ExpectedRegressor(forest, density=density, memory=tmp_path, **options).fit(numbers(X), Y)
    assert set(fits.values()) == {1}


def test_other_settings_weights_and_tables_are_learned_anew(fits, tmp_path):
    def fit(table=X, weight=None, **settings):
        density = kh.Mixture(**{"n_components": 3, "random_state": 0} | settings)
        expected = kh.ExpectedRegressor(FOREST, density=density, memory=tmp_path, correction=False)
        fits.clear()
        expected.fit(numbers(table), Y, sample_weight=weight)
        return len(fits), expected.density_

    assert fit()[0] == 1 and fit()[0] == 0
    assert fit(n_components=4)[0] == 1 and fit(random_state=1)[0] == 1
    assert fit(weight=np.linspace(1, 2, 300))[0] == 1
    assert fit(X.rename(columns={"a": "A"}))[0] == 1
    once, named = fit(X.rename(columns={"a": "A"}))
    assert once == 0 and named.columns_.names[0] == "A" and named.get_params()["n_components"] == 3
    assert fit(X.iloc[::-1])[0] == 1


def test_one_that_did_not_converge_says_so_again(tmp_path):
    for _ in range(2):
        expected = kh.ExpectedRegressor(
            FOREST, density=kh.Mixture(8, max_iter=1, random_state=0), memory=tmp_path
        )
        with pytest.warns(ConvergenceWarning, match="max_iter=1"):
            expected.fit(numbers(X), Y)


def test_what_is_shared_is_not_changed_by_a_model(tmp_path):
    labels = np.where(Y.median() < Y, "yes", "no")
    first, second = (
        kh.ExpectedClassifier(
            RandomForestClassifier(5, max_depth=depth, random_state=0),
            density=kh.Mixture(3, random_state=0), memory=tmp_path, refit_leaves=True,
        ).fit(numbers(X), labels)
        for depth in (2, 4)
    )  # fmt: skip
    alone = kh.ExpectedClassifier(
        RandomForestClassifier(5, max_depth=4, random_state=0),
        density=kh.Mixture(3, random_state=0), refit_leaves=True,
    ).fit(numbers(X), labels)  # fmt: skip
    assert first.density_ is not second.density_
    assert_array_equal(second.predict_proba(numbers(X)), alone.predict_proba(numbers(X)))
    assert_array_equal(
        pickle.loads(pickle.dumps(second)).predict(numbers(X)), alone.predict(numbers(X))
    )


@pytest.mark.parametrize("memory", [1 << 31, True, object()], ids=["int", "bool", "object"])
def test_what_is_no_memory_is_refused(memory):
    expected = kh.ExpectedRegressor(FOREST, density=kh.Factorized(), memory=memory)
    with pytest.raises(InvalidInput, match="memory must be None, the path of a folder, or a"):
        expected.fit(numbers(X), Y)


def test_cross_validation_costs_little_more_than_its_wraps():
    table, folds = numbers(X), 3
    expected = kh.ExpectedRegressor(FOREST)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FOREST.fit(table.iloc[:200], Y[:200])
        kh.wrap(model, table.iloc[:200], Y[:200])  # compiled
        start = time.process_time()
        for _ in range(folds):
            kh.wrap(model, table.iloc[:200], Y[:200])
        wraps = time.process_time() - start
        cross_val_score(expected, table, Y, cv=folds)
        start = time.process_time()
        cross_val_score(expected, table, Y, cv=folds)
    assert time.process_time() - start < 2 * wraps

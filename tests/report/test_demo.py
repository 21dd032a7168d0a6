"""The demo's data and model, with and without XGBoost."""

import sys

import numpy as np

from knothole.cli.demo import classifier, diagnosis


def test_rows_to_learn_from_are_not_those_held_out():
    train, test, _, y_test = diagnosis()
    assert (len(train), len(test)) == (341, 228)
    both = set(map(tuple, train.to_numpy())) & set(map(tuple, test.to_numpy()))
    assert not both
    assert np.array_equal(diagnosis()[-1], y_test)


def test_without_xgboost_scikit_learns_own_serves(monkeypatch):
    assert type(classifier()).__name__ == "XGBClassifier"
    monkeypatch.setitem(sys.modules, "xgboost", None)
    assert type(classifier()).__name__ == "HistGradientBoostingClassifier"

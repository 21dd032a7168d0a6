"""C4.5 weights and surrogate splits against slow twins, and on rows without a missing value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor
from xgboost import XGBClassifier, XGBRegressor

from benchmarks.suite.peers import walks
from benchmarks.suite.peers.base import Training
from knothole.report.methods import Task, outputs

ROWS = 300


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(ROWS, 3)), columns=["a", "b", "c"])
    frame["b"] += frame["a"]
    frame["hue"] = pd.Categorical(
        np.where(frame["a"] > 0.3, "red", rng.choice(["blue", "grey"], ROWS))
    )
    return frame


@pytest.fixture(scope="module")
def target(table) -> np.ndarray:
    return (2 * table["a"] + np.sin(3 * table["b"]) + (table["hue"] == "blue")).to_numpy()


def xgboost_training(table, target, task):
    if task is Task.REGRESSION:
        labels, kind = target, XGBRegressor
    else:
        n_classes = 2 if task is Task.BINARY else 3
        labels = np.searchsorted(np.quantile(target, np.arange(1, n_classes) / n_classes), target)
        kind = XGBClassifier

    def model():
        return kind(n_estimators=8, max_depth=3, enable_categorical=True, n_jobs=1)

    return Training(table, labels, task, model)


@pytest.mark.parametrize("task", Task)
@pytest.mark.parametrize("peer", [walks.FractionalWeights, walks.SurrogateSplits])
def test_rows_without_missing_values_are_the_models_own(table, target, task, peer):
    training = xgboost_training(table, target, task)
    fitted = peer().fit(training)
    own = outputs(training.fitted(table), table, task)
    np.testing.assert_allclose(fitted.predict(table), own, atol=1e-5)


def fractional_by_recursion(tree, x, node=0):
    """C4.5's answer from the training counts that scikit-learn keeps in its nodes."""
    left, right = tree.children_left[node], tree.children_right[node]
    if left < 0:
        return tree.value[node, 0, 0]
    value = x[tree.feature[node]]
    one, two = (fractional_by_recursion(tree, x, child) for child in (left, right))
    if np.isnan(value):
        counts = tree.n_node_samples
        return (counts[left] * one + counts[right] * two) / counts[node]
    return one if np.float32(value) <= tree.threshold[node] else two


def test_fractional_weights_are_training_counts(table, target):
    numbers = table[["a", "b", "c"]]
    training = Training(
        numbers, target, Task.REGRESSION, lambda: DecisionTreeRegressor(max_depth=5, random_state=0)
    )
    missing_mask = numbers.mask(np.random.default_rng(1).random(numbers.shape) < 0.5)
    found = walks.FractionalWeights().fit(training).predict(missing_mask)
    tree = training.fitted(numbers).tree_
    expected = [fractional_by_recursion(tree, x) for x in missing_mask.to_numpy()]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_missing_values_in_training_are_divided_by_those_that_are_known():
    """Five known rows, four of them left; a missing value is worth 4/5 and 1/5 anywhere."""
    x = pd.DataFrame({"x": [0.0, 0.0, 0.0, 0.0, 1.0, np.nan]})
    y = np.array([0.0, 0.0, 0.0, 0.0, 10.0, 10.0])
    training = Training(
        x, y, Task.REGRESSION,
        lambda: XGBRegressor(n_estimators=1, max_depth=1, learning_rate=1, reg_lambda=0, n_jobs=1,
                             min_child_weight=0),
    )  # fmt: skip
    fitted = walks.FractionalWeights().fit(training)
    low, high, missing = fitted.predict(pd.DataFrame({"x": [0.0, 1.0, np.nan]}))
    assert missing == pytest.approx(0.8 * low + 0.2 * high)


class Trained(Training):
    """Training of a model that has been trained, on other rows."""

    def fitted(self, table, target=None):
        return self.model()


def test_a_row_that_was_divided_counts_by_its_parts():
    """Two of the three known rows go left, so 2/3 of the fourth do, too; the rest goes on by b.

    That is a third of a row, beside a whole one on the other side: 3/4 to 1/4.
    """
    whole = pd.DataFrame({"a": [0.0, 0.0, 1.0, 1.0], "b": [0.0, 1.0, 0.0, 1.0]})
    y = np.array([0.0, 0.0, 5.0, 9.0])
    tree = DecisionTreeRegressor(max_leaf_nodes=3, random_state=0).fit(whole, y)
    incomplete = whole.assign(a=[0.0, 0.0, 1.0, np.nan])
    fitted = walks.FractionalWeights().fit(Trained(incomplete, y, Task.REGRESSION, lambda: tree))
    (missing,) = fitted.predict(pd.DataFrame({"a": [np.nan], "b": [np.nan]}))
    assert missing == pytest.approx(2 / 3 * 0.0 + 1 / 3 * (3 / 4 * 5.0 + 1 / 4 * 9.0))


# --- surrogates ----------------------------------------------------------------------------------


def test_a_copy_of_the_column_stands_in_for_it():
    rng = np.random.default_rng(2)
    x = rng.integers(0, 20, 400) + 0.0
    table = pd.DataFrame({"x": x, "noise": rng.normal(size=400), "mirrored": -x})
    training = Training(
        table, np.sin(x), Task.REGRESSION, lambda: XGBRegressor(n_estimators=5, n_jobs=1)
    )
    fitted = walks.SurrogateSplits().fit(training)
    used = fitted.ensemble_.feature
    assert set(used[used >= 0]) == {0}  # of two columns as good the model takes the first
    np.testing.assert_allclose(fitted.predict(table.assign(x=np.nan)), fitted.predict(table))
    blind = table.assign(x=np.nan, mirrored=np.nan)
    assert not np.allclose(fitted.predict(blind), fitted.predict(table), atol=0.1)


def best_by_enumeration(bins, left, categorical):
    """Rows that the best split of one column agrees on, over every cut or every set of bins."""
    known = bins >= 0
    best = -1
    n_bins = bins.max() + 1
    if categorical:
        options = [[bool(code >> b & 1) for b in range(n_bins)] for code in range(2**n_bins)]
    else:
        lows = [[b <= cut for b in range(n_bins)] for cut in range(n_bins)]
        options = lows + [[not low for low in cut] for cut in lows]
    for option in options:
        best = max(best, int((np.array(option)[bins[known]] == left[known]).sum()))
    return best


@pytest.mark.parametrize("seed", range(30))
def test_surrogates_are_the_splits_that_agree_best(seed):
    rng = np.random.default_rng(seed)
    bins = rng.integers(-1, 5, (25, 4))
    left = (bins[:, 1] + rng.integers(0, 3, 25)) > 2
    categorical = np.array([False, False, True, True])
    found = walks.find_surrogates(bins, left, 0, categorical, width=8)
    agreed = {}
    for column in (1, 2, 3):
        known = bins[:, column] >= 0
        majority = max(left[known].sum(), (~left[known]).sum())
        best = best_by_enumeration(bins[:, column], left, categorical[column])
        if best > majority:
            agreed[column] = best
    assert set(found.columns.tolist()) == set(agreed)
    assert [agreed[c] for c in found.columns] == sorted(agreed.values(), reverse=True)
    for column, goes in zip(found.columns, found.left, strict=True):
        known = bins[:, column] >= 0
        assert (goes[bins[known, column]] == left[known]).sum() == agreed[column]


def test_without_any_surrogate_the_majority_decides():
    surrogates = walks.find_surrogates(
        np.full((5, 2), -1), np.array([True, True, False, True, False]), 0, np.zeros(2, bool), 4
    )
    assert len(surrogates.columns) == 0
    assert surrogates.decide(np.full((3, 2), -1)).tolist() == [True, True, True]

"""Rows to learn from know nothing of others, and rows to judge by have missing values."""

import numpy as np
import pytest

from knothole.columns.columns import Columns
from knothole.densities.em import WeightedRows
from knothole.densities.held_out import RATE


def rows_of(X, weight=None):
    columns = Columns.infer(X)
    weight = np.ones(len(X)) if weight is None else weight
    evidence = columns.evidence(columns.matrix(X))
    return WeightedRows(columns.variables, evidence, weight, np.arange(len(X)))


def test_marginals_are_of_their_own_rows_and_weights():
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(0, 1, (100, 2)), rng.normal(50, 9, (100, 2))])
    weight = rng.uniform(0.5, 2, 200)
    families = {"x0": "gaussian", "x1": "gaussian"}
    found = rows_of(X, weight)[:100].marginals(families)
    alone = rows_of(X[:100], weight[:100]).marginals(families)
    for distribution, expected, column in zip(found, alone, X[:100].T, strict=True):
        assert distribution.location == pytest.approx(expected.location)
        assert distribution.location == pytest.approx(np.average(column, weights=weight[:100]))
        assert distribution.scale == pytest.approx(expected.scale)


def test_rows_to_judge_by_are_given_missing_values_where_they_have_hardly_any():
    X = np.random.default_rng(0).normal(size=(1000, 3))
    weight = np.linspace(0.5, 2, 1000)
    held = rows_of(X, weight)[600:].with_missing(0)
    missing = np.isnan(held.points())
    np.testing.assert_allclose(missing.mean(axis=0), RATE, atol=0.07)
    assert np.corrcoef(missing.T)[0, 1] < 0.2  # each variable by itself
    np.testing.assert_array_equal(held.points()[~missing], X[600:][~missing])
    np.testing.assert_array_equal(held.own_weight(), weight[600:])
    X[np.random.default_rng(1).random(X.shape) < 0.2] = np.nan
    own = rows_of(X)[600:]
    assert own.with_missing(0) is own

"""The table of exact and drawn answers in docs/method.md, against errors that are reported."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb

import knothole as kh

PAGE = Path(__file__).parents[2] / "docs" / "method.md"


def documented():
    """Cells (under products, under Gaussian mixtures) by the first words of their row."""
    lines = PAGE.read_text().split("| answer | under mixtures, latent trees, circuits |")[1]
    rows = [line.strip("|\n").split(" | ") for line in lines.splitlines()[2:7]]
    return {
        answer.strip(): (exactly.strip(), gaussian.strip()) for answer, exactly, gaussian in rows
    }


@pytest.fixture(scope="module")
def tables():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(800, 3)), columns=list("abc"))
    X["d"] = pd.Categorical(np.where(X["a"] + rng.normal(size=800) > 0, "x", "y"))
    X["e"] = pd.Categorical(rng.choice(["u", "v", "w"], 800))
    score = X["a"] * X["b"] + X["c"] * (X["d"] == "x") + (X["e"] == "u")
    return X, score


def wrapped(tables, name, answer, trees):
    X, score = tables
    kind, y = (xgb.XGBRegressor, score) if answer == "regressor" else (xgb.XGBClassifier, score > 0)
    model = kind(n_estimators=trees, max_depth=3, n_jobs=1, enable_categorical=True).fit(X, y)
    density = {
        "Mixture": kh.Mixture(3, n_init=1, random_state=0),
        "LatentTree": kh.LatentTree(3, random_state=0),
        "GaussianMixture": kh.GaussianMixture(2, random_state=0),
    }[name]
    return kh.wrap(model, X, density=density, correction=False)


def lacking(tables, columns):
    rows = tables[0].head(12).copy()
    for column in columns:
        rows[column] = np.nan if column in "abc" else pd.Categorical([None] * 12)
    return rows


def error(robust, rows, what):
    """The largest error that is reported."""
    if what == "probability":
        return np.max(robust.predict_proba(rows, return_error=True)[1])
    if what == "std":
        return np.max(robust.predict(rows, return_std=True, return_error=True)[3])
    if what == "quantile":
        return np.max(robust.predict(rows, quantiles=[0.5], return_error=True)[1])
    return np.max(robust.predict(rows, return_error=True)[1])


@pytest.mark.parametrize("name", ["Mixture", "LatentTree", "GaussianMixture"])
def test_the_table_of_what_is_exact(tables, name):
    cells = {answer: both[name == "GaussianMixture"] for answer, both in documented().items()}
    expected, chance, std, quantile, leaves = cells.values()
    several, number, category = (lacking(tables, c) for c in (["a", "b", "d"], ["a"], ["d", "e"]))

    few = wrapped(tables, name, "regressor", 16)
    assert (error(few, several, "mean") == 0) == expected.startswith("exact")
    for rows in (number, category):
        assert error(few, rows, "mean") == 0
    assert name != "GaussianMixture" or "a single number, or categories alone" in expected
    assert leaves.startswith("exact" if few.expectation_.exact else "Monte Carlo")

    assert (error(few, several, "std") == 0) == std.startswith("exact up to 16 trees")
    more = wrapped(tables, name, "regressor", 17)
    assert error(more, several, "std") > 0
    assert quantile == "Monte Carlo" and error(few, several, "quantile") > 0

    boosted = wrapped(tables, name, "classifier", 20)
    assert chance.startswith("Monte Carlo") and error(boosted, several, "probability") > 0
    alone = name == "Mixture"
    assert (error(boosted, number, "probability") == 0) == alone
    assert ("exact under mixtures where a single number is missing" in chance) or not alone
    tree = wrapped(tables, name, "classifier", 1)
    assert (error(tree, several, "probability") == 0) == expected.startswith("exact")

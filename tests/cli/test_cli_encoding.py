"""On its way from a file to an answer, a row is encoded once."""

import numpy as np
import pytest
import xgboost
from tests.cli.running import FEATURES, call

import knothole as kh
from knothole.cli.app import FINE
from knothole.columns.columns import Columns


@pytest.fixture
def encoded(monkeypatch):
    """Rows of all tables that were encoded."""
    rows, matrix = [], Columns.matrix

    def counting(self, table, *rest):
        made = matrix(self, table, *rest)
        rows.append(len(made))
        return made

    monkeypatch.setattr(Columns, "matrix", counting)
    return rows


@pytest.mark.parametrize(
    "asked", [[], ["--std"], ["--quantile", 0.1], ["--std", "--quantile", 0.1, "--quantile", 0.9]]
)
def test_predict(asked, wrapped, folder, tmp_path, encoded):
    arguments = [
        "predict",
        wrapped,
        folder / "incomplete.csv",
        "-o",
        tmp_path / "out.csv",
        "--chunk",
        7,
    ]
    assert call(*arguments, *asked) == FINE
    assert sum(encoded) == 100


def test_predict_of_a_classifier(table, folder, tmp_path, encoded):
    numbers = table[["weight", "age"]]
    model = xgboost.XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1)
    robust = kh.wrap(model.fit(numbers, table["price"] > 1), numbers, density=kh.Factorized())
    robust.save(tmp_path / "model.knothole")
    encoded.clear()
    arguments = [
        "predict",
        tmp_path / "model.knothole",
        folder / "incomplete.csv",
        "--proba",
        "--std",
    ]
    assert call(*arguments, "-o", tmp_path / "out.csv") == FINE
    assert sum(encoded) == 100


def test_wrap(folder, tmp_path, encoded):
    arguments = ["wrap", folder / "model.json", folder / "train.csv", "--density", "independent"]
    assert call(*arguments, "--target", "price", "-o", tmp_path / "model.knothole") == FINE
    assert sum(encoded) == 200


def test_refit(wrapped, folder, tmp_path, encoded):
    """However many densities are learned: with y beside X, to compare its forms, and so on."""
    out = ["-o", tmp_path / "refitted.knothole"]
    assert call("refit", wrapped, folder / "incomplete.csv", "--target", "price", *out) == FINE
    assert sum(encoded) == 100
    # A library's own model is wrapped on the way, by a description that comes from these rows.
    encoded.clear()
    arguments = ["refit", folder / "model.json", folder / "incomplete.csv", "--target", "price"]
    assert call(*arguments, "--density", "independent", *out) == FINE
    assert sum(encoded) == 200


def test_answers_to_encoded_rows_are_those_to_the_table(wrapped, incomplete):
    robust = kh.load(wrapped)
    rows = incomplete[FEATURES]
    known = robust.encode(rows)
    for options in ({"return_std": True}, {"quantiles": [0.2]}, {"return_error": True}):
        expected = robust.predict(rows, **options)
        np.testing.assert_array_equal(robust.predict(known, **options), expected)
    expected = robust.margin(rows, return_error=True)
    np.testing.assert_array_equal(robust.margin(known, return_error=True), expected)

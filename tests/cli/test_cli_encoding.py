"""On its way from a file to an answer, a row is read once and encoded once."""

import numpy as np
import pytest
import xgboost
from tests.cli.running import FEATURES, call

import knothole as kh
from knothole.cli.app import FINE
from knothole.columns.columns import Columns
from knothole.columns.read import RawTable


@pytest.fixture
def counted(monkeypatch):
    """Rows of all tables that were read, and of all that were encoded."""
    rows = {"read": 0, "encoded": 0}
    made, matrix = RawTable.__init__, Columns.matrix
    seen = []

    def counting_reader(self, columns, *rest, **options):
        """Columns that have been read may be put into another order: that reads nothing."""
        if not any(columns[0].values is values for values in seen):
            rows["read"] += len(columns[0].values)
        seen.extend(column.values for column in columns)
        made(self, columns, *rest, **options)

    def counting_encoder(self, table, *rest):
        found = matrix(self, table, *rest)
        rows["encoded"] += len(found)
        return found

    monkeypatch.setattr(RawTable, "__init__", counting_reader)
    monkeypatch.setattr(Columns, "matrix", counting_encoder)
    return rows


@pytest.mark.parametrize(
    "asked", [[], ["--std"], ["--quantile", 0.1], ["--std", "--quantile", 0.1, "--quantile", 0.9]]
)
def test_predict(asked, wrapped, folder, tmp_path, counted):
    arguments = ["predict", wrapped, folder / "holes.csv", "-o", tmp_path / "out.csv", "--chunk", 7]
    assert call(*arguments, *asked) == FINE
    assert counted == {"read": 100, "encoded": 100}


def test_predict_of_a_classifier(table, folder, tmp_path, counted):
    numbers = table[["weight", "age"]]
    model = xgboost.XGBClassifier(n_estimators=3, max_depth=2, n_jobs=1)
    robust = kh.wrap(model.fit(numbers, table["price"] > 1), numbers, density=kh.Factorized())
    robust.save(tmp_path / "model.knothole")
    counted.update(read=0, encoded=0)
    arguments = ["predict", tmp_path / "model.knothole", folder / "holes.csv", "--proba", "--std"]
    assert call(*arguments, "-o", tmp_path / "out.csv") == FINE
    # Plain numbers are encoded in one go, without a table of columns between.
    assert counted == {"read": 0, "encoded": 100}


def test_wrap(folder, tmp_path, counted):
    arguments = ["wrap", folder / "model.json", folder / "train.csv", "--density", "factorized"]
    assert call(*arguments, "--target", "price", "-o", tmp_path / "model.knothole") == FINE
    assert counted == {"read": 200, "encoded": 200}


def test_tune(wrapped, folder, tmp_path, counted):
    """However many densities are learned: with y beside X, to compare its forms, and so on."""
    out = ["-o", tmp_path / "tuned.knothole"]
    assert call("tune", wrapped, folder / "holes.csv", "--target", "price", *out) == FINE
    assert counted == {"read": 100, "encoded": 100}
    # A library's own model is wrapped on the way, by a description that comes from these rows.
    counted.update(read=0, encoded=0)
    arguments = ["tune", folder / "model.json", folder / "holes.csv", "--target", "price"]
    assert call(*arguments, "--density", "factorized", *out) == FINE
    assert counted == {"read": 100, "encoded": 200}


def test_answers_to_encoded_rows_are_those_to_the_table(wrapped, holes):
    robust = kh.load(wrapped)
    rows = holes[FEATURES]
    known = robust.encode(rows)
    for options in ({"return_std": True}, {"quantiles": [0.2]}, {"return_error": True}):
        expected = robust.predict(rows, **options)
        np.testing.assert_array_equal(robust.predict(known, **options), expected)
    expected = robust.margin(rows, return_error=True)
    np.testing.assert_array_equal(robust.margin(known, return_error=True), expected)

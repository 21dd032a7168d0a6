"""Paths in the place of tables: what is learned and answered is that of the table in memory."""

import logging

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal, assert_series_equal
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tests.cli.running import call

import knothole as kh
from knothole.cli.app import FINE
from knothole.errors import ColumnMismatch, DamagedFile, InvalidInput
from knothole.out_of_core import files, partitions
from knothole.out_of_core.partitions import Partitions

NAMES = ["size", "rooms", "city"]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A sample of 200 rows, and 90 rows at a time: a table of 600 is a large one."""
    monkeypatch.setattr(partitions, "ROWS", 200)
    monkeypatch.setattr(files, "CHUNK", 90)


def table(n=600):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "id": np.arange(n),
            "size": rng.normal(size=n),
            "rooms": rng.integers(1, 6, size=n).astype(float),
            "city": rng.integers(3, size=n).astype(float),
            "weight": rng.integers(4, size=n).astype(float),
        }
    )
    frame["rooms"] += frame["city"]
    frame["price"] = frame["size"] + frame["rooms"]
    frame[NAMES] = frame[NAMES].mask(rng.random((n, 3)) < 0.2)
    return frame


@pytest.fixture(scope="module")
def frame():
    return table()


@pytest.fixture(scope="module")
def place(tmp_path_factory, frame):
    """The same rows as one file of each kind, and in several."""
    folder = tmp_path_factory.mktemp("rows")
    frame.to_parquet(folder / "rows.parquet")
    frame.to_csv(folder / "rows.csv", index=False)
    for kind in ("parquet", "csv"):
        (folder / kind).mkdir()
    for number in range(12):  # the tenth must not come before the second
        some = frame[50 * number : 50 * number + 50].reset_index(drop=True)
        some.to_parquet(folder / "parquet" / f"part.{number}.parquet")
        some.to_csv(folder / "csv" / f"part{number}.csv", index=False)
    (folder / "parquet" / "_SUCCESS").touch()
    return folder


PLACES = ["rows.parquet", "rows.csv", "parquet", "csv/*.csv"]


@pytest.fixture(scope="module")
def robust(frame):
    model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(frame[NAMES], frame["price"])
    made = kh.wrap(model, frame[NAMES], density=kh.Mixture(3, random_state=0), nan_policy="lost")
    return made.conformalize(frame[NAMES], frame["price"])


@pytest.mark.parametrize("where", PLACES)
def test_rows_of_a_path_are_answered_as_in_memory(place, frame, robust, where):
    path = place / where
    assert_series_equal(robust.predict(path), robust.predict(frame))
    assert_frame_equal(robust.predict_interval(str(path)), robust.predict_interval(frame))
    own, std = robust.predict(path, return_std=True)
    assert_series_equal(std, robust.predict(frame, return_std=True)[1])
    assert len(own) == 600


def test_every_question_is_answered_for_a_path(place, frame, robust):
    path, some = place / "few.parquet", frame.head(200)
    some.to_parquet(path)
    assert_series_equal(robust.margin(path), robust.margin(some))
    assert_frame_equal(robust.impute(path), robust.impute(some))
    found, expected = robust.explain(path), robust.explain(some)
    np.testing.assert_array_equal(found.values, expected.values)
    assert_frame_equal(found.data, expected.data)
    gains, wanted = robust.acquire(path), robust.acquire(some)
    assert_frame_equal(gains.gain, wanted.gain)
    labels = frame["price"] > 3
    tree = DecisionTreeClassifier(max_depth=3, random_state=0).fit(frame[NAMES], labels)
    classifier = kh.wrap(tree, frame[NAMES], density=kh.Mixture(2, random_state=0))
    assert_frame_equal(classifier.predict_proba(path), classifier.predict_proba(some))
    assert_series_equal(classifier.predict(path), classifier.predict(some))


@pytest.mark.parametrize("where", PLACES)
def test_what_is_learned_from_a_path_is_that_of_dask(place, frame, where, caplog):
    density = kh.Mixture(3, strength=1.0, random_state=0)
    model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(frame[NAMES], frame["price"])
    with caplog.at_level(logging.INFO, "knothole"):
        found = kh.wrap(model, place / where, "price", density, sample_weight="weight")
    assert "X has 600 rows: 200 of them, drawn evenly, are what everything is chosen by" in (
        caplog.text
    )
    lazy = dd.from_pandas(frame, npartitions=5)
    expected = kh.wrap(model, lazy[NAMES], lazy["price"], density, sample_weight=lazy["weight"])
    assert found.columns_ == expected.columns_
    np.testing.assert_allclose(found.density_.weights_, expected.density_.weights_, rtol=1e-8)
    np.testing.assert_allclose(found.predict(frame), expected.predict(frame), rtol=1e-8)


def test_a_density_is_fitted_to_a_path(place, frame):
    found = kh.Mixture(3, strength=1.0, random_state=0).fit(place / "csv")
    parts = Partitions.of(lambda: iter([(frame, None, None)]))
    expected = kh.Mixture(3, strength=1.0, random_state=0).fit(parts)
    assert found.columns_ == expected.columns_
    np.testing.assert_allclose(found.weights_, expected.weights_, rtol=1e-8)


def test_leaves_are_refitted_on_a_path_as_on_dask(place, frame, robust):
    plain = {"condition_on_target": False, "objective": "expected", "ridge": 0.0}
    found = robust.refit_leaves(place / "parquet", "price", sample_weight="weight", **plain)
    expected = robust.refit_leaves(
        frame[NAMES], frame["price"], sample_weight=frame["weight"], **plain
    )
    np.testing.assert_allclose(found.ensemble_.value, expected.ensemble_.value, rtol=1e-8)
    assert not np.allclose(found.ensemble_.value, robust.ensemble_.value)


def test_no_more_than_some_rows_are_in_memory_at_once(place, robust, monkeypatch):
    seen = []
    ask = type(robust).encode
    monkeypatch.setattr(
        type(robust), "encode", lambda *a, **o: seen.append(len(a[1])) or ask(*a, **o)
    )
    robust.predict(place / "rows.parquet")
    assert max(seen) == 90 and sum(seen) == 600


def test_mistakes_in_paths_are_told(place, robust, tmp_path, frame):
    with pytest.raises(FileNotFoundError):
        robust.predict(tmp_path / "absent.parquet")
    with pytest.raises(InvalidInput, match=r"no tables are there"):
        robust.predict(tmp_path)
    with pytest.raises(InvalidInput, match=r"no tables are there"):
        robust.predict(str(tmp_path / "*.csv"))
    with pytest.raises(ColumnMismatch, match=r"has no column 'prise' \(y\); it has 'id'"):
        robust.refit_leaves(place / "rows.csv", "prise")
    with pytest.raises(InvalidInput, match=r"y must be the name of a column, as X is a path"):
        robust.refit_leaves(place / "rows.csv", frame["price"])
    with pytest.raises(InvalidInput, match=r"lost must be a Dask collection"):
        robust.predict(place / "rows.csv", frame[NAMES].isna())
    frame.drop(columns="city").to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(ColumnMismatch, match=r"'city' missing"):
        robust.predict(tmp_path / "less.csv")
    frame.drop(columns="id").to_csv(tmp_path / "more.csv", index=False)
    with pytest.raises(InvalidInput, match=r"all files must have the same columns; more.csv has"):
        robust.predict(tmp_path)
    (tmp_path / "bad.parquet").write_text("no table")
    with pytest.raises(DamagedFile, match=r"bad.parquet"):
        robust.predict(tmp_path / "bad.parquet")
    frame.head(0).to_csv(tmp_path / "none.csv", index=False)
    with pytest.raises(InvalidInput, match=r"none.csv: has no rows"):
        robust.predict(tmp_path / "none.csv")


def test_a_column_that_is_numbers_here_and_text_there_is_refused(tmp_path):
    """Rows are read 90 at a time; 1 and "1" would be two categories. Missing values say nothing."""
    path = tmp_path / "codes.csv"
    codes = 90 * [""] + 90 * ["1"] + 90 * [""] + 90 * ["2"]
    pd.DataFrame({"a": np.arange(360.0), "code": codes}).to_csv(path, index=False)
    fitted = kh.Factorized().fit(path)
    assert [column.name for column in fitted.columns_] == ["a", "code"]
    codes[-1] = "red"
    pd.DataFrame({"a": np.arange(360.0), "code": codes}).to_csv(path, index=False)
    with pytest.raises(
        InvalidInput, match=r"'code' holds numbers at first, and text among rows 271"
    ):
        kh.Factorized().fit(path)


def test_a_bad_value_names_the_part_and_the_column(tmp_path, frame, robust):
    bad = frame.copy()
    bad.loc[400, "rooms"] = np.inf
    bad.to_parquet(tmp_path / "bad.parquet")
    told = r"bad.parquet: row 401, column 'rooms': must be a number; got inf"
    with pytest.raises(InvalidInput, match=told):
        robust.predict(tmp_path / "bad.parquet")
    with pytest.raises(InvalidInput, match=told):
        robust.refit_leaves(tmp_path / "bad.parquet", "price")
    model = DecisionTreeRegressor(max_depth=2).fit(frame[NAMES], frame["price"])
    with pytest.raises(InvalidInput, match=told):
        kh.wrap(model, tmp_path / "bad.parquet", "price", kh.Mixture(2))
    bad = frame.assign(weight=-1.0)
    bad.to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(InvalidInput, match=r"partition 0: sample_weight must hold finite"):
        kh.Mixture(2).fit(tmp_path / "bad.parquet", sample_weight="weight")
    frame.assign(weight=0.0).to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(InvalidInput, match=r"sample_weight must not be all zero"):
        kh.Mixture(2).fit(tmp_path / "bad.parquet", sample_weight="weight")


def test_the_command_line_refits_on_all_rows(place, frame, robust, tmp_path, monkeypatch):
    monkeypatch.setattr("knothole.cli.options.CHUNK", 100)
    robust.save(tmp_path / "model.knothole")
    given = ["refit", tmp_path / "model.knothole", place / "parquet", "--target", "price"]
    given += ["--ignore-target", "--objective", "expected", "--ridge", 0]
    assert call(*given, "--all", "-o", tmp_path / "refitted.knothole") == FINE
    found = kh.load(tmp_path / "refitted.knothole")
    plain = {"condition_on_target": False, "objective": "expected", "ridge": 0.0}
    expected = robust.refit_leaves(frame[NAMES], frame["price"], **plain)
    np.testing.assert_allclose(found.ensemble_.value, expected.ensemble_.value, rtol=1e-8)

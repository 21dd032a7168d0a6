"""``knothole explain`` and ``knothole acquire``: what the library answers, row by row of a file."""

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier
from tests.cli.running import FEATURES, call, refused

import knothole as kh
from knothole.cli.app import FINE

ALL = ["mean size", "weight", "age", "city"]


@pytest.fixture(scope="module")
def classifier(table, tmp_path_factory):
    """Of three classes, over two numeric columns, and a file of rows with missing values."""
    place = tmp_path_factory.mktemp("classifier")
    X = table[["weight", "age"]]
    y = np.array(["low", "mid", "top"])[np.digitize(table["price"], [0, 3])]
    model = RandomForestClassifier(5, max_depth=3, random_state=0).fit(X, y)
    kh.wrap(model, X, density=kh.Factorized()).save(place / "model.knothole")
    kh.missingness.mcar(X[:20], 0.4, 0).to_csv(place / "rows.csv", index=False)
    return place


def read(place):
    return pd.read_csv(place) if place.suffix == ".csv" else pd.read_parquet(place)


def test_explanations_of_a_file_are_those_of_the_library(wrapped, folder, incomplete, tmp_path):
    out = tmp_path / "why.csv"
    arguments = [
        "explain",
        wrapped,
        folder / "incomplete.csv",
        "-o",
        out,
        "--errors",
        "--keep",
        "id",
    ]
    assert call(*arguments) == FINE
    found = read(out)
    robust = kh.load(wrapped)
    expected = robust.explain(incomplete[FEATURES])
    values, errors = ([f"{what}_{name}" for name in ALL] for what in ("value", "error"))
    assert found.columns.tolist() == ["id", "base", *values, *errors]
    np.testing.assert_allclose(found[values], expected.values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[errors], expected.errors, rtol=1e-12, atol=1e-12)
    total = found[["base", *values]].sum(axis=1)
    np.testing.assert_allclose(total, robust.predict(incomplete[FEATURES]), rtol=1e-9)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_chunks_and_formats_do_not_change_answers(wrapped, folder, tmp_path, kind):
    for command in (["explain"], ["acquire", "--budget", 2]):
        whole, parts = tmp_path / f"whole.{kind}", tmp_path / f"parts.{kind}"
        data = [wrapped, folder / f"incomplete.{kind}"]
        assert call(command[0], *data, *command[1:], "-o", whole) == FINE
        assert call(command[0], *data, *command[1:], "-o", parts, "--chunk", 30) == FINE
        pd.testing.assert_frame_equal(read(whole), read(parts), check_exact=True)
        assert len(read(parts)) == 100


def test_gains_of_a_file_are_those_of_the_library(wrapped, folder, incomplete, tmp_path, capsys):
    out = tmp_path / "next.parquet"
    arguments = [
        "acquire",
        wrapped,
        folder / "incomplete.parquet",
        "--cost",
        "weight=2.5",
        "--budget",
    ]
    arguments += [3, "--group", "both=age,city", "--errors"]
    assert call(*arguments, "-o", out) == FINE
    assert "wrote 100 rows of gains" in capsys.readouterr().err
    found = read(out)
    expected = kh.load(wrapped).acquire(
        incomplete[FEATURES], {"weight": 2.5}, {"both": ["age", "city"]}, budget=3
    )
    assert found.columns.tolist()[:3] == ["best", "plan", "gain_mean size"]
    pd.testing.assert_frame_equal(
        found.filter(like="gain_").set_axis(expected.gain.columns, axis=1),
        expected.gain.reset_index(drop=True),
    )
    assert found.filter(like="error_").shape == expected.error.shape
    assert found["best"].fillna("").tolist() == [name or "" for name in expected.best]
    assert found["plan"].tolist() == [", ".join(plan) for plan in expected.plan]
    assert (found["best"] == "both").any() and found["plan"].str.contains(", ").any()


def test_a_classifier_of_several_classes(classifier, capsys):
    model, rows = classifier / "model.knothole", classifier / "rows.csv"
    assert call("explain", model, rows) == FINE
    (classifier / "why.csv").write_text(capsys.readouterr().out)
    found = read(classifier / "why.csv")
    proba = kh.load(model).predict_proba(pd.read_csv(rows))
    for label in ("low", "mid", "top"):
        parts = [f"base_{label}", f"value_weight_{label}", f"value_age_{label}"]
        np.testing.assert_allclose(found[parts].sum(axis=1), proba[label], atol=1e-9)
    assert call("acquire", model, rows, "--criterion", "entropy", "--stop", 0.9) == FINE
    (classifier / "next.csv").write_text(capsys.readouterr().out)
    found = read(classifier / "next.csv")
    assert found.columns.tolist() == ["best", "change", "gain_weight", "gain_age"]
    sure = found["change"] <= 0.1
    assert sure.any() and found["best"][sure].isna().all() and found["best"].notna().any()


def test_what_is_asked_wrongly_is_refused(wrapped, folder, tmp_path, capsys):
    data = [wrapped, folder / "incomplete.csv"]
    assert "--cost: must be VARIABLE=COST" in refused(capsys, "acquire", *data, "--cost", "age")
    assert "cost names 'name'" in refused(capsys, "acquire", *data, "--cost", "name=1")
    assert "criterion must be" in refused(capsys, "acquire", *data, "--criterion", "brier")
    assert "stop must be" in refused(capsys, "acquire", *data, "--stop", 0.9)
    assert "--group: must be NAME=COLUMN" in refused(capsys, "explain", *data, "--group", "age")
    assert "names column 'size'" in refused(capsys, "explain", *data, "--group", "a=size,age")
    assert "written as .csv" in refused(capsys, "explain", *data, "-o", tmp_path / "why.xlsx")
    assert "no column 'name' (--keep)" in refused(capsys, "explain", *data, "--keep", "name")

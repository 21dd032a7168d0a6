"""The commands, end to end, on every library's own model file."""

import json
import re
import sys
import warnings
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from tests.cli.running import FEATURES, call, in_subprocess, skip_without_levels

import knothole as kh
from knothole.cli.app import FINE, WRONG_INPUT
from knothole.trees.read import read


def save_xgboost(X, y, folder):
    skip_without_levels()
    model = xgboost.XGBRegressor(n_estimators=4, max_depth=3, enable_categorical=True, n_jobs=1)
    model.fit(X, y).save_model(folder / "model.ubj")
    return "model.ubj", "refitted.json", model.predict


def save_lightgbm(X, y, folder):
    lightgbm = pytest.importorskip("lightgbm")
    model = lightgbm.LGBMRegressor(n_estimators=4, num_leaves=7, verbose=-1, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that a space in a name becomes an underscore
        model.fit(X, y)
    model.booster_.save_model(folder / "model.txt")
    return "model.txt", "refitted.txt", model.predict


def save_catboost(X, y, folder):
    catboost = pytest.importorskip("catboost")
    model = catboost.CatBoostRegressor(
        iterations=4, depth=3, verbose=0, cat_features=["city"], allow_writing_files=False
    )
    model.fit(X.astype({"city": str}), y).save_model(str(folder / "model.cbm"))
    return "model.cbm", "refitted.cbm", lambda X: model.predict(X.astype({"city": str}))


def save_sklearn(X, y, folder):
    model = RandomForestRegressor(3, max_depth=3, random_state=0).fit(X.drop(columns="city"), y)
    joblib.dump(model, folder / "model.joblib")
    return "model.joblib", "refitted.joblib", lambda X: model.predict(X.drop(columns="city"))


@pytest.mark.parametrize("save", [save_xgboost, save_lightgbm, save_catboost, save_sklearn])
def test_wrap_and_predict_in_processes_of_their_own(save, table, folder, tmp_path):
    X, y = table[FEATURES], table["price"]
    name, refitted, native = save(X[:200], y[:200], tmp_path)
    trust = ["--allow-pickle"] if name.endswith(".joblib") else []
    done = in_subprocess(
        "wrap", name, folder / "train.csv", "--density", "independent", *trust, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (FINE, ""), done.stderr
    assert "wrote model.knothole" in done.stderr

    complete = tmp_path / "complete.csv"
    table[200:].to_csv(complete, index=False)
    done = in_subprocess("predict", "model.knothole", complete, "--keep", "id", cwd=tmp_path)
    assert done.returncode == FINE, done.stderr
    (tmp_path / "found.csv").write_text(done.stdout)
    found = pd.read_csv(tmp_path / "found.csv", dtype={"id": str})
    assert found["id"].tolist() == table["id"][200:].tolist()
    np.testing.assert_allclose(found["prediction"], native(X[200:]), rtol=1e-5, atol=1e-6)

    new = tmp_path / refitted
    arguments = ["refit", tmp_path / name, folder / "incomplete.csv", "--target", "price", *trust]
    assert call(*arguments, "--density", "independent", "--native", new) == FINE
    assert new.exists() and (tmp_path / "model.refitted.knothole").exists()
    native_leaves = read(joblib.load(new) if trust else new).value
    leaves = kh.load(tmp_path / "model.refitted.knothole").ensemble_.value
    np.testing.assert_allclose(native_leaves, leaves, rtol=1e-6, atol=1e-30)
    before = read(joblib.load(tmp_path / name) if trust else tmp_path / name).value
    assert not np.allclose(before, leaves)


def test_a_pipeline_is_wrapped_whole(table, tmp_path):
    table = table.assign(city=table["city"].astype(object).replace("None", "Wien"))
    X, y = table[FEATURES][:200], table["price"][:200]
    dummies = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["city"]), remainder="passthrough"
    )
    model = make_pipeline(dummies, RandomForestRegressor(3, max_depth=3, random_state=0))
    joblib.dump(model.fit(X, y), tmp_path / "model.joblib")
    train, complete, out = (tmp_path / name for name in ("train.csv", "complete.csv", "out.csv"))
    table[:200].to_csv(train, index=False)
    table[200:].to_csv(complete, index=False)
    given = tmp_path / "model.joblib", train, "--allow-pickle", "--density", "independent"
    assert call("wrap", *given) == FINE
    assert call("predict", tmp_path / "model.knothole", complete, "-o", out) == FINE
    rows = table[FEATURES][200:]
    own = model.predict(rows)
    np.testing.assert_allclose(pd.read_csv(out)["prediction"], own, rtol=1e-5)

    new = tmp_path / "refitted.joblib"
    kh.missingness.mcar(table[FEATURES][:200], 0.3, 1).assign(price=y).to_csv(train, index=False)
    assert call("refit", *given, "--target", "price", "--native", new) == FINE
    refitted = kh.load(tmp_path / "model.refitted.knothole")
    np.testing.assert_allclose(joblib.load(new).predict(rows), refitted.predict(rows), rtol=1e-5)
    assert not np.allclose(refitted.predict(rows), own)


def test_predictions_of_rows_with_missing_values_are_those_of_the_library(
    wrapped, folder, incomplete, tmp_path
):
    robust = kh.load(wrapped)
    mean, spread = robust.predict(incomplete[FEATURES], return_std=True)
    low = robust.predict(incomplete[FEATURES], quantiles=[0.1])
    out = tmp_path / "out.csv"
    arguments = [
        "predict",
        wrapped,
        folder / "incomplete.csv",
        "--std",
        "--quantile",
        0.1,
        "-o",
        out,
    ]
    assert call(*arguments) == FINE
    found = pd.read_csv(out)
    assert found.columns.tolist() == ["prediction", "std", "quantile_0.1"]
    np.testing.assert_allclose(found["prediction"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["std"], spread, rtol=1e-9)
    np.testing.assert_allclose(found["quantile_0.1"], low[0.1], rtol=1e-9)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_chunks_and_formats_do_not_change_predictions(wrapped, folder, tmp_path, kind):
    whole, parts = tmp_path / f"whole.{kind}", tmp_path / f"parts.{kind}"
    data = folder / f"incomplete.{kind}"
    assert call("predict", wrapped, folder / "incomplete.csv", "-o", whole, "--keep", "age") == FINE
    assert call("predict", wrapped, data, "-o", parts, "--keep", "age", "--chunk", 7) == FINE
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    pd.testing.assert_frame_equal(read(whole), read(parts))
    assert len(read(parts)) == 100


def test_a_classifier_gives_labels_and_probabilities(table, folder, tmp_path, capsys):
    numbers, high = table[["weight", "age"]], (table["price"] > 1).astype(int)
    model = xgboost.XGBClassifier(n_estimators=4, max_depth=2, n_jobs=1).fit(numbers, high)
    model.save_model(tmp_path / "model.json")
    train = tmp_path / "train.tsv"
    numbers.assign(high=high.astype(float)).to_csv(train, index=False, sep="\t")
    arguments = ["wrap", tmp_path / "model.json", train, "--target", "high"]
    assert call(*arguments, "--density", "independent") == FINE
    assert call("predict", tmp_path / "model.knothole", train, "--proba") == FINE
    (tmp_path / "out.csv").write_text(capsys.readouterr().out)
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.columns.tolist() == ["prediction", "probability_0", "probability_1"]
    np.testing.assert_array_equal(found["prediction"], model.predict(numbers))
    own = model.predict_proba(numbers)[:, 1]
    np.testing.assert_allclose(found["probability_1"], own, atol=1e-6)


def test_a_model_without_names_goes_by_position(table, folder, tmp_path):
    numbers = table[["weight", "age"]]
    model = xgboost.XGBRegressor(n_estimators=3, n_jobs=1).fit(numbers.to_numpy(), table["price"])
    model.save_model(tmp_path / "model.json")
    train = tmp_path / "train.csv"
    table[["id", "weight", "age", "price"]].to_csv(train, index=False)
    arguments = ["wrap", tmp_path / "model.json", train, "--density", "independent"]
    assert call(*arguments, "--target", "price", "--drop", "id") == FINE
    assert call(*arguments, "--target", "price") == WRONG_INPUT


def test_a_larger_training_table_is_sampled(folder, tmp_path, capsys):
    place = tmp_path / "model.knothole"
    arguments = ["wrap", folder / "model.json", folder / "train.csv", "-o", place]
    assert call(*arguments, "--rows", 50, "--density", "independent") == FINE
    assert "50 of 200 rows, chosen at random" in capsys.readouterr().err


def test_absent_columns_are_missing_if_asked(wrapped, table, tmp_path, capsys):
    few = tmp_path / "few.csv"
    table[["age", "weight", "city"]].to_csv(few, index=False)
    assert call("predict", wrapped, few) == WRONG_INPUT
    message = capsys.readouterr().err
    assert "lacks 1 of the model's 4 columns: 'mean size'" in message
    assert "--absent missing" in message
    assert call("predict", wrapped, few, "--absent", "missing", "-o", tmp_path / "out.csv") == FINE
    robust = kh.load(wrapped)
    gone = table[FEATURES].assign(**{"mean size": np.nan})
    np.testing.assert_allclose(
        pd.read_csv(tmp_path / "out.csv")["prediction"], robust.predict(gone), rtol=1e-12
    )


@pytest.fixture(scope="session")
def feed(tmp_path_factory):
    """A model whose column b had missing values in training, and rows that lack some of b."""
    place = tmp_path_factory.mktemp("feed")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300), "b": rng.normal(size=300)})
    frame.loc[rng.random(300) < 0.4, "b"] = np.nan
    model = xgboost.XGBRegressor(n_estimators=5, max_depth=3, n_jobs=1)
    y = frame["a"] + frame["b"].fillna(9.0)
    model.fit(frame, y).save_model(place / "model.json")
    frame.to_csv(place / "train.csv", index=False)
    rows = frame.head(50).assign(id=range(50))
    rows.to_csv(place / "rows.csv", index=False)
    return place, rows


def wrapped_feed(place, policy):
    out = place / f"{policy}.knothole"
    arguments = [place / "model.json", place / "train.csv", "-o", out, "--density", "mixture"]
    assert call("wrap", *arguments, "--nan-policy", policy) == 0
    return out


@pytest.mark.parametrize("policy", ["infer", "lost", "native"])
def test_what_missing_values_mean_is_said_when_wrapping(feed, policy):
    place, _ = feed
    robust = kh.load(wrapped_feed(place, policy))
    assert robust.nan_policy_ == policy
    assert robust.columns_.nullable.tolist() == [False, policy != "lost"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_lost_values_are_marked_in_a_file(feed, tmp_path, kind, chunk):
    place, rows = feed
    model = wrapped_feed(place, "infer")
    lost = rows["b"].isna() & (rows["id"] % 2 == 0)
    marks = pd.DataFrame({"id": rows["id"], "b": lost})
    if kind == "csv":
        text = np.where(lost, np.where(rows["id"] % 4 == 0, "yes", "1"), "")
        marks.assign(b=text).to_csv(tmp_path / "marks.csv", index=False)
    elif kind == "parquet":
        marks.to_parquet(tmp_path / "marks.parquet", row_group_size=11)
    else:
        marks.to_json(tmp_path / "marks.jsonl", orient="records", lines=True)
    options = ["--lost", tmp_path / f"marks.{kind}", "--chunk", chunk]
    assert call("predict", model, place / "rows.csv", "-o", tmp_path / "out.csv", *options) == 0
    found = pd.read_csv(tmp_path / "out.csv")["prediction"]
    mask = np.column_stack([np.zeros(50, dtype=bool), lost])
    robust = kh.load(model)
    np.testing.assert_allclose(found, robust.predict(rows[["a", "b"]], lost=mask), rtol=1e-12)
    assert not np.allclose(found, robust.predict(rows[["a", "b"]]))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lost_values_are_marked_by_their_text(feed, tmp_path, kind):
    place, rows = feed
    model = wrapped_feed(place, "infer")
    lost = rows["b"].isna() & (rows["id"] % 2 == 0)
    marked = rows.astype({"b": object})
    marked.loc[lost, "b"] = "LOST"
    data = tmp_path / f"rows.{kind}"
    if kind == "csv":
        marked.to_csv(data, index=False)
    else:
        rows_of = marked.where(marked.notna(), None).to_dict("records")
        data.write_text("".join(json.dumps(row) + "\n" for row in rows_of))
    mask = np.column_stack([np.zeros(50, dtype=bool), lost])
    robust = kh.load(model)
    for command in ("predict", "explain", "acquire"):
        options = ["-o", tmp_path / "out.csv", "--lost-marker", "LOST", "--chunk", 9]
        assert call(command, model, data, *options) == 0
        found = pd.read_csv(tmp_path / "out.csv")
        if command == "predict":
            expected = robust.predict(rows[["a", "b"]], lost=mask)
            np.testing.assert_allclose(found["prediction"], expected, rtol=1e-12)
        elif command == "explain":
            expected = robust.explain(rows[["a", "b"]], lost=mask)
            np.testing.assert_allclose(found["value_a"], expected.values[:, 0], atol=1e-9)
            chance = expected.lost_probability["b"]
            np.testing.assert_allclose(found["lost_b"], chance, atol=1e-9)
            assert "lost_a" not in found and (chance[lost] == 1).all()
            assert chance[rows["b"].isna() & ~lost].between(0.001, 0.999).all()
        else:
            expected = robust.acquire(rows[["a", "b"]], lost=mask).gain["b"]
            np.testing.assert_allclose(found["gain_b"], expected, atol=1e-9)


WRONG_MARKS = {
    "b\n1\n": "has 1 rows, fewer than DATA",
    "b\n" + 51 * "0\n": "has more than the 50 rows of DATA",
    "c\n" + 50 * "0\n": "has none of the model's columns",
    "b\n" + 49 * "0\n" + "maybe\n": "column 'b' holds 'maybe'; write 1",
    "a\n" + 49 * "0\n" + "1\n": "row 50 of 'a' is marked as lost, but DATA has a value",
}


@pytest.mark.parametrize("text", WRONG_MARKS)
def test_marks_that_do_not_fit_are_refused(feed, tmp_path, capsys, text):
    place, _ = feed
    (tmp_path / "marks.csv").write_text(text)
    model = wrapped_feed(place, "native")
    arguments = [model, place / "rows.csv", "-o", tmp_path / "out.csv", "--chunk", 20]
    assert call("predict", *arguments, "--lost", tmp_path / "marks.csv") == WRONG_INPUT
    assert WRONG_MARKS[text] in " ".join(capsys.readouterr().err.split())


def test_report_writes_one_page(wrapped, folder, tmp_path):
    page = tmp_path / "report.html"
    arguments = [
        "report",
        wrapped,
        "--train",
        folder / "train.csv",
        "--test",
        folder / "incomplete.csv",
    ]
    options = ["--method", "native", "--rate", 0.3, "--repeats", 1, "-o", page]
    assert call(*arguments, "--target", "price", *options) == FINE
    text = page.read_text()
    assert "XGBoost alone" in text and "iterative imputation" not in text
    assert list(tmp_path.iterdir()) == [page]


def test_demo_writes_its_plot_and_page(tmp_path, monkeypatch, capsys):
    """With a fixed density and two methods: the full demo is what ``make demo`` runs."""
    from knothole.cli import demo

    whole = kh.wrap

    def quick(*arguments, **options):
        return whole(*arguments, density=kh.Mixture(n_components=4, random_state=0), **options)

    monkeypatch.setattr(kh, "wrap", quick)
    monkeypatch.setattr(demo, "METHODS", ("knothole", "native"))
    monkeypatch.setattr(demo, "RATES", (0.0, 0.5))
    assert call("demo", "-o", tmp_path / "new" / "out", "--repeats", 1) == FINE
    shown = capsys.readouterr()
    assert "With half of the measurements gone" in shown.out
    written = sorted(p.name for p in (tmp_path / "new" / "out").iterdir())
    assert written == ["demo.html", "demo.knothole", "demo.png"]
    assert "knothole whatif" in shown.out


def test_the_demo_names_a_command_that_is_there(monkeypatch, tmp_path):
    """After ``make demo`` no shell finds knothole by its name."""
    from knothole.cli.demo import command

    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(command()).resolve() == Path(sys.executable).with_name("knothole").resolve()
    (tmp_path / "knothole").touch(mode=0o755)
    assert command() == "knothole"


def test_all_rows_of_a_larger_training_table_are_learned_from(
    folder, table, tmp_path, capsys, monkeypatch
):
    """In parts of 20 rows: what a table in memory, in one part, comes to."""
    from knothole.cli import options
    from knothole.out_of_core import partitions
    from knothole.out_of_core.partitions import Partitions

    monkeypatch.setattr(options, "CHUNK", 20)
    monkeypatch.setattr(partitions, "ROWS", 100)
    place = tmp_path / "model.knothole"
    arguments = ["wrap", folder / "model.json", folder / "train.csv", "-o", place]
    assert call(*arguments, "--density", "mixture", "--target", "price", "--all") == FINE
    assert "chosen at random" not in capsys.readouterr().err
    whole = table[FEATURES][:200].astype({"city": object})
    parts = Partitions.of(lambda: iter([(whole, table["price"][:200].to_numpy(), None)]))
    alone = kh.wrap(folder / "model.json", parts, density=kh.Mixture(random_state=0))
    found = kh.load(place)
    assert found.density_.n_iter_ == alone.density_.n_iter_
    np.testing.assert_allclose(found.density_.weights_, alone.density_.weights_, rtol=1e-8)
    rows = kh.missingness.mcar(whole, 0.3, 0)
    np.testing.assert_allclose(found.predict(rows), alone.predict(rows), rtol=1e-8)


def test_outside_a_terminal_there_is_a_line_for_each_stage_and_the_time(folder, tmp_path):
    given = folder / "model.json", folder / "train.csv", "--target", "price"
    chosen = "--density", "mixture"
    done = in_subprocess("wrap", *given, *chosen, "-o", tmp_path / "m.knothole")
    assert done.returncode == FINE and done.stdout == ""
    lines = done.stderr.splitlines()
    stages = [line for line in lines if line.startswith("[wrap] ")]
    assert stages[0] == "[wrap]   0 % fit mixture to all rows"
    assert stages[-1] == "[wrap] 100 % done"
    assert re.fullmatch(r"wrote .*m\.knothole after (\d+ min )?\d+ s", lines[-1])

    incomplete = folder / "incomplete.csv"
    given = tmp_path / "m.knothole", incomplete, "--target", "price"
    done = in_subprocess("refit", *given, "-o", tmp_path / "r.knothole")
    assert done.returncode == FINE, done.stderr
    assert "leaf probabilities of rows: 100/100\n" in done.stderr
    assert re.search(r"wrote .*r\.knothole after (\d+ min )?\d+ s\n$", done.stderr)

"""Every way to misuse the command line has a message that names the way out."""

from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from tests.cli.running import FEATURES, call, refused

import knothole as kh
from knothole.cli import app
from knothole.cli.app import FINE, WRONG_USAGE


def half(path: Path, place: Path, share: float = 0.5) -> Path:
    """The first part of a file, as after a crash or a full disk."""
    data = path.read_bytes()
    place.write_bytes(data[: int(len(data) * share)])
    return place


def test_help_and_usage(capsys):
    assert call("--help") == FINE
    shown = capsys.readouterr().out
    for name in app.COMMANDS:
        assert name in shown
        assert call(name, "--help") == FINE
        assert "Examples:" in capsys.readouterr().out
    assert call("--version") == FINE
    assert kh.__version__ in capsys.readouterr().out
    assert call("nonsense") == WRONG_USAGE
    assert "No such command 'nonsense'" in capsys.readouterr().err
    assert call("refit", "a", "b") == WRONG_USAGE
    assert "--target" in capsys.readouterr().err


def test_files_that_are_not_there(wrapped, folder, tmp_path, capsys):
    nothing = tmp_path / "nothing.csv"
    assert "nothing.csv: No such file" in refused(capsys, "predict", wrapped, nothing)
    assert "nothing.json" in refused(
        capsys, "wrap", tmp_path / "nothing.json", folder / "train.csv"
    )
    assert "nothing.pkl: No such file" in refused(
        capsys, "wrap", tmp_path / "nothing.pkl", folder / "train.csv", "--allow-pickle"
    )
    assert "nothing.knothole" in refused(
        capsys, "predict", tmp_path / "nothing.knothole", folder / "incomplete.csv"
    )
    assert "nothing.parquet: No such file" in refused(
        capsys, "predict", wrapped, tmp_path / "nothing.parquet"
    )


def test_half_written_files(wrapped, folder, tmp_path, capsys):
    out = tmp_path / "out.csv"

    def message(*arguments: object) -> str:
        found = refused(capsys, *arguments, "-o", out)
        assert not out.exists()
        return found

    cut = half(folder / "model.json", tmp_path / "cut.json")
    assert "cut.json" in message("wrap", cut, folder / "train.csv")
    cut = half(wrapped, tmp_path / "cut.knothole")
    assert "cut.knothole: truncated" in message("predict", cut, folder / "incomplete.csv")
    cut = half(folder / "incomplete.parquet", tmp_path / "cut.parquet")
    assert "cut.parquet: not a table" in message("predict", wrapped, cut)
    text = (folder / "incomplete.csv").read_text().rstrip("\n")
    (tmp_path / "cut.csv").write_text(text.rpartition(",")[0])
    assert "its last row is cut off after 5 of 6" in message(
        "predict", wrapped, tmp_path / "cut.csv"
    )
    quoted = text.rpartition("\n")[0] + '\n"1\n2'
    (tmp_path / "cut.csv").write_text(quoted)
    assert "its last row is cut off after 1 of 6" in message(
        "predict", wrapped, tmp_path / "cut.csv"
    )
    (tmp_path / "cut.joblib").write_bytes(b"\x80\x05\x95")
    assert "cannot be unpickled" in message(
        "wrap", tmp_path / "cut.joblib", folder / "train.csv", "--allow-pickle"
    )


def test_tables_that_are_none(wrapped, tmp_path, capsys):
    contents = {
        "binary.csv": (bytes(range(256)) * 4, "not a table"),
        "empty.csv": (b"", "not a table"),
        "header.csv": (b"mean size,weight,age,city\n", "has no rows"),
        "long.csv": (b"mean size,weight,age,city\n1,2,3,Graz,5\n", "Expected 4 fields"),
        "twice.csv": (b"age,age\n1,2\n", "'age' is there twice"),
        "zipped.csv.gz": (b"not gzip", "zipped.csv.gz"),
        "text.parquet": (b"not parquet", "not a table"),
        "table.xlsx": (b"", "tables are read from .csv"),
    }
    for name, (content, message) in contents.items():
        place = tmp_path / name
        place.write_bytes(content)
        assert message in refused(capsys, "predict", wrapped, place, "-o", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_a_row_that_is_too_long_far_down_leaves_no_output(wrapped, folder, tmp_path, capsys):
    lines = (folder / "incomplete.csv").read_text().splitlines()
    lines[80] += ",7"
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join(lines) + "\n")
    message = refused(capsys, "predict", wrapped, bad, "-o", tmp_path / "out.csv", "--chunk", 10)
    assert "Expected 6 fields in line 81, saw 7" in message
    assert list(tmp_path.iterdir()) == [bad]


def test_wrong_columns_and_values(wrapped, folder, table, tmp_path, capsys):
    bad = tmp_path / "bad.csv"

    def message(frame: pd.DataFrame, *options: str) -> str:
        frame.to_csv(bad, index=False)
        return refused(capsys, "predict", wrapped, bad, *options)

    good = table[FEATURES][:3]
    near = message(good.rename(columns={"weight": "weigth"}))
    assert "lacks 1 of the model's 4 columns: 'weight'" in near
    assert "Did you mean 'weigth'?" in near
    assert "column 'age' must hold numbers" in message(good.assign(age="old"))
    unseen = message(good.assign(city="Wien"))
    assert (
        "'Wien', which was not there in training" in unseen and "--handle-unknown missing" in unseen
    )
    assert "no column 'name' (--keep)" in message(good, "--keep", "name")
    assert "lacks 4 of the model's 4" in message(table[["price"]], "--absent", "missing")
    assert "is a regressor" in message(good, "--proba")
    assert call("predict", wrapped, bad, "--handle-unknown", "missing") == FINE


def test_models_that_are_none(folder, tmp_path, capsys):
    (tmp_path / "model.json").write_text('{"a": 1}')
    assert "model.json" in refused(capsys, "wrap", tmp_path / "model.json", folder / "train.csv")
    (tmp_path / "model.bin").write_bytes(b"\x00\x01")
    assert "not a model file knothole knows" in refused(
        capsys, "wrap", tmp_path / "model.bin", folder / "train.csv"
    )
    joblib.dump(["no model"], tmp_path / "no.joblib")
    train = folder / "train.csv"
    assert "--allow-pickle" in refused(capsys, "wrap", tmp_path / "no.joblib", train)
    assert "cannot read a builtins.list" in refused(
        capsys, "wrap", tmp_path / "no.joblib", train, "--allow-pickle"
    )
    assert "is wrapped first" in refused(
        capsys, "predict", folder / "model.json", folder / "incomplete.csv"
    )


def test_targets_that_do_not_fit(folder, wrapped, table, tmp_path, capsys):
    arguments = ["wrap", folder / "model.json", folder / "train.csv", "-o", tmp_path / "m.knothole"]
    assert "no column 'prize' (--target)" in refused(capsys, *arguments, "--target", "prize")
    words = tmp_path / "words.csv"
    table[:5].assign(price="dear").to_csv(words, index=False)
    arguments[2] = words
    assert "must hold numbers: the model is a regressor" in refused(
        capsys, *arguments, "--target", "price"
    )
    empty = tmp_path / "empty.csv"
    table[:5].assign(price=np.nan).to_csv(empty, index=False)
    assert "is empty in every row" in refused(
        capsys, "refit", wrapped, empty, "--target", "price", "-o", tmp_path / "t.knothole"
    )

"""Every way to misuse the command line has a message that names the way out."""

from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from tests.cli.running import FEATURES, call, refused

import knothole as kh
from knothole.cli import app
from knothole.cli.app import FINE, WRONG_USAGE
from knothole.cli.files import nearest
from knothole.out_of_core.files import CsvFormat, open_table


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
    assert "rename 'weigth' to 'weight'. --absent missing takes them as missing" in near
    unseen = message(good.assign(city="Wien"))
    assert (
        "bad.csv: column 'city' holds the category 'Wien', which was not there in training"
        in unseen
    )
    assert "with --handle-unknown missing" in unseen
    assert "handle_unknown" not in unseen
    assert "no column 'name' (--keep)" in message(good, "--keep", "name")
    refused_already = message(table[["price"]], "--absent", "missing")
    assert "lacks 4 of the model's 4" in refused_already
    assert "--absent" not in refused_already
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
    assert "words.csv: row 1, column 'price': must be a number; got 'dear'." in refused(
        capsys, *arguments, "--target", "price"
    )
    empty = tmp_path / "empty.csv"
    table[:5].assign(price=np.nan).to_csv(empty, index=False)
    assert "is empty in every row" in refused(
        capsys, "refit", wrapped, empty, "--target", "price", "-o", tmp_path / "t.knothole"
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_value_that_is_no_number_is_named_with_its_file_and_row(
    wrapped, folder, table, tmp_path, capsys, kind
):
    bad = tmp_path / f"bad.{kind}"
    rows = table[FEATURES][:30].astype({"age": object})
    rows["age"] = rows["age"].astype(str)
    rows.loc[12, "age"] = "n/a?"
    if kind == "csv":
        rows.to_csv(bad, index=False)
    elif kind == "jsonl":
        rows = rows.astype({"age": object, "city": str})
        rows["age"] = [int(age) if age.isdigit() else age for age in rows["age"]]
        rows.to_json(bad, orient="records", lines=True)
    else:
        rows.to_parquet(bad)
    out = tmp_path / "out.csv"
    chunk = 20 if kind == "parquet" else 5  # a column of text is refused by its first chunk
    found = refused(capsys, "predict", wrapped, bad, "-o", out, "--chunk", chunk)
    assert f"bad.{kind}: row 13, column 'age': must be a number; got 'n/a?'." in found
    assert not out.exists()


def test_numbers_that_are_text_in_parquet(wrapped, table, tmp_path, capsys):
    bad = tmp_path / "bad.parquet"
    table[FEATURES][:9].astype({"age": str}).to_parquet(bad)
    found = refused(capsys, "predict", wrapped, bad)
    assert f"row 1, column 'age': must be a number; got the text '{table['age'][0]}'." in found
    assert "Convert the column to numbers." in found


def test_a_wrong_value_in_training_and_in_one_of_several_files(folder, table, tmp_path, capsys):
    rows = table[:200].astype({"weight": object})
    rows.loc[150, "weight"] = "139,6"
    parts = tmp_path / "parts"
    parts.mkdir()
    rows[:100].to_csv(parts / "part.1.csv", index=False)
    rows[100:].to_csv(parts / "part.2.csv", index=False)
    for every in ([], ["--all"]):
        found = refused(
            capsys, "wrap", folder / "model.json", parts, "-o", tmp_path / "m.knothole", *every
        )
        assert "part.2.csv: row 51, column 'weight': must be a number; got '139,6'." in found
        assert "--decimal ','" in found
    rows.loc[150, "weight"] = "inf"
    rows.to_csv(tmp_path / "infinite.csv", index=False)
    found = refused(capsys, "wrap", folder / "model.json", tmp_path / "infinite.csv")
    assert "infinite.csv: row 151, column 'weight': must be a number; got inf." in found


def test_a_wrong_value_in_a_path_given_to_python(folder, table, tmp_path):
    rows = table[:200].astype({"weight": object})
    rows.loc[150, "weight"] = "heavy"
    bad = tmp_path / "bad.csv"
    rows.to_csv(bad, index=False)
    with pytest.raises(kh.errors.InvalidInput, match=r"bad.csv: row 151, .*'weight'.* got 'heavy'"):
        kh.wrap(folder / "model.json", bad, density="independent")


@pytest.mark.parametrize(("separator", "named"), [(";", "--sep ';'"), ("\t", "--sep tab")])
def test_another_separator_is_recognised(
    wrapped, folder, table, tmp_path, capsys, separator, named
):
    place, out, expected = (tmp_path / name for name in ("a.csv", "out.csv", "expected.csv"))
    complete = table[200:]
    complete.to_csv(place, index=False)
    assert call("predict", wrapped, place, "-o", expected) == FINE
    capsys.readouterr()
    complete.to_csv(place, index=False, sep=separator, decimal=",")
    found = refused(capsys, "predict", wrapped, place, "-o", out)
    assert "has one column" in found and named in found
    assert "--absent" not in found
    sep = named.split()[1].strip("'")
    found = refused(capsys, "predict", wrapped, place, "-o", out, "--sep", sep)
    assert "a.csv: row 1, column 'mean size'" in found and "--decimal ','" in found
    options = ["--sep", sep, "--decimal", ","]
    assert call("predict", wrapped, place, "-o", out, *options) == FINE
    assert out.read_text() == expected.read_text()
    capsys.readouterr()

    model, train = folder / "model.json", tmp_path / "train.csv"
    table[:200].to_csv(train, index=False, sep=separator, decimal=",")
    again = tmp_path / "again.knothole"
    given = ["wrap", model, train, "-o", again, "--density", "mixture", "--target", "price"]
    assert named in refused(capsys, *given)
    assert call(*given, *options) == FINE
    assert call("predict", again, place, "-o", out, *options) == FINE
    np.testing.assert_allclose(pd.read_csv(out), pd.read_csv(expected))
    assert call("predict", again, place, "--sep", "ab") == WRONG_USAGE


def test_one_column_with_a_semicolon_in_its_name_is_read(tmp_path):
    place = tmp_path / "one.csv"
    place.write_text("a;b\n1\n2\n")
    assert open_table(place).names == ["a;b"]
    place.write_text("a;b\n1;2\n")
    assert open_table(place, csv_format=CsvFormat(",")).names == ["a;b"]


def test_hints_fit_the_command(folder, table, tmp_path, capsys):
    """``wrap``, ``refit`` and ``report`` have neither --absent nor --handle-unknown."""
    short = tmp_path / "short.csv"
    table[:50].rename(columns={"weight": "WEIGHT"}).to_csv(short, index=False)
    model, out = folder / "model.json", tmp_path / "out"
    for command in (
        ["wrap", model, short],
        ["refit", model, short, "--target", "price"],
        ["report", model, "--train", short, "--test", short, "--target", "price", "-o", out],
    ):
        found = refused(capsys, *command)
        assert "rename 'WEIGHT' to 'weight'." in found
        assert "--absent" not in found


def test_suggestions_ignore_upper_and_lower_case_and_need_a_name_that_is_near():
    assert nearest("PRICE", ["slice", "Price"]) == "Price"
    assert nearest("weigth", ["height", "weight"]) == "weight"
    assert nearest("xyz", ["age", "price"]) is None
    assert nearest("city", ["density", "age"]) is None

"""Tables that hold what one does not expect: an answer, or an error that names the value."""

import bz2
import decimal
import gzip
import lzma
import os
import subprocess
import sys

import lightgbm
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.tree import DecisionTreeRegressor

import knothole as kh
from knothole.columns.columns import Column, Columns
from knothole.errors import DamagedFile, InvalidInput, KnotholeError
from knothole.out_of_core.files import open_table
from knothole.report.displays import OutageDisplay
from knothole.report.evaluation import Outage
from knothole.threads import thread_count

LARGE = [2**53, 2**53 + 1, 2**53 + 2, 2**53]


@pytest.mark.parametrize(
    "make",
    [
        lambda values: np.array([values]).T,
        lambda values: np.array([values], dtype=np.uint64).T,
        lambda values: [[value] for value in values],
        lambda values: pd.DataFrame({"x0": values}),
        lambda values: pd.DataFrame({"x0": [*values, None]}, dtype="Int64"),
        lambda values: pl.DataFrame({"x0": [*values, None]}),
        lambda values: pa.table({"x0": [*values, None]}),
    ],
)
def test_whole_numbers_beyond_floats_are_categories_of_their_own(make):
    columns = Columns.infer(make(LARGE), categorical=[0])
    assert columns[0].levels == (2**53, 2**53 + 1, 2**53 + 2)
    codes = columns.matrix(make(LARGE))[:, 0]
    assert codes[:4].tolist() == [0.0, 1.0, 2.0, 0.0] and np.isnan(codes[4:]).all()
    assert columns.matrix(make([2**53 + 2, 2**53 + 1]))[:2, 0].tolist() == [2.0, 1.0]
    with pytest.raises(InvalidInput, match=str(2**53 + 3)):
        columns.matrix(make([2**53 + 3]))
    assert Columns.infer(make(LARGE))[0].levels == ()  # as numbers they are numbers


@pytest.mark.parametrize(
    ("value", "shown"),
    [(decimal.Decimal("sNaN"), r"Decimal\('sNaN'\)"), (10**400, "1329 bits")],
    ids=["sNaN", "10**400"],
)
def test_numbers_that_no_float_holds_are_named(value, shown):
    with pytest.raises(InvalidInput, match=f"column 'x1' must hold numbers.*{shown}"):
        Columns.infer([[1.0, 2.0], [1.0, value]])


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_matrices_are_tables():
    X = np.asmatrix(np.arange(6.0).reshape(3, 2))
    assert Columns.infer(X).matrix(X).tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize("value", ["a", [1], float("nan"), float("inf")])
def test_threads_that_are_no_number_are_named(value, monkeypatch):
    with pytest.raises(InvalidInput, match="threads must be a whole number"):
        thread_count(value)
    monkeypatch.setenv("KNOTHOLE_THREADS", "abc")
    with pytest.raises(InvalidInput, match=r"KNOTHOLE_THREADS must be .* got 'abc'"):
        thread_count()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("density", [kh.Factorized, kh.Mixture, kh.LatentTree, kh.GaussianMixture])
@pytest.mark.parametrize("unit", [5e-324, 1e-300, 1.7e308])
def test_columns_at_the_ends_of_float64(unit, density):
    """A finite answer, or an error that says what is wrong."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 0.5, 1.0], size=60) * unit
    X = np.column_stack([x, rng.normal(size=60)])
    model = DecisionTreeRegressor(max_depth=2).fit(np.arange(120.0).reshape(60, 2), X[:, 1])
    try:
        robust = kh.wrap(model, X, density=density(random_state=0))
        answer, std = robust.predict([[np.nan, 0.1], [unit, np.nan]], return_std=True)
    except KnotholeError as error:
        named = "x0" in str(error)
        answer = std = np.array([0.0 if named else np.nan])
    assert np.isfinite(answer).all() and np.isfinite(std).all()


# ---- files --------------------------------------------------------------------------------------

ROWS = 'a,b,c\n1,2,3\n"4\n4",5,\n\n6,7\n8,9,10\n'


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_rows_with_too_few_fields_are_refused_by_line(tmp_path, suffix):
    opened = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[suffix]
    for text, refused in ((ROWS, True), (ROWS.replace("6,7\n", "6,7,\n"), False)):
        path = tmp_path / f"x.csv{suffix}"
        with opened(path, "wt") as file:
            file.write(text)
        columns = [Column(name) for name in "bc"]
        if refused:
            with pytest.raises(DamagedFile, match="line 6 has 2 of the 3 fields"):
                list(open_table(path).chunks(["a", "b", "c"], columns, 10))
        else:
            ((chunk, _),) = open_table(path).chunks(["a", "b", "c"], columns, 10)
            assert chunk["c"].isna().tolist() == [False, True, True, False]


def test_columns_named_like_mathtext_are_drawn(tmp_path):
    error = np.array([1.0, 2.0])
    outage = Outage("RMSE", ("$10k_to_$20k", "$x^$"), {"knothole": error}, 0.5)
    OutageDisplay(outage).drawn(4, 3).savefig(tmp_path / "x.png")


def test_names_beyond_ascii_under_the_c_locale(tmp_path):
    """Of files, columns and targets, whatever Python makes of them; libraries want UTF-8."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(60, 2)), columns=["größe", "b"])
    booster = lightgbm.LGBMRegressor(n_estimators=2, verbose=-1, n_jobs=1).fit(table, table["b"])
    booster.booster_.save_model(tmp_path / "native_ß.txt")
    table.assign(**{"preis_€": table["b"]}).to_parquet(tmp_path / "zeilen_ö.parquet")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    refit = (
        "refit native_ß.txt zeilen_ö.parquet --density independent --target preis_€ -o é.knothole"
    )
    for command, code in (
        ("predict nichts_ä.knothole nichts_ü.csv", 1),
        (f"{refit} --native nativ_ø.txt", 0),
        ("predict é.knothole zeilen_ö.parquet --keep größe", 0),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "knothole", *command.split()],
            cwd=tmp_path, env=environment, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
    assert done.stdout.decode("utf-8").startswith("größe,prediction\n")
    assert lightgbm.Booster(model_file=tmp_path / "nativ_ø.txt").num_trees() == 2

"""Files are read in chunks, and written as a whole or not at all."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.cli.running import call, in_subprocess, refused

import knothole as kh
from knothole import files
from knothole.cli import app
from knothole.cli.app import FINE, INTERRUPTED, TERMINATED, WRONG_INPUT
from knothole.cli.files import CsvSink
from knothole.out_of_core.files import open_table, sampled
from knothole.robust import Robust


def test_places_that_cannot_be_written(wrapped, folder, tmp_path, capsys, monkeypatch):
    data = folder / "incomplete.csv"

    def message(place: Path) -> str:
        return refused(capsys, "predict", wrapped, data, "-o", place)

    assert "there is no directory" in message(tmp_path / "none" / "out.csv")
    assert "written as .csv, .tsv, .jsonl or .parquet" in message(tmp_path / "out.txt")
    (tmp_path / "folder.csv").mkdir()
    assert "is a directory" in message(tmp_path / "folder.csv")
    assert "would overwrite an input" in message(data)
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write anywhere
    assert "may not be written to" in message(tmp_path / "out.csv")


def test_a_full_disk_leaves_nothing_behind(wrapped, folder, tmp_path, capsys, monkeypatch):
    def full(self, chunk):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CsvSink, "write", full)
    out = tmp_path / "out.csv"
    out.write_text("from yesterday")
    arguments = ["predict", wrapped, folder / "incomplete.csv", "-o", out]
    assert "No space left on device" in refused(capsys, *arguments)
    assert out.read_text() == "from yesterday"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ctrl_c_leaves_nothing_behind(wrapped, folder, tmp_path, capsys, monkeypatch, kind):
    calls = []

    def interrupted(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return own(self, *arguments, **options)

    own = Robust.encode
    monkeypatch.setattr(Robust, "encode", interrupted)
    out = tmp_path / f"out.{kind}"
    arguments = ["predict", wrapped, folder / "incomplete.csv", "-o", out, "--chunk", 10]
    # A run in the background may have been started with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert call(*arguments) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted; nothing was written" in capsys.readouterr().err
    assert len(calls) == 3 and list(tmp_path.iterdir()) == []


def test_termination_leaves_nothing_behind(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    app.prepare()

    def half_write():
        with files.whole_file(tmp_path / "out.csv") as place:
            place.write_text("half")
            signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(SystemExit) as left:
            half_write()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == TERMINATED
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_error(wrapped, folder):
    command = (
        f"{sys.executable} -m knothole predict {wrapped} {folder / 'incomplete.csv'} --chunk 1"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -n 1"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (FINE, "prediction\n")
    assert "Traceback" not in done.stderr


def test_without_click_it_says_what_to_install(tmp_path):
    (tmp_path / "click.py").write_text("raise ImportError('gone', name='click')")
    done = in_subprocess("demo", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == WRONG_INPUT
    assert done.stderr == ("knothole: the command line needs click: pip install 'knothole[cli]'.\n")


def test_a_file_is_read_no_further_than_needed(tmp_path):
    """So that one larger than memory works: the first chunk is there before the end is read."""
    place = tmp_path / "large.csv"
    with place.open("w") as file:
        file.write("a,b\n")
        for _ in range(100):
            file.write("1.5,x\n" * 10_000)
    columns = [kh.Columns.infer(pd.DataFrame({"a": [1.5]}))[0]]
    chunks = open_table(place).chunks(["a"], columns, 1000)
    chunk, amount = next(chunks)
    assert len(chunk) == 1000
    assert amount < place.stat().st_size / 2
    chunks.close()


@pytest.mark.parametrize("rows", ['1.5,x\n2.5,"y\nz"', '1.5,4" pipe\n2.5,5" pipe'])
def test_a_last_row_may_have_line_breaks_in_quotes_and_inch_marks(tmp_path, rows):
    place = tmp_path / "notes.csv"
    place.write_text(f"a,note\n{rows}")
    columns = [kh.Columns.infer(pd.DataFrame({"a": [1.5]}))[0]]
    (chunk, _), *_ = open_table(place).chunks(["a"], columns, 1000)
    assert chunk["a"].tolist() == [1.5, 2.5]


def test_two_files_do_not_go_to_one_place(folder, tmp_path, capsys):
    arguments = ["refit", folder / "model.json", folder / "incomplete.csv", "--target", "price"]
    place = tmp_path / "refitted.json"
    assert "choose another place" in refused(capsys, *arguments, "--native", place, "-o", place)
    assert not place.exists()


def test_a_sample_is_uniform_and_in_order(tmp_path):
    place = tmp_path / "rows.csv"
    pd.DataFrame({"a": np.arange(90_000)}).to_csv(place, index=False)
    columns = [kh.Columns.infer(pd.DataFrame({"a": [1]}))[0]]
    frame, total = sampled(open_table(place), ["a"], columns, 3000, seed=0)
    assert (len(frame), total) == (3000, 90_000)
    values = frame["a"].to_numpy()
    assert (np.diff(values) > 0).all()
    in_chunks, _ = np.histogram(values, 9, (0, 90_000))
    assert abs(in_chunks - 3000 / 9).max() < 5 * np.sqrt(3000 / 9)

"""Standard input and output, and JSON lines."""

import gzip
import io
import json
import sys

import numpy as np
import pandas as pd
import pytest
from tests.cli.running import FEATURES, call, refused

import knothole as kh
from knothole.cli.app import FINE


@pytest.fixture
def given(monkeypatch):
    """Put something on standard input."""

    def put(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return put


@pytest.fixture(scope="session")
def lines(incomplete) -> bytes:
    """Rows as JSON lines: a missing value is null in every second one, and no key in the others."""
    rows = []
    for i, row in enumerate(incomplete.astype(object).to_dict("records")):
        missing_of = [name for name, value in row.items() if pd.isna(value)]
        rows.append({k: v for k, v in row.items() if k not in missing_of})
        rows[-1] |= dict.fromkeys(missing_of) if i % 2 else {}
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_csv_from_standard_input_to_standard_output(wrapped, folder, incomplete, given, capsys):
    given((folder / "incomplete.csv").read_bytes())
    assert call("predict", wrapped, "-", "-o", "-", "--keep", "id") == FINE
    found = pd.read_csv(io.StringIO(capsys.readouterr().out), dtype={"id": str})
    assert found["id"].tolist() == incomplete["id"].tolist()
    np.testing.assert_allclose(
        found["prediction"], kh.load(wrapped).predict(incomplete), rtol=1e-12
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_json_lines_are_answered_by_json_lines(
    wrapped, incomplete, lines, given, capsys, tmp_path, compressed
):
    if compressed:
        data = tmp_path / "rows.jsonl.gz"
        data.write_bytes(gzip.compress(lines))
    else:
        given(b"\n" + lines)
        data = "-"
    assert call("predict", wrapped, data, "--keep", "id", "--keep", "age", "--chunk", 7) == FINE
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in found] == incomplete["id"].tolist()
    ages = [None if np.isnan(age) else int(age) for age in incomplete["age"]]
    assert [row["age"] for row in found] == ages
    predicted = [row["prediction"] for row in found]
    np.testing.assert_allclose(predicted, kh.load(wrapped).predict(incomplete), rtol=1e-12)


def test_files_of_one_kind_become_those_of_another(wrapped, folder, lines, tmp_path):
    (tmp_path / "rows.ndjson").write_bytes(lines)
    assert call("predict", wrapped, tmp_path / "rows.ndjson", "-o", tmp_path / "a.csv") == FINE
    assert call("predict", wrapped, folder / "incomplete.csv", "-o", tmp_path / "b.jsonl") == FINE
    written = pd.read_json(tmp_path / "b.jsonl", lines=True)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "a.csv"), written, rtol=1e-12)


def test_a_model_is_wrapped_from_standard_input(folder, table, given, tmp_path):
    given(table[:200].to_json(orient="records", lines=True, double_precision=15).encode())
    place = tmp_path / "model.knothole"
    assert call("wrap", folder / "model.json", "-", "--density", "independent", "-o", place) == FINE
    assert kh.load(place).columns_.names == tuple(FEATURES)


def test_what_is_no_table_is_refused_by_its_name(wrapped, folder, tmp_path, given, capsys):
    def message(data: bytes) -> str:
        given(data)
        return refused(capsys, "predict", wrapped, "-")

    assert "standard input: lacks 4 of the model's 4 columns" in message(b"a,b\n1,2\n")
    assert "standard input: not a table" in message(b"")
    assert "standard input: line 2 is no JSON" in message(b'{"age": 1}\n{"age": \n')
    assert "line 1 is no JSON (an entry is there twice)" in message(b'{"age": 1, "age": 2}')
    assert "line 2 must be an object" in message(b'{"age": 1}\n[1]\n')
    assert "damaged" in message(b'{"age": "\xff"}\n')

"""Datasets are what they should be, or refused; splits share no row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.suite import datasets, sources
from benchmarks.suite.datasets import Dataset, Entry
from knothole.errors import DamagedFile, InvalidInput
from knothole.report.methods import Task


@pytest.fixture
def small(tmp_path, monkeypatch) -> pd.DataFrame:
    """A dataset of our own in the registry, with one class too rare to split."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=63).round(3),
            "hue": rng.choice(["red", "blue"], 63),
            "target": ["yes"] * 40 + ["no"] * 20 + ["rare"] * 3,
        }
    )
    frame.loc[5, "hue"] = None
    (tmp_path / "suite").mkdir()
    frame.to_csv(tmp_path / "suite" / "small.csv", index=False)
    entry = Entry(Task.BINARY, "suite/small.csv", datasets.content_sha256(frame))
    monkeypatch.setattr(datasets, "REGISTRY", {"small": entry})
    monkeypatch.setenv(datasets.FOLDER, str(tmp_path))
    return frame


def test_tables_have_typed_columns_and_coded_targets(small):
    found = datasets.load("small")
    assert found.table.columns.tolist() == ["size", "hue"] and len(found) == 60
    assert found.table["hue"].cat.categories.tolist() == ["blue", "red"]
    assert found.classes == ("no", "yes")
    np.testing.assert_array_equal(found.target, [1] * 40 + [0] * 20)
    assert found.table["hue"].isna().sum() == 1
    assert [column.kind.value for column in found.columns] == ["continuous", "categorical"]


def test_a_file_may_be_named_itself(small, tmp_path):
    found = datasets.load("small", tmp_path / "suite" / "small.csv")
    pd.testing.assert_frame_equal(found.table, datasets.load("small").table)


def test_another_version_is_refused(small, tmp_path):
    file = tmp_path / "suite" / "small.csv"
    file.write_text(file.read_text().replace("red", "green", 1))
    with pytest.raises(DamagedFile, match=r"'small': its content must have the SHA-256"):
        datasets.load("small")


def test_what_is_not_there_is_said(small, tmp_path):
    with pytest.raises(InvalidInput, match="name must be one of small; got 'odd'"):
        datasets.load("odd")
    (tmp_path / "suite" / "small.csv").unlink()
    with pytest.raises(InvalidInput, match=r"no file suite/small\.csv in"):
        datasets.load("small")


def test_without_a_folder_it_is_downloaded_and_still_checked(small, tmp_path, monkeypatch):
    monkeypatch.delenv(datasets.FOLDER)
    with pytest.raises(InvalidInput, match="'small' has no public source"):
        datasets.load("small")
    asked = []

    def retrieve(url, known_hash):
        asked.append(url)
        return str(tmp_path / "suite" / "small.csv")

    source = sources.Source("who/what", "abc", ("a b.csv",), lambda paths: pd.read_csv(paths[0]))
    monkeypatch.setattr("pooch.retrieve", retrieve)
    monkeypatch.setattr(sources, "SOURCES", {"small": source})
    assert len(datasets.load("small")) == 60
    assert asked == ["https://raw.githubusercontent.com/who/what/abc/a%20b.csv"]


def test_every_source_belongs_to_a_dataset():
    assert set(sources.SOURCES) <= set(datasets.REGISTRY)


@pytest.mark.parametrize("name", datasets.REGISTRY)
def test_the_suite_loads(data, name):
    found = datasets.load(name, data)
    assert len(found.table) == len(found.target) and "target" not in found.table
    if found.task is Task.REGRESSION:
        assert found.classes == () and np.isfinite(found.target).all()
    else:
        assert np.unique(found.target).tolist() == list(range(len(found.classes)))
        assert (len(found.classes) == 2) == (found.task is Task.BINARY)
    incomplete = found.table.isna().any(axis=1).mean()
    assert incomplete > 0.05 if name in datasets.NATURAL else incomplete < 0.02


# --- splits --------------------------------------------------------------------------------------


def numbered(rows: int, task: Task) -> Dataset:
    target = np.arange(rows) % 10 // 7 if task is Task.BINARY else np.arange(rows) + 0.0
    return Dataset("numbered", pd.DataFrame({"row": np.arange(rows)}), target, task)


@pytest.mark.parametrize("task", [Task.REGRESSION, Task.BINARY])
def test_parts_share_no_row_and_have_their_shares(task):
    dataset = numbered(1000, task)
    split = datasets.split(dataset, 3)
    parts = (split.train, split.valid, split.test)
    assert [len(part) for part in parts] == [600, 150, 250]
    rows = np.concatenate([part.table["row"] for part in parts])
    np.testing.assert_array_equal(np.sort(rows), np.arange(1000))
    for part in parts:
        np.testing.assert_array_equal(part.target, dataset.target[part.table["row"]])
        assert part.table.index.tolist() == list(range(len(part)))
        if task is Task.BINARY:
            assert part.target.mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("task", [Task.REGRESSION, Task.BINARY])
def test_four_repeats_have_no_test_row_in_common(task):
    dataset = numbered(1000, task)
    for first in (0, 4):
        tests = [datasets.split(dataset, first + part, max_rows=800).test for part in range(4)]
        rows = np.concatenate([test.table["row"] for test in tests])
        assert len(np.unique(rows)) == len(rows) == 800


def test_splits_are_seeded_and_large_tables_sampled():
    dataset = numbered(1000, Task.REGRESSION)
    one, same, other = (datasets.split(dataset, seed, max_rows=200) for seed in (1, 1, 2))
    assert [len(part) for part in (one.train, one.valid, one.test)] == [120, 30, 50]
    assert one.test.table.equals(same.test.table)
    assert not one.test.table.equals(other.test.table)

"""Sources: what repositories publish becomes the suite's tables, to the last value.

There is no network in tests. Files are written in the form in which the repositories have them
(from the suite's own), and must come back with the content's checksum.
"""

from __future__ import annotations

import tarfile

import numpy as np
import pandas as pd
import pytest

from benchmarks.suite import datasets, sources
from knothole.errors import DamagedFile, InvalidInput


def text(frame: pd.DataFrame, separator: str = ",", header: bool = False) -> str:
    """Without trailing zeros, "?" for missing values: as the files are."""
    return frame.to_csv(index=False, header=header, sep=separator, na_rep="?", float_format="%.16g")


def archive(path, name: str, frame: pd.DataFrame) -> None:
    file = path.with_suffix(".csv")
    frame.to_csv(file, index=False)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(file, arcname=f"folder/{name}")


def published(name: str, table: pd.DataFrame, paths: list) -> None:
    """Write a suite table the way its repository has it."""
    first = paths[0]
    if name == "concrete":
        first.write_text(text(table.rename(columns={"target": "strength"}), header=True))
    elif name == "wine_quality":
        for path, colour in zip(paths, ("red", "white"), strict=True):
            path.write_text(text(table[table["colour"] == colour].drop(columns="colour")))
    elif name == "bike_sharing_hour":
        extra = table.assign(instant=1, dteday="01/01/11", casual=0, registered=0)
        extra.rename(columns={"target": "cnt"}).to_csv(first, index=False)
    elif name == "california_housing":
        raw = table.rename(columns={"target": "median_house_value"})
        order = [*raw.columns[:8], "median_house_value", "ocean_proximity"]
        archive(first, "housing.csv", raw[order])
    elif name == "titanic":
        raw = table.rename(columns={"target": "Survived"})
        raw = raw.assign(Cabin=raw.pop("Deck") + "85", Name="Braund, Mr. Owen", Ticket="A/5 21171")
        archive(first, "train.csv", raw)
    elif name == "kin8nm":
        header = ",".join([*table.columns[:-1], "y"])
        first.write_text(
            header + "\n" + table.to_csv(index=False, header=False, float_format="%.7e")
        )
    elif name == "delta_ailerons":
        first.write_text(text(table.rename(columns={"target": "Sa"}), header=True))
    elif name == "adult":
        paths[0].write_text(text(table.iloc[:32561]) + "\n")
        rest = table.iloc[32561:]
        paths[1].write_text(
            "|1x3 Cross validator\n" + text(rest.assign(target=rest["target"] + "."))
        )
    elif name == "heart_hungarian":
        first.write_text(text(table, separator=";"))
    elif name == "hypothyroid":
        raw = table.copy()
        raw.insert(27, "TBG", np.nan)
        declared = "% about\n@relation hypothyroid\n@attribute age real\n\n@data\n"
        first.write_text(declared + text(raw) + "%\n%\n")
    elif name == "credit_approval":
        first.write_text("@relation credit\n@data\n" + text(table))
    else:
        first.write_text(text(table, header=name == "insurance"))


@pytest.mark.parametrize("name", sources.SOURCES)
def test_what_is_published_becomes_the_suites_table(data, tmp_path, monkeypatch, name):
    entry, source = datasets.REGISTRY[name], sources.SOURCES[name]
    paths = [tmp_path / file.replace("/", "-") for file in source.files]
    published(name, pd.read_csv(data / entry.file), paths)
    by_url = dict(zip(source.urls, paths, strict=True))
    monkeypatch.setattr("pooch.retrieve", lambda url, known_hash: str(by_url[url]))
    assert datasets.content_sha256(sources.download(name)) == entry.sha256


def test_a_source_that_changed_is_refused(data, tmp_path, monkeypatch):
    table = pd.read_csv(data / "suite" / "abalone.csv")
    table.loc[0, "Length"] += 0.001
    path = tmp_path / "abalone.csv"
    path.write_text(text(table))
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    monkeypatch.setattr("pooch.retrieve", lambda url, known_hash: str(path))
    with pytest.raises(DamagedFile, match="'abalone': its content must have the SHA-256"):
        datasets.load("abalone")


def test_an_archive_without_the_file_is_said(tmp_path):
    archive(tmp_path / "titanic.tgz", "other.csv", pd.DataFrame({"a": [1]}))
    with pytest.raises(DamagedFile, match=r"should contain the file 'train\.csv'"):
        sources.SOURCES["titanic"].prepare([tmp_path / "titanic.tgz"])


def test_lines_of_another_length_are_said(tmp_path):
    path = tmp_path / "kin8nm.data"
    path.write_text("1,2,3\n")
    with pytest.raises(DamagedFile, match=r"'kin8nm\.data' should have 9 fields in every line"):
        sources.SOURCES["kin8nm"].prepare([path])


def test_no_network_is_said_in_a_sentence(monkeypatch):
    pooch = pytest.importorskip("pooch")

    def unreachable(url, known_hash):
        raise ConnectionError(f"HTTPSConnectionPool: Max retries exceeded with url: {url} (...)")

    monkeypatch.setattr(pooch, "retrieve", unreachable)
    name = next(iter(sources.SOURCES))
    with pytest.raises(InvalidInput, match=r"could not be downloaded from .*KNOTHOLE_DATA") as said:
        sources.download(name)
    assert "Max retries" not in str(said.value)

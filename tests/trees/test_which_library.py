"""Libraries are found by class and by how a file begins, and a module has all about one."""

import os
import sys

import numpy as np
import pytest

from knothole.errors import DamagedFile, MissingExtra, UnsupportedModel
from knothole.trees import libraries, quarantine
from knothole.trees.read import read

HEADS = {
    "xgboost": b'{"learner": {}}',
    "lightgbm": b"tree\n",
    "catboost": b"CBM1",
    "own": b'{"format": "knothole trees"}',
}


@pytest.mark.parametrize("library", [*libraries.CLASSES, "own"])
def test_a_module_reads_and_writes(library):
    assert callable(libraries.reader_of(library).read)
    assert callable(libraries.reader_of(library).write)


@pytest.mark.parametrize("library", libraries.WITH_FILES)
def test_a_file_is_known_by_how_it_begins(library, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(HEADS[library])
    assert libraries.library_of(path) == libraries.library_of(str(path)) == library
    reader = libraries.reader_of(library)
    assert reader.SUFFIXES and callable(reader.load) and callable(reader.save)
    assert library == "own" or callable(reader.read_file)


def test_what_belongs_to_no_library_is_refused(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(DamagedFile, match="cannot be opened"):
        read(path)
    path.write_bytes(b"PK")
    with pytest.raises(DamagedFile, match="not a model file knothole knows"):
        read(path)
    with pytest.raises(
        UnsupportedModel,
        match="catboost, interpret, lightgbm, quantile_forest, sklearn, sksurv, xgboost",
    ):
        read(object())


@pytest.mark.parametrize("library", sorted(libraries.CLASSES.keys() & libraries.WITH_FILES))
def test_a_file_needs_its_library(library, tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(HEADS[library])
    (tmp_path / f"{library}.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    message = rf"not installed.*pip install 'knothole\[{library}\]'"
    with quarantine.LibraryProcess(library) as child, pytest.raises(MissingExtra, match=message):
        child.ask(path, np.zeros((1, 1)))


def test_json_of_catboost_needs_catboost(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    path.write_text('{"features_info": {}}')
    (tmp_path / "catboost.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    message = r"takes catboost itself to read it.*pip install 'knothole\[catboost\]'"
    with pytest.raises(MissingExtra, match=message):
        read(path)

"""Libraries are found by class and by how a file begins, and a folder has all about one."""

import os
import sys

import numpy as np
import pytest

from knothole.errors import DamagedFile, MissingExtra, UnsupportedModel
from knothole.trees.read import read
from knothole.trees.readers import quarantine, registry

HEADS = {
    "xgboost": b'{"learner": {}}',
    "lightgbm": b"tree\n",
    "catboost": b"CBM1",
    "own": b'{"format": "knothole trees"}',
}


@pytest.mark.parametrize("folder", [*registry.CLASSES, "own"])
def test_a_folder_reads_and_writes(folder):
    assert callable(registry.module_of(folder, "read").read)
    assert callable(registry.module_of(folder, "write").write)


@pytest.mark.parametrize("folder", registry.WITH_FILES)
def test_a_file_is_known_by_how_it_begins(folder, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(HEADS[folder])
    assert registry.library_of(path) == registry.library_of(str(path)) == folder
    files = registry.files_of(path)
    assert files.SUFFIXES and all(map(callable, (files.read, files.load, files.save)))


def test_what_belongs_to_no_library_is_refused(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(DamagedFile, match="cannot be opened"):
        read(path)
    path.write_bytes(b"PK")
    with pytest.raises(DamagedFile, match="not a model file knothole knows"):
        read(path)
    with pytest.raises(UnsupportedModel, match="catboost, lightgbm, sklearn, xgboost"):
        read(object())


@pytest.mark.parametrize("folder", sorted(registry.CLASSES.keys() & registry.WITH_FILES))
def test_a_file_needs_its_library(folder, tmp_path, monkeypatch):
    path = tmp_path / "model"
    path.write_bytes(HEADS[folder])
    (tmp_path / f"{folder}.py").write_text("raise ImportError('not installed')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    message = rf"not installed.*pip install 'knothole\[{folder}\]'"
    with quarantine.Child(folder) as child, pytest.raises(MissingExtra, match=message):
        child.replay(path, np.zeros((1, 1)))

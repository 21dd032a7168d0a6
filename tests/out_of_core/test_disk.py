"""What is kept on disk is as it was, and takes up room for no longer than it is needed."""

import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from knothole.out_of_core import disk
from knothole.out_of_core.disk import Spilled, SpillFile


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "place", lambda _=None: str(tmp_path))
    return tmp_path


def something(seed=0, rows=1000):
    rng = np.random.default_rng(seed)
    return {
        "z": rng.normal(size=(rows, 3)),
        "code": np.arange(rows, dtype=np.int16),
        "sets": {1: "a"},
        "column": np.arange(20.0).reshape(4, 5)[:, 2],
        "none": np.empty((0, 2)),
    }


def same(one, other):
    assert one.keys() == other.keys() and one["sets"] == other["sets"]
    for name in ("z", "code", "column", "none"):
        np.testing.assert_array_equal(one[name], other[name])
        assert one[name].dtype == other[name].dtype and one[name].flags.writeable


def test_what_was_kept_comes_back_as_often_as_wanted(folder):
    many = [Spilled("a", something(seed, 10 + 300 * seed)) for seed in range(5)]
    for _ in range(2):
        for seed, kept in enumerate(many):
            same(kept.read(), something(seed, 10 + 300 * seed))
    mine = many[0].read()
    mine["z"][:] = 0.0
    same(many[0].read(), something(0, 10))
    assert os.listdir(folder) == []  # no file has a name


def test_room_is_used_again_but_not_under_an_array(folder):
    first = Spilled("a", something(0))
    array = first.read()["z"]
    end = first._store._end
    del first
    second = Spilled("a", something(1))  # elsewhere: there is still an array of the first
    np.testing.assert_array_equal(array, something(0)["z"])
    assert second._store._end == 2 * end
    del array
    gc.collect()
    third = Spilled("a", something(2))
    assert third._store._end == 2 * end
    same(second.read(), something(1))
    same(third.read(), something(2))


def test_the_file_is_closed_with_the_last_that_is_in_it(folder):
    kept = Spilled("b", something())
    file, copy = kept._store.file, pickle.loads(pickle.dumps(kept))
    assert copy._store is kept._store and SpillFile._open["b"] is kept._store
    del kept
    same(copy.read(), something())
    del copy
    gc.collect()
    assert file.closed and "b" not in SpillFile._open


def test_there_is_room_only_where_something_can_be_written(folder, monkeypatch):
    assert 0 < disk.room() < np.inf
    monkeypatch.setattr(disk, "place", lambda _=None: str(folder / "nowhere"))
    assert disk.room() == 0.0


def test_files_of_a_worker_are_in_its_own_directory(cluster):
    places = cluster.run(lambda dask_worker: dask_worker.local_directory)
    assert cluster.run(disk.place) == places
    assert cluster.submit(disk.place).result() in places.values()


def test_a_process_that_is_killed_leaves_no_file(tmp_path):
    code = """
import os, signal, tempfile
import numpy as np
from knothole.out_of_core.disk import Spilled
kept = Spilled("a", np.ones(10**6))
assert kept.read().sum() == 10**6 and tempfile.gettempdir() == os.environ["TMPDIR"]
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert done.returncode == -9
    assert os.listdir(tmp_path) == []

"""``knothole predict --scheduler``: a file that is read here is answered by a cluster."""

import numpy as np
import pandas as pd
import pytest
from sklearn.tree import DecisionTreeRegressor
from tests.cli.running import call, refused

import knothole as kh
from knothole.cli.app import FINE


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A wrapped model, and a file of rows with missing values."""
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    model = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, X["a"] + X["b"])
    kh.wrap(model, X, density=kh.Mixture(2, random_state=0)).save(folder / "model.knothole")
    kh.missingness.mcar(X, 0.3, 1).to_csv(folder / "rows.csv", index=False)
    return folder


def test_a_cluster_answers_what_one_process_does(cluster, files):
    arguments = ["predict", files / "model.knothole", files / "rows.csv", "--std", "--chunk", 30]
    here, there = files / "here.csv", files / "there.csv"
    assert call(*arguments, "-o", here) == FINE
    assert call(*arguments, "-o", there, "--scheduler", cluster.scheduler.address) == FINE
    assert there.read_text() == here.read_text()
    assert len(pd.read_csv(there)) == 400


def test_errors_of_workers_are_told_as_here(cluster, files, capsys):
    rows = pd.read_csv(files / "rows.csv")
    rows.loc[50, "b"] = np.inf
    rows.to_csv(files / "bad.csv", index=False)
    arguments = ["predict", files / "model.knothole", files / "bad.csv", "--chunk", 30]
    arguments += ["-o", files / "out.csv"]
    told = refused(capsys, *arguments, "--scheduler", cluster.scheduler.address)
    assert "bad.csv: row 51, column 'b': must be a number; got inf" in told
    assert not (files / "out.csv").exists()


def test_a_scheduler_that_is_not_there_is_told(files, capsys):
    arguments = ["predict", files / "model.knothole", files / "rows.csv"]
    assert "there is none at 'nonsense://1'" in refused(
        capsys, *arguments, "--scheduler", "nonsense://1"
    )

"""``make suite`` from end to end on tiny tables: run, stop, continue, page."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.benchmarks.tables import use_small_datasets
from tests.cli.running import call, in_subprocess, refused

from benchmarks.suite.__main__ import _peers, suite
from benchmarks.suite.peers import own
from benchmarks.suite.peers.base import Native
from benchmarks.suite.peers.roster import UNCORRECTED
from knothole.cli.app import FINE, INTERRUPTED, WRONG_USAGE
from knothole.densities.mixture.density import Factorized
from knothole.report.methods import Task

PEERS = "knothole,native,median"
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tiny(tmp_path_factory, monkeypatch):
    """Tiny tables under known names, a small model, and a density that is quick to learn."""
    folder = tmp_path_factory.mktemp("data")
    tasks = {"abalone": Task.REGRESSION, "titanic": Task.BINARY}
    use_small_datasets(monkeypatch, folder, tasks, trees=4)
    quick = partial(own.wrap, density=Factorized())
    monkeypatch.setattr(own, "wrap", quick)


def benchmark(output, *options):
    common = ("--datasets", "abalone,titanic", "--repeats", 2, "--workers", 1)
    return call("-o", output, *common, *options, command=suite)


def test_a_run_prints_draws_and_writes_its_page(tmp_path, capsys):
    run, docs = tmp_path / "run", tmp_path / "docs"
    assert benchmark(run, "--peers", PEERS, "--first", 4, "--page", docs) == FINE
    shown = capsys.readouterr()
    assert "knothole against each, cells by paired tests" in shown.out
    assert "best mean rank of all methods: " in shown.out and "**" not in shown.out
    assert {"results.parquet", "ranks.png", "times.png", "duels.png"} <= {
        file.name for file in run.iterdir()
    }
    page = (docs / "suite.md").read_text()
    assert "## Missing values at deployment only" in page
    assert "- 2 datasets, 2 repeats (number 4, 5), at most" in page
    assert "- Skipped: MICE (not asked for in this run)." in page
    assert "- Skipped: knothole refitted (it learns from missing values in training" in page
    # Beside it, another setting, in which ours are two; the page then has both.
    same = "knothole,knothole refitted,native"
    assert (
        benchmark(tmp_path / "same", "--peers", same, "--missing", "same", "--page", docs) == FINE
    )
    both = (docs / "suite.md").read_text()
    assert "## Missing values at deployment only" in both and "by the same mechanism\n" in both
    assert "knothole refitted: no loss in at least 80 % of cells against native" in both
    # Another process writes the same page from the folder of the run alone.
    (docs / "suite.md").unlink()
    done = in_subprocess(
        "-o", run, "--page", docs, "--page-only", module="benchmarks.suite", cwd=ROOT
    )
    assert done.returncode == FINE, done.stderr
    assert (docs / "suite.md").read_text() == both


def test_a_run_that_was_stopped_continues(tmp_path, capsys, monkeypatch):
    fits = []
    fit_it = Native.fit

    def fit(self, training):
        fits.append(training)
        if len(fits) == 3:
            raise KeyboardInterrupt
        return fit_it(self, training)

    monkeypatch.setattr(Native, "fit", fit)
    assert benchmark(tmp_path, "--peers", "native,median") == INTERRUPTED
    assert "the same command continues" in capsys.readouterr().err
    assert not (tmp_path / "results.parquet").exists()
    assert benchmark(tmp_path, "--peers", "native,median") == FINE
    assert len(fits) == 2 + 1 + 2  # two were kept, one was stopped, two were left
    results = pd.read_parquet(tmp_path / "results.parquet")
    assert len(results) == 2 * 2 * 7 * 2 and (results["failure"] == "").all()
    assert benchmark(tmp_path, "--peers", "native,median") == FINE
    assert len(fits) == 5


def test_rivals_of_a_page_are_not_run_again(tmp_path, capsys, monkeypatch):
    docs = tmp_path / "docs"
    assert benchmark(tmp_path / "run", "--peers", PEERS, "--page", docs) == FINE
    before = pd.read_parquet(tmp_path / "run" / "results.parquet")

    def fit(self, training):
        raise AssertionError("a rival was run")

    monkeypatch.setattr(Native, "fit", fit)
    again = ("--peers", PEERS, "--rivals", docs)
    assert benchmark(tmp_path / "again", *again) == FINE
    assert "cells of rivals are from" in capsys.readouterr().err
    after = pd.read_parquet(tmp_path / "again" / "results.parquet")
    assert (after["failure"] == "").all() and len(after) == len(before)
    scores = ["rmse", "log_loss", "auc"]
    np.testing.assert_allclose(after[scores], before[scores], rtol=1e-6)
    groups = [np.stack(frame["groups"].to_numpy()) for frame in (before, after)]
    np.testing.assert_allclose(*groups, rtol=1e-6)
    # Other rows are other results.
    message = refused(capsys, "-o", tmp_path / "other", "--max-rows", 150, *again, command=suite)
    assert "were run with other max_rows" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--peers", "odd"], "--peers must be among knothole, knothole refitted, knothole grown"),
        (
            ["--peers", "knothole refitted"],
            "'knothole refitted', which learns from missing values in training",
        ),
        (["--datasets", "odd"], "datasets must be among abalone, titanic; got 'odd'"),
        (["--page", "docs", "--page-only"], "has no settings.json"),
    ],
)
def test_what_cannot_be_run_is_refused(capsys, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, "-o", tmp_path / "run", *options, command=suite)
    assert not (tmp_path / "docs").exists()


def test_a_page_must_be_named(capsys, tmp_path):
    assert call("-o", tmp_path, "--page-only", command=suite) == WRONG_USAGE
    assert "--page-only needs --page" in capsys.readouterr().err


def test_by_default_all_peers_run_that_have_something_to_do():
    at_deployment, in_training = ({peer.name for peer in _peers(None, incomplete)}
                                  for incomplete in ("deployment", "changed"))  # fmt: skip
    assert at_deployment - in_training == {"retrained x1", UNCORRECTED}
    assert in_training - at_deployment == {"knothole refitted", "knothole grown"}

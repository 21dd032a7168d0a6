"""The benchmark of values missing at random in training and deployment, and its page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.benchmarks.tables import make_missing, small_dataset, small_training

from benchmarks import mcar
from benchmarks.suite.peers.base import Native
from knothole.report.methods import Filled, Task, outputs

DOCS = Path(__file__).parents[2] / "docs"
# Errors of a peer as multiples of native's, everywhere.
FACTOR = {"native": 1.0, "knothole": 0.5, "MICE": 2.0}


def made_up():
    """Two tables of different scales; peers without a factor of their own are at 1.5."""
    rows = [
        {"dataset": dataset, "task": "regression", "scenario": scenario.name, "peer": peer.name,
         "rmse": scale * FACTOR.get(peer.name, 1.5), "log_loss": np.nan}
        for scenarios, peers in mcar.PARTS.values()
        for dataset, scale in (("abalone", 1.0), ("concrete", 7.0))
        for scenario in scenarios
        for peer in peers
    ]  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("imputer", [None, Filled("mean")])
def test_the_mask_says_what_was_missing(imputer):
    training = small_training(Task.REGRESSION, has_missing=True)
    training = replace(training, table=make_missing(training.table, 3))
    peer = mcar.WithMask("name", imputer).fit(training)
    assert peer.name == "name + mask"
    table = make_missing(small_dataset(Task.REGRESSION, rows=50, seed=1).table, 7)
    seen = peer._with_mask(table)
    masks = seen[[name for name in seen if name.endswith(" is missing")]]
    np.testing.assert_array_equal(masks.to_numpy(), table.isna().to_numpy())
    assert seen[table.columns].isna().any(axis=None) == (imputer is None)
    np.testing.assert_array_equal(peer.predict(table), outputs(peer.model_, seen, training.task))
    assert set(peer.model_.feature_names_in_) == set(seen)


def test_errors_are_over_natives_and_the_least_is_counted():
    found = mcar.ratios(made_up())
    assert (found[Native.name] == 1).all() and (found["knothole"] == 0.5).all()
    shown_by_mark = mcar.tables(made_up())
    assert list(shown_by_mark) == ["training", "deployment", "target"]
    assert "without y" in shown_by_mark["target"] and "native" not in shown_by_mark["target"]
    for mark in ("training", "deployment"):
        shown = shown_by_mark[mark]
        lines = {line.split(" | ")[0].strip("| "): line for line in shown.splitlines()}
        assert lines["knothole"] == "| knothole | 0.500 | 2 | 0.500 | 2 |"
        assert lines["MICE"] == "| MICE | 2.000 | 0 | 2.000 | 0 |"


def test_the_page_has_what_was_measured(tmp_path):
    (tmp_path / "results").mkdir()
    for name in (mcar.PAGE, f"results/{mcar.FILE}"):
        (tmp_path / name).write_bytes((DOCS / name).read_bytes())
    mcar.write(tmp_path)
    assert (tmp_path / mcar.PAGE).read_text() == (DOCS / mcar.PAGE).read_text()
    for shown in mcar.tables(pd.read_csv(DOCS / "results" / mcar.FILE)).values():
        assert shown in (DOCS / mcar.PAGE).read_text()


def test_a_page_without_its_marks_is_refused(tmp_path):
    (tmp_path / "results").mkdir()
    made_up().to_csv(tmp_path / "results" / mcar.FILE, index=False)
    (tmp_path / mcar.PAGE).write_text("# A page\n")
    with pytest.raises(ValueError, match="one mark '<!-- mcar training -->'; it has 0"):
        mcar.write(tmp_path)

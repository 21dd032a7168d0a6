"""A run that stops continues, never mixes settings, and shows every peer the same masks."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from tests.benchmarks.tables import small_dataset, use_small_datasets

from benchmarks.suite import cells, datasets, models, runner, scenarios
from benchmarks.suite.peers.base import Native
from benchmarks.suite.peers.own import KnotholeRefitted
from benchmarks.suite.peers.trained import Retrained
from benchmarks.suite.scenarios import Mechanism, Scenario
from knothole.errors import DamagedFile, InvalidInput
from knothole.report.methods import Task

SCENARIOS = (
    Scenario(Mechanism("mcar", 0.3)),
    Scenario(Mechanism("outage", place=0)),
    Scenario(Mechanism("mar", 0.3), Mechanism("mcar", 0.5)),
)


class Counted(Native):
    """Notes what it is given."""

    def __init__(self, name="counted", fail=False):
        self.name, self.fail = name, fail

    log: list[tuple] = []  # noqa: RUF012 (shared on purpose: the runner works on copies)

    def fit(self, training):
        self.log.append(("fit", self.name, training.table.copy()))
        if self.fail:
            raise RuntimeError("cannot")
        return super().fit(training)

    def predict(self, table):
        self.log.append(("predict", self.name, table.copy()))
        return super().predict(table)


@pytest.fixture(autouse=True)
def known(tmp_path, monkeypatch):
    """Our own datasets and a small model."""
    folder = tmp_path / "data"
    folder.mkdir()
    tasks = {"numbers": Task.REGRESSION, "labels": Task.MULTICLASS}
    use_small_datasets(monkeypatch, folder, tasks, trees=5)
    monkeypatch.setattr(Counted, "log", [])


def plan(*peers, **options) -> runner.Plan:
    options = {"datasets": ["numbers", "labels"], "scenarios": SCENARIOS, "repeats": 2} | options
    return runner.Plan(peers, **options)


def run(some_plan, folder) -> pd.DataFrame:
    return runner.run(some_plan, folder, workers=1, show=False)


def test_results_are_complete_and_in_parquet(tmp_path):
    results = run(plan(Native(), Retrained(2)), tmp_path / "out")
    assert len(results) == 2 * 2 * 3 * 2
    keys = ["dataset", "repeat", "scenario", "peer"]
    assert not results.duplicated(keys).any() and (results["failure"] == "").all()
    assert results.loc[results["dataset"] == "numbers", "rmse"].notna().all()
    assert results.loc[results["dataset"] == "labels", ["log_loss", "auc"]].notna().all(axis=None)
    assert (results["groups"].map(len) == cells.GROUPS).all()
    stored = pd.read_parquet(tmp_path / "out" / "results.parquet")
    pd.testing.assert_frame_equal(stored[[*keys, "rmse"]], results[[*keys, "rmse"]])


def test_a_second_run_does_nothing_and_a_lost_cell_is_run_again(tmp_path):
    first = run(plan(Counted()), tmp_path)
    done = len(Counted.log)
    again = run(plan(Counted()), tmp_path)
    assert len(Counted.log) == done
    pd.testing.assert_frame_equal(first, again)
    (tmp_path / "cells" / "numbers" / "1" / "counted.json").unlink()
    once_more = run(plan(Counted()), tmp_path)
    assert len(Counted.log) == done + done // 4
    unchanged = ["dataset", "repeat", "scenario", "rmse", "log_loss", "auc"]
    pd.testing.assert_frame_equal(once_more[unchanged], first[unchanged])
    assert not list(tmp_path.glob("**/.*"))  # nothing half-written stays


def test_more_peers_and_repeats_can_be_added(tmp_path):
    run(plan(Counted(), repeats=1), tmp_path)
    Counted.log.clear()
    results = run(plan(Counted(), Counted("another"), repeats=2), tmp_path)
    assert len(results) == 2 * 2 * 3 * 2
    assert sum(entry[0] == "fit" for entry in Counted.log if entry[1] == "counted") == 2 * 2


def test_repeats_begin_where_asked_and_stand_beside_others(tmp_path):
    native = {"datasets": ["numbers"], "scenarios": SCENARIOS[:1]}
    later = run(plan(Native(), first=4, **native), tmp_path)
    assert sorted(later["repeat"]) == [4, 5]
    both = run(plan(Native(), repeats=5, **native), tmp_path)
    assert sorted(both["repeat"]) == [0, 1, 2, 3, 4, 5]
    pd.testing.assert_frame_equal(both[both["repeat"] > 3].reset_index(drop=True), later)
    assert both["rmse"].nunique() == 6


def test_a_folder_of_other_settings_is_refused(tmp_path):
    run(plan(Native()), tmp_path)
    with pytest.raises(InvalidInput, match="begun with other scenarios and max_rows"):
        run(plan(Native(), scenarios=SCENARIOS[:1], max_rows=50), tmp_path)


def test_a_peer_that_fails_is_noted_and_tried_again(tmp_path):
    results = run(plan(Counted(fail=True), Native()), tmp_path)
    failed = results[results["peer"] == "counted"]
    assert (failed["failure"] == "RuntimeError: cannot").all() and failed["rmse"].isna().all()
    assert (results.loc[results["peer"] == "native", "failure"] == "").all()
    mended = run(plan(Counted(), Native()), tmp_path)
    assert (mended["failure"] == "").all()


def test_predictions_that_are_not_finite_are_a_failure(tmp_path):
    class Lost(Native):
        name = "lost"

        def predict(self, table):
            return super().predict(table) * np.nan

    results = run(plan(Lost(), datasets=["numbers"], repeats=1), tmp_path)
    assert (results["failure"] == "predictions are not finite").all()


def test_peers_whose_libraries_are_absent_are_skipped_with_a_word(tmp_path, capsys):
    class Absent(Native):
        name, requires = "absent", ("a_library_that_is_not_there",)

    results = runner.run(
        plan(Absent(), Native(), datasets=["numbers"], repeats=1), tmp_path, workers=1
    )
    assert set(results["peer"]) == {"native"}
    assert "absent is skipped: a_library_that_is_not_there is not installed." in (
        capsys.readouterr().out
    )


def test_every_peer_sees_the_same_missing_values_and_fits_as_often_as_it_must(tmp_path):
    run(plan(Counted(), Counted("other"), datasets=["numbers"], repeats=1), tmp_path)
    by_peer = {
        name: [entry for entry in Counted.log if entry[1] == name] for name in ("counted", "other")
    }
    for mine, theirs in zip(*by_peer.values(), strict=True):
        assert mine[0] == theirs[0]
        pd.testing.assert_frame_equal(mine[2], theirs[2])
    # Once on the complete training table, once on that with missing values.
    fits = [entry[2] for entry in by_peer["counted"] if entry[0] == "fit"]
    assert [bool(table.isna().any(axis=None)) for table in fits] == [False, True]
    mcar, outage, mar = (entry[2] for entry in by_peer["counted"] if entry[0] == "predict")
    assert 0.2 < mcar.isna().to_numpy().mean() < 0.4
    assert outage.isna().all().sum() == 1 and outage.isna().any().sum() == 1
    assert 0 < mar.isna().any().sum() < 4


def test_a_damaged_cell_is_named(tmp_path):
    run(plan(Native(), datasets=["numbers"], repeats=1), tmp_path)
    (tmp_path / "cells" / "numbers" / "0" / "native.json").write_text("[{")
    with pytest.raises(DamagedFile, match=r"native\.json' is damaged; delete it"):
        runner.collect(tmp_path)


def test_settings_say_versions_and_model(tmp_path):
    run(plan(Native(), datasets=["numbers"], repeats=1), tmp_path)
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert {"knothole", "numpy", "scikit-learn"} <= set(settings["versions"])
    assert settings["model"]["n_estimators"] == 5


def test_reasons_to_skip_are_kept_until_a_peer_is_there(tmp_path):
    class Absent(Native):
        name, requires = "absent", ("a_library_that_is_not_there", "nor_this")

    run(plan(Absent(), Native(), datasets=["numbers"], repeats=1), tmp_path)
    reason = "a_library_that_is_not_there and nor_this are not installed"
    assert runner.skipped(tmp_path) == {"absent": reason}
    run(plan(Native(), datasets=["numbers"], repeats=1), tmp_path)
    assert runner.skipped(tmp_path) == {"absent": reason}
    run(plan(Counted("absent"), datasets=["numbers"], repeats=1), tmp_path)
    assert runner.skipped(tmp_path) == {}


def test_a_peer_for_missing_training_values_is_refused_where_there_are_none():
    peer = KnotholeRefitted()
    with pytest.raises(
        InvalidInput, match="'knothole refitted', which learns from missing values in training"
    ):
        plan(peer)
    assert plan(peer, scenarios=SCENARIOS[2:]).peers == (peer,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets": ["odd"]}, "datasets must be among numbers, labels; got 'odd'"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"first": -1}, "first must not be negative; got -1"),
        ({"scenarios": ()}, "at least one peer and one scenario"),
    ],
)
def test_plans_are_checked(options, message):
    with pytest.raises(InvalidInput, match=message):
        plan(Native(), **options)


# --- scenarios -----------------------------------------------------------------------------------


def test_columns_are_ranked_by_what_they_are_worth():
    dataset = small_dataset(Task.REGRESSION)
    useless = dataset.table.assign(noise=np.random.default_rng(0).normal(size=len(dataset)))
    dataset = datasets.Dataset("d", useless, useless["count"] * 5 + useless["a"], Task.REGRESSION)
    model = models.xgboost_factory(Task.REGRESSION, 0)().fit(dataset.table, dataset.target)
    assert scenarios.by_importance(model, dataset, 0)[0] == "count"


def test_the_same_mechanism_holds_in_both_tables_of_a_stage():
    stage = cells.Stage.set_up(datasets.load("numbers"), 0, None)
    scenario = Scenario(Mechanism("mar", 0.3), Mechanism("mar", 0.3))
    train, test = stage.training(scenario).table, stage.test_table(scenario)
    np.testing.assert_array_equal(train.isna().any(), test.isna().any())
    assert stage.training(scenario).has_missing
    assert not stage.training(Scenario(Mechanism("mar", 0.3))).has_missing


def test_names_tell_scenarios_apart():
    every = (*scenarios.DEPLOYMENT, *scenarios.SAME, *scenarios.CHANGED)
    assert len({scenario.name for scenario in every}) == len(every)
    with pytest.raises(InvalidInput, match="kind must be"):
        Mechanism("odd")


@pytest.mark.slow
def test_workers_give_the_results_of_one_process(data, tmp_path, monkeypatch):
    monkeypatch.undo()
    some = runner.Plan(
        [Native()], datasets=["energy_heating"], scenarios=SCENARIOS, repeats=2, data=str(data)
    )
    one = runner.run(some, tmp_path / "one", workers=1, show=False)
    two = runner.run(some, tmp_path / "two", workers=2, show=False)
    pd.testing.assert_frame_equal(one[["scenario", "rmse"]], two[["scenario", "rmse"]])

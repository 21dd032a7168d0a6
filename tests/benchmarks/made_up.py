"""Results that nobody measured, so that their verdict is known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from benchmarks.suite.datasets import REGISTRY
from benchmarks.suite.results import SEEDS, Suite
from benchmarks.suite.scenarios import SETTINGS
from knothole.report.methods import Task

DATASETS = ("abalone", "concrete", "titanic")


def made_up(errors: Mapping[str, float], setting: str = "deployment", **special) -> Suite:
    """A suite in which every peer has its error in every cell, but for noise.

    ``special`` has other errors by dataset: ``titanic={"knothole": 2.0}``. An infinite error is a
    failure.
    """
    rng = np.random.default_rng(0)
    names = [scenario.name for scenario in SETTINGS[setting]]
    rows = []
    for dataset in DATASETS:
        task = REGISTRY[dataset].task
        for scenario in names:
            for repeat in range(2):
                for peer, error in (errors | special.get(dataset, {})).items():
                    rows.append(_row(dataset, task, scenario, repeat, peer, error, rng))
    about = {
        "setting": setting, "datasets": list(DATASETS), "scenarios": names, "repeats": 2,
        "max_rows": 1000, "model": {"n_estimators": 5}, "seeds": SEEDS,
        "skipped": {"ydf": "ydf is not installed"}, "python": "3.11.0",
        "versions": {"knothole": "0.1.0"},
    }  # fmt: skip
    return Suite(pd.DataFrame(rows), about)


def _row(dataset, task, scenario, repeat, peer, error, rng) -> dict:
    about = {
        "dataset": dataset, "task": task.value, "repeat": repeat, "scenario": scenario,
        "peer": peer, "rmse": np.nan, "log_loss": np.nan, "auc": np.nan,
        "fit_seconds": np.nan, "predict_seconds": np.nan, "groups": (), "failure": "broke",
    }  # fmt: skip
    if not np.isfinite(error):
        return about
    groups = tuple(error * (1 + 0.01 * rng.normal(size=20)))
    scores = {"rmse": error} if task is Task.REGRESSION else {"log_loss": error, "auc": 1 / error}
    seconds = {"fit_seconds": 1.0, "predict_seconds": 0.1 * error}
    return about | scores | seconds | {"groups": groups, "failure": ""}

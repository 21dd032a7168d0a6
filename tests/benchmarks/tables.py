"""Small tables with known structure for the benchmark's tests."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from xgboost import XGBClassifier, XGBRegressor

from benchmarks.suite import datasets, models, runner
from benchmarks.suite.datasets import Dataset, Entry
from benchmarks.suite.peers.base import Training
from knothole import missingness
from knothole.report.methods import Task


def small_dataset(task: Task, rows: int = 240, seed: int = 0) -> Dataset:
    """Two correlated numbers, a whole number and a category that goes with them."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=rows)
    table = pd.DataFrame(
        {
            "a": a,
            "b": a + 0.3 * rng.normal(size=rows),
            "count": rng.integers(0, 6, rows),
            "hue": pd.Categorical(np.where(a > 0.2, "red", rng.choice(["blue", "grey"], rows))),
        }
    )
    signal = (2 * a + table["count"] + 2 * (table["hue"] == "blue")).to_numpy()
    if task is Task.REGRESSION:
        return Dataset("small", table, signal, task)
    n_classes = 2 if task is Task.BINARY else 3
    cuts = np.quantile(signal, np.arange(1, n_classes) / n_classes)
    classes = tuple(f"class {k}" for k in range(n_classes))
    return Dataset("small", table, np.searchsorted(cuts, signal), task, classes)


def use_small_datasets(monkeypatch, folder, tasks: dict[str, Task], trees: int) -> None:
    """Let the benchmark know small tables under these names and nothing else, and a small model."""
    registry = {}
    for name, task in tasks.items():
        dataset = small_dataset(task)
        dataset.table.assign(target=dataset.target).to_csv(folder / f"{name}.csv", index=False)
        frame = pd.read_csv(folder / f"{name}.csv")
        registry[name] = Entry(task, f"{name}.csv", datasets.content_sha256(frame))
    monkeypatch.setattr(datasets, "REGISTRY", registry)
    monkeypatch.setenv(datasets.FOLDER, str(folder))
    monkeypatch.setitem(models.HYPERPARAMETERS, "n_estimators", trees)
    runner._stage.cache_clear()


def small_model(task: Task):
    kind = XGBRegressor if task is Task.REGRESSION else XGBClassifier
    return partial(
        kind, n_estimators=10, max_depth=3, learning_rate=0.3, subsample=1.0, n_jobs=1,
        enable_categorical=True,
    )  # fmt: skip


def make_missing(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    return missingness.mcar(table, 0.3, seed)


def small_training(task: Task, **options) -> Training:
    dataset = small_dataset(task)
    options = {"make_missing": make_missing} | options
    return Training(dataset.table, dataset.target, task, small_model(task), **options)

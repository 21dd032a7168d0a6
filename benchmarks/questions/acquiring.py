"""What to find out next: Spam against a policy that was trained for it, and small tables."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xgboost as xgb
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import knothole as kh
from benchmarks.suite.datasets import load
from benchmarks.workers import spawned
from knothole.arrays import Floats

#: AUROC of GDFS (iancovert/dynamic-selection, its notebook) after 1 to 10 features.
PUBLISHED = (82.74, 88.83, 92.62, 95.25, 95.76, 96.27, 96.36, 96.61, 96.66, 96.92)
#: Tables of the suite, and how many rows of each.
TABLES = ("concrete", "bike_sharing_hour", "california_housing", "abalone")
TRAIN, TEST = 1500, 150


def parts(rows: int) -> list[NDArray[np.intp]]:
    """Rows for the test, to stop training by, and to train on."""
    order = np.arange(rows)
    np.random.default_rng(0).shuffle(order)
    fifth = rows // 5
    return np.split(order, [fifth, 2 * fifth])


class Spam:
    """The table, split as the published policy's was, and a frozen model under a mixture."""

    def __init__(self) -> None:
        table = pd.read_csv(Path(os.environ["KNOTHOLE_DATA"]) / "anchors" / "spam.csv")
        y = table.pop("Outcome").to_numpy()
        test, valid, train = parts(len(table))
        X = table.astype(float)
        self.model = xgb.XGBClassifier(
            n_estimators=300, max_depth=4, learning_rate=0.1, subsample=0.8, colsample_bytree=0.5,
            early_stopping_rounds=20, n_jobs=1, random_state=0,
        )  # fmt: skip
        self.model.fit(X.iloc[train], y[train], eval_set=[(X.iloc[valid], y[valid])], verbose=False)
        self.robust = kh.wrap(
            self.model, X.iloc[train], density=kh.Mixture(random_state=0), tol=None
        )
        self.test, self.y = X.iloc[test].reset_index(drop=True), y[test]

    def followed(self, part: int, parts: int) -> Floats:
        """Probabilities of a part of the test rows after 1 to 10 features, (features, rows)."""
        truth = self.test[part::parts]
        rows, found = truth * np.nan, []
        for _ in PUBLISHED:
            gain = self.robust.acquire(rows, criterion="entropy").gain
            for row, name in gain.fillna(-np.inf).idxmax(axis=1).items():
                rows.loc[row, name] = truth.loc[row, name]
            found.append(self.robust.predict_proba(rows).iloc[:, 1].to_numpy())
        return np.array(found)


def _followed(part: int, parts: int) -> Floats:
    return Spam().followed(part, parts)


def spam(workers: int = 2) -> dict[str, Any]:
    """AUROC in percent after 1 to 10 features; rows are shared among processes."""
    own = Spam()
    with spawned(workers) as pool:
        done = list(pool.map(_followed, range(workers), [workers] * workers))
    found = np.empty((len(PUBLISHED), len(own.y)))
    for part, probabilities in enumerate(done):
        found[:, part::workers] = probabilities
    whole = own.model.predict_proba(own.test)[:, 1]
    return {
        "auroc": [100 * float(roc_auc_score(own.y, one)) for one in found],
        "published": list(PUBLISHED),
        "all known": 100 * float(roc_auc_score(own.y, whole)),
        "trees": int(own.model.best_iteration) + 1,
    }


def tables() -> dict[str, Any]:
    """RMSE, as a share of that with nothing known, after each column; by three orders."""
    return {name: _table(name) for name in TABLES}


def _table(name: str) -> dict[str, list[float]]:
    whole = load(name)
    X, y = whole.table.select_dtypes("number"), whole.target
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[:-TEST][:TRAIN], order[-TEST:]
    model = xgb.XGBRegressor(n_estimators=60, max_depth=4, n_jobs=1).fit(X.iloc[train], y[train])
    robust = kh.wrap(model, X.iloc[train], density=kh.Mixture(16, random_state=0), tol=None)
    truth = X.iloc[test].astype(float)
    rng = np.random.default_rng(1)
    by_importance = np.argsort(-model.feature_importances_)
    shuffled = np.argsort(rng.random(truth.shape), axis=1)

    def ours(rows: pd.DataFrame, _: int) -> Any:
        gain = robust.acquire(rows).gain.fillna(-np.inf).to_numpy()
        return gain.argmax(axis=1)

    ways: dict[str, Callable[[pd.DataFrame, int], Any]] = {
        "at random": lambda _, step: shuffled[:, step],
        "global importance": lambda _, step: np.full(len(truth), by_importance[step]),
        "robust.acquire": ours,
    }
    return {label: _errors(robust, truth, y[test], way) for label, way in ways.items()}


def _errors(robust: Any, truth: pd.DataFrame, y: Floats, way: Any) -> list[float]:
    rows, found = truth * np.nan, []
    steps = min(6, truth.shape[1])
    for step in range(steps + 1):
        found.append(float(np.sqrt(np.mean((robust.predict(rows) - y) ** 2))))
        if step < steps:
            values, best = rows.to_numpy(copy=True), way(rows, step)
            at = np.arange(len(values))
            values[at, best] = truth.to_numpy()[at, best]
            rows = pd.DataFrame(values, truth.index, truth.columns)
    return [error / found[0] for error in found]

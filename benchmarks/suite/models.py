"""The model under test, its predictions, and how wrong they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.suite.datasets import Task
from knothole.arrays import Floats
from knothole.errors import MissingExtra

#: Makes a new, unfitted model.
ModelFactory = Callable[[], Any]

#: The same for every dataset and every peer; chosen before any of them was run, never tuned.
HYPERPARAMETERS: dict[str, Any] = {
    "n_estimators": 150,
    "max_depth": 5,
    "learning_rate": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "reg_lambda": 1.0,
    "tree_method": "hist",
    "enable_categorical": True,
    "n_jobs": 1,
}


def xgboost_factory(task: Task, seed: int) -> ModelFactory:
    """A factory of XGBoost models for a task.

    Categorical columns are left to XGBoost itself (``enable_categorical``).
    """
    try:
        import xgboost
    except ImportError as error:
        raise MissingExtra("the benchmark needs xgboost: pip install 'knothole[all]'.") from error
    kind = xgboost.XGBRegressor if task is Task.REGRESSION else xgboost.XGBClassifier
    return partial(kind, **HYPERPARAMETERS, random_state=seed)


def outputs(model: Any, table: pd.DataFrame, task: Task) -> Floats:
    """Predictions (rows,) of a regression, probabilities (rows, classes) of a classification."""
    found = model.predict(table) if task is Task.REGRESSION else model.predict_proba(table)
    return np.asarray(found, dtype=np.float64)


def row_losses(task: Task, target: NDArray[Any], predicted: Floats) -> Floats:
    """Loss of each row: squared error, or minus the log of the true class's probability.

    Examples
    --------
    >>> row_losses(Task.REGRESSION, np.array([1.0, 2.0]), np.array([1.0, 4.0])).tolist()
    [0.0, 4.0]
    """
    if task is Task.REGRESSION:
        return np.asarray((target - predicted) ** 2)
    smallest = np.finfo(np.float32).eps  # no method is ruined by a single sure mistake
    clipped = np.clip(predicted, smallest, 1.0)
    clipped /= clipped.sum(axis=1, keepdims=True)
    return np.asarray(-np.log(clipped[np.arange(len(target)), target]))


def scores(task: Task, target: NDArray[Any], predicted: Floats) -> dict[str, float]:
    """RMSE of a regression; log loss and AUC of a classification (several: one against the rest).

    Examples
    --------
    >>> scores(Task.REGRESSION, np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    {'rmse': 1.4142135623730951}
    """
    losses = row_losses(task, target, predicted)
    if task is Task.REGRESSION:
        return {"rmse": float(np.sqrt(losses.mean()))}
    binary = predicted.shape[1] == 2
    chance = predicted[:, 1] if binary else predicted / predicted.sum(axis=1, keepdims=True)
    auc = roc_auc_score(target, chance, multi_class="ovr", labels=np.arange(predicted.shape[1]))
    return {"log_loss": float(losses.mean()), "auc": float(auc)}

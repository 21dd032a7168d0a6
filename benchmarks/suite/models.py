"""The model under test, and how wrong its predictions are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from knothole.arrays import Floats
from knothole.report.methods import Task, measure

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
    kind = xgboost.XGBRegressor if task is Task.REGRESSION else xgboost.XGBClassifier
    return partial(kind, **HYPERPARAMETERS, random_state=seed)


def scores(task: Task, target: NDArray[Any], predicted: Floats) -> dict[str, float]:
    """RMSE of a regression; log loss and AUC of a classification (of several: one against all)."""
    errors = measure(task, target, predicted)
    if task is Task.REGRESSION:
        return {"rmse": errors["RMSE"]}
    binary = predicted.shape[1] == 2
    chance = predicted[:, 1] if binary else predicted / predicted.sum(axis=1, keepdims=True)
    auc = roc_auc_score(target, chance, multi_class="ovr", labels=np.arange(predicted.shape[1]))
    return {"log_loss": errors["log loss"], "auc": float(auc)}

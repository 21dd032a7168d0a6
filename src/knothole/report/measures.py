"""What is predicted, and how wrong predictions are: the same for every method."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.arrays import Floats


class Task(StrEnum):
    """What is predicted."""

    REGRESSION = "regression"
    BINARY = "binary"
    MULTICLASS = "multiclass"


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


def measure(task: Task, target: NDArray[Any], predicted: Floats) -> dict[str, float]:
    """The errors of predictions by their names, the main one first.

    Examples
    --------
    >>> measure(Task.REGRESSION, np.array([1.0, 2.0]), np.array([1.0, 4.0]))
    {'RMSE': 1.4142135623730951}
    """
    losses = row_losses(task, target, predicted)
    if task is Task.REGRESSION:
        return {"RMSE": float(np.sqrt(losses.mean()))}
    wrong = predicted.argmax(axis=1) != target
    return {"log loss": float(losses.mean()), "error rate": float(wrong.mean())}

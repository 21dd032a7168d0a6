"""What users would pick instead, behind one interface, and knothole among them.

A peer is fitted on a training table, its target and a factory of models, and then answers tables
with missing values. All of them see the same tables: pandas frames, categorical columns as pandas
categories, NaN where a value is missing. What a peer needs beyond that is its own business, done
the way a careful user would and said in its docstring.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import pandas as pd
from numpy.typing import NDArray

from benchmarks.suite.models import ModelFactory
from knothole.arrays import Floats
from knothole.report.methods import Task, outputs

#: Makes values missing in a table the way they come at deployment; the number is a seed.
MakeMissing = Callable[[pd.DataFrame, int], pd.DataFrame]


@dataclass(frozen=True, eq=False)
class Training:
    """What a peer may learn from.

    Attributes
    ----------
    table : DataFrame
        Training rows, with the missing values that training has.
    target : array (rows,)
        Numbers, or classes from 0 on.
    task : Task
        What is predicted.
    model : callable
        Makes a new model.
    seed : int
        For everything random.
    make_missing : callable, optional
        How values go missing at deployment: what informed peers are told.
    has_missing : bool
        Whether the training table was given missing values itself.
    """

    table: pd.DataFrame
    target: NDArray[Any]
    task: Task
    model: ModelFactory
    seed: int = 0
    make_missing: MakeMissing | None = None
    has_missing: bool = False

    def fitted(
        self, table: pd.DataFrame, target: NDArray[Any] | None = None, **options: Any
    ) -> Any:
        """A new model, fitted on a table made from the training rows."""
        return self.model().fit(table, self.target if target is None else target, **options)


class Peer(ABC):
    """A way to predict rows with missing values.

    Attributes
    ----------
    name : str
        For tables and plots.
    requires : tuple of str
        Modules without which the peer is skipped.
    informed : bool
        Whether it is told how values go missing at deployment, and so fitted anew for every
        mechanism.
    needs_missing_in_training : bool
        Whether it has nothing to learn from where only deployment has missing values.
    """

    name: str
    requires: tuple[str, ...] = ()
    informed: bool = False
    needs_missing_in_training: bool = False

    @abstractmethod
    def fit(self, training: Training) -> Self:
        """Learn."""

    @abstractmethod
    def predict(self, table: pd.DataFrame) -> Floats:
        """Predictions (rows,), or probabilities (rows, classes), of rows with missing values."""

    def missing(self) -> tuple[str, ...]:
        """Modules it needs that are not installed."""
        return tuple(name for name in self.requires if importlib.util.find_spec(name) is None)


class Native(Peer):
    """The model's own way with NaN."""

    name = "native"

    def fit(self, training: Training) -> Self:
        """Fit the model on the training table as it is."""
        self.task_ = training.task
        self.model_ = training.fitted(training.table)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Ask the model."""
        return outputs(self.model_, table, self.task_)

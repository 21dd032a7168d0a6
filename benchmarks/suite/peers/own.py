"""Knothole as it is by default; where training has missing with refitted leaves, or grown trees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import pandas as pd

from benchmarks.suite.peers.base import Peer, Training
from knothole.arrays import Floats
from knothole.meta import ExpectedClassifier, ExpectedRegressor
from knothole.report.methods import Task, outputs
from knothole.wrapping import wrap


class Knothole(Peer):
    """The model's expected prediction given what was observed; nothing is tuned by hand.

    Parameters
    ----------
    options
        For :func:`knothole.wrap`.
    """

    def __init__(self, name: str = "knothole", **options: Any) -> None:
        self.name = name
        self.options = options

    def fit(self, training: Training) -> Self:
        """Fit the model as it is, and learn the density of its columns."""
        self.task_ = training.task
        model = training.fitted(training.table)
        self.robust_ = wrap(model, training.table, training.target, **self.options)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Integrate over the missing values."""
        return outputs(self.robust_, table, self.task_)


class KnotholeRefitted(Knothole):
    """Leaf values learned anew from the training rows and their missing values, given the target.

    What the documentation says to do where the training table has missing values: every NaN is a
    missing value, and :meth:`~knothole.robust.Robust.refit_leaves` follows with its defaults.
    :class:`Knothole` is what :func:`~knothole.wrap` does by itself: the model's leaves stay, and
    what NaN means is measured for each column. A column never observed, of which neither the model
    nor the density can learn anything, is left out.
    """

    needs_missing_in_training = True

    def __init__(self, name: str = "knothole refitted", **options: Any) -> None:
        super().__init__(name, **{"nan_policy": "lost"} | options)

    def fit(self, training: Training) -> Self:
        """Fit the model, learn the density of its columns, and then new leaf values."""
        self.observed_ = list(training.table.columns[training.table.notna().any()])
        table = training.table[self.observed_]
        super().fit(replace(training, table=table))
        self.robust_ = self.robust_.refit_leaves(table, training.target)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Integrate over the missing values, with the new leaf values."""
        return super().predict(table[self.observed_])


class KnotholeGrown(Peer):
    """Trees grown under the expected loss, refitted or not, or own trees: as held-out rows say.

    Every NaN is a missing value, as for :class:`KnotholeRefitted`.
    """

    needs_missing_in_training = True

    def __init__(self, name: str = "knothole grown", **options: Any) -> None:
        self.name = name
        self.options = {"learn": "auto", "refit_leaves": "auto", "nan_policy": "lost"} | options

    def fit(self, training: Training) -> Self:
        """Grow the model's trees on draws of the training rows."""
        self.task_ = training.task
        self.observed_ = list(training.table.columns[training.table.notna().any()])
        kind = ExpectedRegressor if training.task is Task.REGRESSION else ExpectedClassifier
        self.expected_ = kind(training.model(), **self.options)
        self.expected_.fit(training.table[self.observed_], training.target)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Integrate over the missing values."""
        return outputs(self.expected_, table[self.observed_], self.task_)

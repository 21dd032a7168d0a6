"""Peers whose model is another one: trained on masked copies, or by another library."""

from __future__ import annotations

from typing import Self

import numpy as np
import pandas as pd

from benchmarks.suite.peers.base import Peer, Training
from knothole.arrays import Floats
from knothole.report.methods import Task, outputs


class Retrained(Peer):
    """The model trained on masked copies of the training table, missing values as they will come.

    The strongest rival where the mechanism is known beforehand; here it is told. A training table
    with missing values of its own is kept as the first copy, and the others have further missing
    values.

    Parameters
    ----------
    copies : int
        How many masked copies, one below the other.
    """

    informed = True

    def __init__(self, copies: int = 1) -> None:
        self.copies = copies
        self.name = f"retrained x{copies}"

    def fit(self, training: Training) -> Self:
        """Fit the model on masked copies."""
        self.task_ = training.task
        table, target = training.table, training.target
        if training.make_missing is not None:
            seeds = range(training.seed, training.seed + self.copies)
            tables = [training.make_missing(table, seed) for seed in seeds]
            table = pd.concat([table, *tables[1:]] if training.has_missing else tables)
            target = np.tile(target, self.copies)
        self.model_ = training.fitted(table.reset_index(drop=True), target)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Ask the retrained model."""
        return outputs(self.model_, table, self.task_)


class Ydf(Peer):
    """Yggdrasil's gradient boosted trees, trained by itself on the same rows, its own way with NaN.

    It brings its own trees, with as many, as deep and as slowly learned ones as the model has.
    """

    name = "ydf"
    requires = ("ydf",)

    def fit(self, training: Training) -> Self:
        """Train Yggdrasil's own model."""
        import ydf

        self.task_ = training.task
        settings = training.model().get_params()
        regression = training.task is Task.REGRESSION
        learner = ydf.GradientBoostedTreesLearner(
            label=_LABEL,
            task=ydf.Task.REGRESSION if regression else ydf.Task.CLASSIFICATION,
            num_trees=settings["n_estimators"],
            max_depth=settings["max_depth"] + 1,  # Yggdrasil counts the root
            shrinkage=settings["learning_rate"],
            subsample=settings["subsample"],
            random_seed=training.seed,
            num_threads=1,
            validation_ratio=0.0,
        )
        target = training.target if regression else training.target.astype(str)
        self.model_ = learner.train(_as_text(training.table).assign(**{_LABEL: target}), verbose=0)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Ask Yggdrasil's model."""
        found = np.asarray(self.model_.predict(_as_text(table)), dtype=np.float64)
        if self.task_ is Task.REGRESSION:
            return found
        if found.ndim == 1:
            found = np.column_stack([1 - found, found])
        order = np.argsort([int(label) for label in self.model_.label_classes()])
        return found[:, order]


_LABEL = "target of the rows"


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Categories as plain text, which Yggdrasil reads; missing values are None there."""
    plain = table.copy()
    for name in table.select_dtypes("category"):
        plain[name] = table[name].astype(object).where(table[name].notna(), None)
    return plain

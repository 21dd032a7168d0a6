"""What users would pick instead, behind one interface, and knothole among them.

A peer is fitted on a training table, its target and a factory of models, and then answers tables
with holes. All of them see the same tables: pandas frames, categorical columns as pandas
categories, NaN where a value is missing. What a peer needs beyond that is its own business, done
the way a careful user would and said in its docstring.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.suite.datasets import Task
from benchmarks.suite.models import ModelFactory, outputs
from knothole.arrays import Floats
from knothole.estimators import wrap

#: Pokes holes into a table the way they come at deployment; the number is a seed.
Poke = Callable[[pd.DataFrame, int], pd.DataFrame]


@dataclass(frozen=True, eq=False)
class Training:
    """What a peer may learn from.

    Attributes
    ----------
    table : DataFrame
        Training rows, with the holes that training has.
    target : array (rows,)
        Numbers, or classes from 0 on.
    task : Task
        What is predicted.
    model : callable
        Makes a new model.
    seed : int
        For everything random.
    poke : callable, optional
        How holes come at deployment: what informed peers are told. None where the training table
        has such holes itself.
    """

    table: pd.DataFrame
    target: NDArray[Any]
    task: Task
    model: ModelFactory
    seed: int = 0
    poke: Poke | None = None

    def fitted(self, table: pd.DataFrame, target: NDArray[Any] | None = None) -> Any:
        """A new model, fitted on a table made from the training rows."""
        return self.model().fit(table, self.target if target is None else target)


class Peer(ABC):
    """A way to predict rows with holes.

    Attributes
    ----------
    name : str
        For tables and plots.
    requires : tuple of str
        Modules without which the peer is skipped.
    informed : bool
        Whether it is told how holes come at deployment, and so fitted anew for every mechanism.
    needs_training_holes : bool
        Whether it has nothing to learn from where only deployment has holes.
    """

    name: str
    requires: tuple[str, ...] = ()
    informed: bool = False
    needs_training_holes: bool = False

    @abstractmethod
    def fit(self, training: Training) -> Self:
        """Learn."""

    @abstractmethod
    def predict(self, table: pd.DataFrame) -> Floats:
        """Predictions (rows,), or probabilities (rows, classes), of rows with holes."""

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


class Retrained(Peer):
    """The model trained on masked copies of the training table, holes as they will come.

    The strongest rival where the mechanism is known beforehand; here it is told.

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
        if training.poke is not None:
            seeds = range(training.seed, training.seed + self.copies)
            table = pd.concat([training.poke(training.table, seed) for seed in seeds])
            target = np.tile(target, self.copies)
        self.model_ = training.fitted(table.reset_index(drop=True), target)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Ask the retrained model."""
        return outputs(self.model_, table, self.task_)


class Knothole(Peer):
    """The model's expected prediction given what was observed; nothing is tuned by hand.

    Parameters
    ----------
    options
        For :func:`knothole.estimators.wrap`.
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
        """Integrate over the holes."""
        return outputs(self.robust_, table, self.task_)


class KnotholeTuned(Knothole):
    """Leaf values learned anew from the training rows and their holes, given the target.

    What the documentation says to do where the training table has holes: every NaN is a hole, and
    :meth:`~knothole.estimators.robust.Robust.tune` follows with its defaults. :class:`Knothole` is
    what :func:`~knothole.estimators.wrap` does by itself: the model's leaves stay, and what NaN
    means is measured for each column. A column never observed, of which neither the model nor the
    density can learn anything, is left out.
    """

    needs_training_holes = True

    def __init__(self, name: str = "knothole tuned", **options: Any) -> None:
        super().__init__(name, **{"holes": "all"} | options)

    def fit(self, training: Training) -> Self:
        """Fit the model, learn the density of its columns, and then new leaf values."""
        self.observed_ = list(training.table.columns[training.table.notna().any()])
        table = training.table[self.observed_]
        super().fit(replace(training, table=table))
        self.robust_ = self.robust_.tune(table, training.target)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Integrate over the holes, with the new leaf values."""
        return super().predict(table[self.observed_])


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
    """Categories as plain text, which Yggdrasil reads; holes are None there."""
    plain = table.copy()
    for name in table.select_dtypes("category"):
        plain[name] = table[name].astype(object).where(table[name].notna(), None)
    return plain

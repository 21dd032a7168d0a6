"""One trained model, several ways to answer rows with holes: the same trees behind each of them.

Nobody retrains: the model is the user's, and is what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole import answers
from knothole.arrays import Floats
from knothole.columns.columns import Columns, Kind
from knothole.columns.holes import with_nan
from knothole.errors import InvalidInput
from knothole.leaves.problem import numbers
from knothole.report.filling import Filled, Imputer, Iterative
from knothole.report.measures import Task, outputs
from knothole.robust import Robust

KNOTHOLE, NATIVE, MEDIAN, ITERATIVE, DRAWS = "knothole", "native", "median", "MICE", "MICE x20"
#: Methods in the order of legends and tables.
METHODS = (KNOTHOLE, NATIVE, MEDIAN, ITERATIVE, DRAWS)
#: What they are called there, where the model's library is not known.
LABELS = {
    KNOTHOLE: "knothole",
    NATIVE: "the model alone",
    MEDIAN: "median filled in",
    ITERATIVE: "iterative imputation",
    DRAWS: "20 draws, averaged",
}


@dataclass(frozen=True, eq=False)
class Case:
    """A wrapped model, the table it was wrapped with, and held-out rows whose target is known.

    Made by :meth:`of`.

    Attributes
    ----------
    robust : Robust
        The model and its density.
    train, test : DataFrame
        Tables over the model's columns, categories as pandas categories.
    target : float64 (rows,) or int64 (rows,)
        Of the test rows: numbers, or positions among the classes.
    train_target : array or None
        Of the training rows, where known.
    task : Task
        What is predicted.
    takes_nan : bool
        Whether the model itself answers rows with NaN.
    """

    robust: Robust
    train: pd.DataFrame
    test: pd.DataFrame
    target: NDArray[Any]
    train_target: NDArray[Any] | None
    task: Task
    takes_nan: bool = True

    @classmethod
    def of(
        cls,
        robust: Robust,
        train: Any,
        test: Any,
        target: Any,
        train_target: Any = None,
        takes_nan: bool = True,
    ) -> Case:
        """Check and prepare what a comparison needs."""
        task = _task(robust)
        if len(test) != len(target):
            raise InvalidInput(
                f"target must have one entry for each of the {len(test)} test rows; got "
                f"{len(target)}."
            )
        return cls(
            robust=robust,
            train=as_frame(train, robust.columns_),
            test=as_frame(test, robust.columns_),
            target=_encoded(robust, task, target, "target"),
            train_target=_encoded(robust, task, train_target, "train_target"),
            task=task,
            takes_nan=takes_nan,
        )

    def methods(self, names: tuple[str, ...] = METHODS) -> dict[str, Method]:
        """The named methods, untaught; the model's own only where it takes NaN."""
        unknown = [name for name in names if name not in METHODS]
        if unknown:
            raise InvalidInput(f"methods must be among {METHODS}; got {unknown[0]!r}.")
        model = FrozenTrees(self.robust)
        made = {
            KNOTHOLE: Method(self.robust, self.task),
            NATIVE: Method(model, self.task),
            MEDIAN: Method(model, self.task, Filled("median")),
            ITERATIVE: Method(model, self.task, Iterative()),
            DRAWS: Method(model, self.task, Iterative(posterior=True), copies=20),
        }
        skipped = set() if self.takes_nan else {NATIVE}
        return {name: made[name] for name in METHODS if name in names and name not in skipped}

    @property
    def labels(self) -> dict[str, str]:
        """What the methods are called here."""
        return LABELS | {NATIVE: f"{self.robust.ensemble_.library} alone"}


class FrozenTrees:
    """The model's own answers, by its trees as they were read."""

    def __init__(self, robust: Robust) -> None:
        self.ensemble, self.columns = robust.ensemble_, robust.columns_

    def predict(self, table: Any) -> Floats:
        """Predictions of a regressor."""
        return answers.flat(self._response(table))

    def predict_proba(self, table: Any) -> Floats:
        """Probabilities of a classifier with one target."""
        return answers.probabilities(self.ensemble, self._response(table))[0]

    def _response(self, table: Any) -> Floats:
        matrix = self.columns.matrix(table)
        return self.ensemble.predict(with_nan(matrix, self.ensemble.sentinel, self.columns))


@dataclass(frozen=True, eq=False)
class Method:
    """One way to answer rows with holes: what is done about them, and which model is asked.

    Attributes
    ----------
    model : object
        Its ``predict`` or ``predict_proba`` answers.
    task : Task
        What is predicted.
    imputer : Imputer, optional
        Fills the holes first; without one the model gets them as they are.
    copies : int
        Fillings of every row over which answers are averaged. All are made in one go, of rows that
        are repeated: one pass of an imputer draws them all, in a fraction of the time.
    """

    model: Any
    task: Task
    imputer: Imputer | None = None
    copies: int = 1

    def learn(self, table: pd.DataFrame, seed: int = 0) -> Self:
        """Let the imputer learn; there is nothing else to."""
        if self.imputer is not None:
            self.imputer.fit(table, seed)
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Predictions (rows,), or probabilities (rows, classes)."""
        asked = table
        if self.copies > 1:
            asked = table.loc[table.index.repeat(self.copies)].reset_index(drop=True)
        if self.imputer is not None:
            asked = self.imputer.fill(asked)
        found = outputs(self.model, asked, self.task)
        return np.asarray(found.reshape(len(table), self.copies, *found.shape[1:]).mean(axis=1))


def as_frame(table: Any, columns: Columns) -> pd.DataFrame:
    """A table as pandas has it: floats, and categories with the levels the columns have."""
    matrix = columns.matrix(table)
    frame: dict[str, Any] = {}
    for position, column in enumerate(columns):
        values = matrix[:, position]
        if column.kind is Kind.CATEGORICAL:
            codes = np.where(np.isnan(values), -1, values).astype(np.intp)
            levels: list[Any] = [level for level in column.levels if level is not None]
            frame[column.name] = pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(levels))
        else:
            frame[column.name] = values
    return pd.DataFrame(frame)


def _task(robust: Robust) -> Task:
    ensemble = robust.ensemble_
    if not answers.is_classifier(ensemble):
        if ensemble.n_responses != 1:
            raise InvalidInput(
                f"the report compares models with one target; this one has {ensemble.n_responses}."
            )
        return Task.REGRESSION
    lists = answers.class_lists(ensemble)
    if len(lists) != 1:
        raise InvalidInput(f"the report compares models with one target; got {len(lists)}.")
    return Task.BINARY if len(lists[0]) == 2 else Task.MULTICLASS


def _encoded(robust: Robust, task: Task, values: Any, name: str) -> Any:
    """Numbers, or positions among the model's classes; text that spells a class will do."""
    if values is None:
        return None
    if task is Task.REGRESSION:
        return numbers(np.asarray(values), name)
    (classes,) = answers.class_lists(robust.ensemble_)
    places = {str(label): place for place, label in reversed(list(enumerate(classes)))}
    places |= {label: place for place, label in enumerate(classes)}
    labels = np.asarray(values).tolist()
    found = [places.get(label, places.get(str(label), -1)) for label in labels]
    if -1 in found:
        row = found.index(-1)
        raise InvalidInput(
            f"{name} must hold the model's classes {classes}; got {labels[row]!r} in row {row}."
        )
    return np.array(found, dtype=np.int64)

"""One trained model, several ways to answer rows with missing values, and how wrong they are.

The same trees are behind each method: nobody retrains, the model is the user's. Imputers fill
categories as categories: by the most frequent one, or through dummies, of which the largest wins.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (it registers the class)
from sklearn.impute import IterativeImputer
from threadpoolctl import threadpool_limits

from knothole.arrays import Floats
from knothole.columns.columns import Columns, Kind
from knothole.columns.evidence import with_nan
from knothole.errors import InvalidInput
from knothole.leaves.problem import numbers
from knothole.robust import Robust
from knothole.trees.classes import class_lists, flat, is_classifier, probabilities


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


# Rows that slow imputers learn from; more hardly change them, and their time grows with the square
# of the rows (neighbours) or of the dummies (regressions).
LEARNED_ROWS = 5000


class TableImputer(Protocol):
    """Learns from a table with or without missing values how to fill those of others."""

    def fit(self, table: pd.DataFrame, seed: int) -> Self:
        """Learn how to fill."""

    def fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Make a table without missing values; what was observed stays as it was."""


class Filled(TableImputer):
    """Mean, median or mode of the training column; a categorical column always by its mode.

    Examples
    --------
    >>> table = pd.DataFrame({"size": [1.0, 2.0, 6.0, np.nan]})
    >>> Filled("median").fit(table).fill(table)["size"].tolist()
    [1.0, 2.0, 6.0, 2.0]
    """

    def __init__(self, statistic: str) -> None:
        self.statistic = statistic

    def fit(self, table: pd.DataFrame, seed: int = 0) -> Self:
        """Take the statistic of every column."""
        # A column never observed has nothing to fill with; its missing values are left to the
        # model.
        observed = [name for name in table if table[name].notna().any()]
        self.values_ = {name: self._of(table[name]) for name in observed}
        return self

    def fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Put it in the place of missing values."""
        return table.fillna(self.values_)

    def _of(self, column: pd.Series[Any]) -> Any:
        if self.statistic == "mode" or isinstance(column.dtype, pd.CategoricalDtype):
            return column.mode().iloc[0]
        return column.mean() if self.statistic == "mean" else column.median()


class Iterative(TableImputer):
    """Chained regressions (MICE): ``IterativeImputer`` with its Bayesian ridge.

    Ten rounds always. (Left to itself it stops learning on a complete training table after the
    first round, and then fills with that one round only.)

    Parameters
    ----------
    posterior : bool
        Whether to fill with draws from the posterior, others each time, and not the best guess.
    """

    def __init__(self, posterior: bool = False) -> None:
        self.posterior = posterior

    def fit(self, table: pd.DataFrame, seed: int = 0) -> Self:
        """Learn the regressions."""
        self.dummies_ = Dummies(table)
        self.imputer_ = IterativeImputer(
            sample_posterior=self.posterior, tol=0.0, random_state=seed, keep_empty_features=True
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # tol=0 never counts as converged
            with threadpool_limits(1, "blas"):  # its matrices are small: threads would only wait
                self.imputer_.fit(sampled(self.dummies_.numbers(table), seed))
        return self

    def fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Let the regressions fill."""
        numbers = self.dummies_.numbers(table)
        if not np.isnan(numbers).any():
            return table
        with threadpool_limits(1, "blas"):
            return self.dummies_.table(self.imputer_.transform(numbers), table)


class Dummies:
    """Numbers as they are, categories one-hot, and back: the largest dummy is the category."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.dtypes = table.dtypes

    def numbers(self, table: pd.DataFrame) -> Floats:
        """One column for each number, one for each category; NaN at missing values."""
        return np.column_stack([self._numbers_of(table[name]) for name in table])

    def _numbers_of(self, column: pd.Series[Any]) -> Floats:
        if not isinstance(column.dtype, pd.CategoricalDtype):
            return column.to_numpy(dtype=np.float64)[:, None]
        codes = column.cat.codes.to_numpy()
        dummies = codes[:, None] == np.arange(len(column.dtype.categories))
        return np.where(codes[:, None] < 0, np.nan, dummies)

    def table(self, numbers: Floats, like: pd.DataFrame) -> pd.DataFrame:
        """A table filled from complete numbers; what was observed stays as it was."""
        filled = like.copy()
        start = 0
        for name, dtype in self.dtypes.items():
            best: Any = numbers[:, start]
            stop = start + 1
            if isinstance(dtype, pd.CategoricalDtype):
                stop = start + len(dtype.categories)
                best = dtype.categories[numbers[:, start:stop].argmax(axis=1)]
            filled[name] = like[name].where(like[name].notna(), best)
            start = stop
        return filled


def sampled(numbers: Floats, seed: int) -> Floats:
    """Rows for a slow imputer to learn from: all, or some chosen at random."""
    if len(numbers) <= LEARNED_ROWS:
        return numbers
    rows = np.random.default_rng(seed).permutation(len(numbers))[:LEARNED_ROWS]
    return numbers[rows]


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
        return flat(self._response(table))

    def predict_proba(self, table: Any) -> Floats:
        """Probabilities of a classifier with one target."""
        return probabilities(self.ensemble, self._response(table))[0]

    def _response(self, table: Any) -> Floats:
        matrix = self.columns.matrix(table)
        return self.ensemble.predict(with_nan(matrix, self.ensemble.sentinel, self.columns))


@dataclass(frozen=True, eq=False)
class Method:
    """One way to answer incomplete rows: what is done about them, and which model is asked.

    Attributes
    ----------
    model : object
        Its ``predict`` or ``predict_proba``
    task : Task
        What is predicted.
    imputer : TableImputer, optional
        Fills the missing values first; without one the model gets them as they are.
    copies : int
        Imputations of every row over which answers are averaged. All are made in one go, of rows
        that are repeated: one pass of an imputer draws them all, in a fraction of the time.
    """

    model: Any
    task: Task
    imputer: TableImputer | None = None
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
    if not is_classifier(ensemble):
        if ensemble.n_responses != 1:
            raise InvalidInput(
                f"the report compares models with one target; this one has {ensemble.n_responses}."
            )
        return Task.REGRESSION
    lists = class_lists(ensemble)
    if len(lists) != 1:
        raise InvalidInput(f"the report compares models with one target; got {len(lists)}.")
    return Task.BINARY if len(lists[0]) == 2 else Task.MULTICLASS


def _encoded(robust: Robust, task: Task, values: Any, name: str) -> Any:
    """Numbers, or positions among the model's classes; text that spells a class will do."""
    if values is None:
        return None
    if task is Task.REGRESSION:
        return numbers(np.asarray(values), name)
    (classes,) = class_lists(robust.ensemble_)
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

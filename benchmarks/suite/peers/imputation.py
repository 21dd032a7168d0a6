"""Peers that fill missing values and hand the filled table to the model.

The imputer and the model are both fitted on the training table, filled the same way. Categories
are filled as categories: by the most frequent one, or through dummies, of which the largest wins.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Self

import numpy as np
import pandas as pd
from sklearn.impute import KNNImputer
from sklearn.preprocessing import StandardScaler

from benchmarks.suite.peers.base import Peer, Training
from knothole import missingness
from knothole.arrays import Floats
from knothole.report.methods import (
    LEARNED_ROWS,
    Dummies,
    Filled,
    Iterative,
    TableImputer,
    outputs,
    sampled,
)

# Values without which a column cannot be learned by imputers that fit a model to each.
FEWEST_VALUES = 20
# Missing values given to the training table for imputers that refuse to learn from a complete one.
PRACTICE_RATE = 0.2


class Imputing(Peer):
    """A peer made of an imputer: a subclass fits it, and fills tables."""

    def fit(self, training: Training) -> Self:
        """Fit the imputer and, on the filled training table, the model."""
        self.task_ = training.task
        self._fit_imputer(training.table, training.seed)
        self.model_ = training.fitted(self._fill(training.table))
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, and ask the model."""
        return outputs(self.model_, self._fill(table), self.task_)

    @abstractmethod
    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        """Learn how to fill."""

    @abstractmethod
    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Make a table without missing values."""


class Imputed(Imputing):
    """An imputer of the report's, or one like them.

    Parameters
    ----------
    name : str
        For tables and plots.
    imputer : TableImputer
        What fills.
    draws : int
        Imputations over which the model's predictions are averaged; it is trained on the first.
    """

    def __init__(self, name: str, imputer: TableImputer, draws: int = 1) -> None:
        self.name, self.imputer, self.draws = name, imputer, draws

    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        self.imputer.fit(table, seed)

    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        return self.imputer.fill(table)

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, and ask the model; once, or on average over the draws."""
        predictions = [super(Imputed, self).predict(table) for _ in range(self.draws)]
        return np.asarray(np.mean(predictions, axis=0))


def filled(statistic: str) -> Imputed:
    """Mean, median or mode of the training column."""
    return Imputed(statistic, Filled(statistic))


def mice(draws: int = 0) -> Imputed:
    """Chained regressions: the best guess, or so many draws from the posterior."""
    if draws:
        return Imputed(f"MICE x{draws}", Iterative(posterior=True), draws)
    return Imputed("MICE", Iterative())


class Stacked(Imputed):
    """Multiple imputation: one model of all imputations, stacked, each row weighted as one.

    Imputations are draws from the posterior of chained regressions; a prediction is the mean over
    as many imputations of its row.
    """

    def __init__(self, imputations: int = 5) -> None:
        super().__init__(f"MICE x{imputations} stacked", Iterative(posterior=True), imputations)

    def fit(self, training: Training) -> Self:
        """Fit the imputer and, on the imputations of the training table, the model."""
        self.task_ = training.task
        self._fit_imputer(training.table, training.seed)
        tables = [self._fill(training.table) for _ in range(self.draws)]
        target = np.tile(training.target, self.draws)
        weight = np.full(len(target), 1 / self.draws)
        stacked = pd.concat(tables, ignore_index=True)
        self.model_ = training.fitted(stacked, target, sample_weight=weight)
        return self


class MeanAndMask(Peer):
    """Means, and a column of 0 / 1 beside each that says where there was missing; model retrained.

    Where the training table is complete the mask would teach the model nothing, so that it is
    trained on one copy with missing values as they come at deployment.
    """

    name = "mean + mask"
    informed = True

    def fit(self, training: Training) -> Self:
        """Fit means and, on the masked training table, the model."""
        self.task_ = training.task
        self.filled_ = Filled("mean").fit(training.table)
        table = training.table
        if training.make_missing is not None and not training.has_missing:
            table = training.make_missing(table, training.seed)
        self.model_ = training.fitted(self._with_mask(table))
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, add the mask, and ask the model."""
        return outputs(self.model_, self._with_mask(table), self.task_)

    def _with_mask(self, table: pd.DataFrame) -> pd.DataFrame:
        mask = table.isna().astype(np.float64).add_suffix(" is missing")
        return pd.concat([self.filled_.fill(table), mask], axis=1)


class Neighbours(TableImputer):
    """The mean of the five nearest training rows, on standardised columns: ``KNNImputer``."""

    def fit(self, table: pd.DataFrame, seed: int) -> Self:
        """Keep the rows."""
        self.dummies_ = Dummies(table)
        numbers = sampled(self.dummies_.numbers(table), seed)
        self.scaler_ = StandardScaler()
        self.imputer_ = KNNImputer(keep_empty_features=True)
        with warnings.catch_warnings():
            # Of a column never observed: it is filled with zeros.
            warnings.filterwarnings("ignore", message="(Degrees of freedom|invalid value)")
            self.imputer_.fit(self.scaler_.fit_transform(numbers))
        return self

    def fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Let the neighbours fill."""
        numbers = self.dummies_.numbers(table)
        if not np.isnan(numbers).any():
            return table
        filled = self.imputer_.transform(self.scaler_.transform(numbers))
        return self.dummies_.table(self.scaler_.inverse_transform(filled), table)


class Learned(Imputing):
    """An imputer that fits a model to every column, and breaks on one with hardly any values.

    The missing values of such columns are left to the model.
    """

    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        self.learned_ = list(table.columns[table.notna().sum() >= FEWEST_VALUES])
        self._fit_learned(table[self.learned_], seed)

    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        return self._filled(table)[0]

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, and ask the model; on average where there are several imputations."""
        found = [outputs(self.model_, filled, self.task_) for filled in self._filled(table)]
        return np.asarray(np.mean(found, axis=0))

    def _filled(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        learned = table[self.learned_]
        if not learned.isna().any(axis=None):
            return [table]
        imputations = self._fill_learned(learned.reset_index(drop=True))
        return [
            table.assign(**{str(name): filled[name].set_axis(table.index) for name in learned})
            for filled in imputations
        ]

    @abstractmethod
    def _fit_learned(self, table: pd.DataFrame, seed: int) -> None:
        """Learn how to fill columns that can be learned."""

    @abstractmethod
    def _fill_learned(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        """Fill such columns, in one way or several."""


class Miceforest(Learned):
    """Chained LightGBM models with mean matching: miceforest, two rounds, five datasets.

    A complete training table is given practice missing values, because miceforest learns only
    columns that have some. Predictions are averaged over the datasets; the model is trained on the
    first.
    """

    name = "miceforest"
    requires = ("miceforest",)
    datasets = 5

    def _fit_learned(self, table: pd.DataFrame, seed: int) -> None:
        import miceforest

        learned = _practice(_floats(table), seed)
        self.kernel_ = miceforest.ImputationKernel(
            learned, num_datasets=self.datasets, random_state=seed
        )
        self.kernel_.mice(2, verbose=False, num_threads=1)

    def _fill_learned(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        imputed = self.kernel_.impute_new_data(_floats(table), verbose=False)
        return [imputed.complete_data(number) for number in range(self.datasets)]


def _floats(table: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers as floats, as with missing values: miceforest wants the same types always."""
    return table.astype(dict.fromkeys(table.select_dtypes("number").columns, np.float64))


class MissForest(Learned):
    """Forests in turn: MissForest with its defaults, categories given to it as numbers.

    It refuses a complete training table, which is given practice missing values, and a table with a
    column that is missing in all rows, which is handed over with one typical row below it: rows are
    filled by what was learned in training, none from another.
    """

    name = "MissForest"
    requires = ("missforest", "lightgbm", "tqdm")  # it imports tqdm without saying so

    def _fit_learned(self, table: pd.DataFrame, seed: int) -> None:
        from missforest import MissForest as Imputer

        self.categorical_ = list(table.select_dtypes("category").columns)
        self.imputer_ = Imputer(categorical=self.categorical_ or None, verbose=0)
        coded = self._coded(table)
        self.typical_ = coded.mode().iloc[:1]
        self.imputer_.fit(_practice(coded, seed).iloc[:LEARNED_ROWS])

    def _fill_learned(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        handed = pd.concat([self._coded(table), self.typical_], ignore_index=True)
        filled = pd.DataFrame(self.imputer_.transform(handed)).iloc[: len(table)]
        for name in self.categorical_:
            codes = filled[name].to_numpy().astype(np.intp)
            filled[name] = pd.Categorical.from_codes(codes, categories=table[name].cat.categories)
        return [filled]

    def _coded(self, table: pd.DataFrame) -> pd.DataFrame:
        coded = _floats(table)
        for name in self.categorical_:
            codes = table[name].cat.codes
            coded[name] = codes.where(codes >= 0).astype(np.float64)
        return coded


def _practice(table: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The table with missing values in every column, where some have none."""
    if table.isna().any().all():
        return table
    incomplete: pd.DataFrame = missingness.mcar(table, PRACTICE_RATE, seed)
    return incomplete.reset_index(drop=True)

"""Peers that fill holes and hand the filled table to the model.

The imputer and the model are both fitted on the training table, filled the same way. Categories
are filled as categories: by the most frequent one, or through dummies, of which the largest wins.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (it registers the class)
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.preprocessing import StandardScaler

from benchmarks.suite.models import outputs
from benchmarks.suite.peers.base import Peer, Training
from knothole import missingness
from knothole.arrays import Floats

# Rows that slow imputers learn from; more hardly change them, and their time grows with the square
# of the rows (neighbours) or of the dummies (regressions).
LEARNED_ROWS = 5000
# Values without which a column cannot be learned by imputers that fit a model to each.
FEWEST_VALUES = 20
# Holes given to the training table for imputers that refuse to learn from a complete one.
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
        """Make a table without holes."""


class Filled(Imputing):
    """Mean, median or mode of the training column; a categorical column always by its mode."""

    def __init__(self, statistic: str) -> None:
        self.name = self.statistic = statistic

    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        # A column never observed has nothing to fill with; its holes are left to the model.
        observed = [name for name in table if table[name].notna().any()]
        self.values_ = {name: _statistic(table[name], self.statistic) for name in observed}

    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.fillna(self.values_)


def _statistic(column: pd.Series[Any], statistic: str) -> Any:
    if statistic == "mode" or isinstance(column.dtype, pd.CategoricalDtype):
        return column.mode().iloc[0]
    return column.mean() if statistic == "mean" else column.median()


class MeanAndMask(Peer):
    """Means, and a column of 0 / 1 beside each that says where there was a hole; model retrained.

    Where the training table is complete the mask would teach the model nothing, so that it is
    trained on one copy with holes as they come at deployment.
    """

    name = "mean + mask"
    informed = True

    def fit(self, training: Training) -> Self:
        """Fit means and, on the masked training table, the model."""
        self.task_ = training.task
        self.filled_ = Filled("mean")
        self.filled_._fit_imputer(training.table, training.seed)
        table = training.table
        if training.poke is not None:
            table = training.poke(table, training.seed)
        self.model_ = training.fitted(self._with_mask(table))
        return self

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, add the mask, and ask the model."""
        return outputs(self.model_, self._with_mask(table), self.task_)

    def _with_mask(self, table: pd.DataFrame) -> pd.DataFrame:
        mask = table.isna().astype(np.float64).add_suffix(" is missing")
        return pd.concat([self.filled_._fill(table), mask], axis=1)


class Dummies:
    """Numbers as they are, categories one-hot, and back: the largest dummy is the category."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.dtypes = table.dtypes

    def numbers(self, table: pd.DataFrame) -> Floats:
        """One column for each number, one for each category; NaN at holes."""
        return np.column_stack([self._numbers_of(table[name]) for name in table])

    def _numbers_of(self, column: pd.Series[Any]) -> Floats:
        if not isinstance(column.dtype, pd.CategoricalDtype):
            return column.to_numpy(dtype=np.float64)[:, None]
        codes = column.cat.codes.to_numpy()
        dummies = codes[:, None] == np.arange(len(column.dtype.categories))
        return np.where(codes[:, None] < 0, np.nan, dummies)

    def table(self, numbers: Floats, like: pd.DataFrame) -> pd.DataFrame:
        """Holes of a table filled from numbers without any; what was observed stays as it was."""
        filled = like.copy()
        start = 0
        for name, dtype in self.dtypes.items():
            hole = like[name].isna().to_numpy()
            if isinstance(dtype, pd.CategoricalDtype):
                stop = start + len(dtype.categories)
                if hole.any():
                    codes = like[name].cat.codes.to_numpy().copy()
                    codes[hole] = numbers[hole, start:stop].argmax(axis=1)
                    filled[name] = pd.Categorical.from_codes(codes, dtype=dtype)
            else:
                stop = start + 1
                if hole.any():
                    filled[name] = np.where(hole, numbers[:, start], like[name])
            start = stop
        return filled


class Iterative(Imputing):
    """Chained regressions (MICE): ``IterativeImputer`` with its Bayesian ridge.

    Ten rounds always. (Left to itself it stops learning on a complete training table after the
    first round, and then fills with that one round only.)

    Parameters
    ----------
    draws : int
        0 fills with the best guess. Otherwise so many draws from the posterior are filled in, and
        the model's predictions averaged; the model is trained on the first.
    """

    def __init__(self, draws: int = 0) -> None:
        self.draws = draws
        self.name = f"MICE x{draws}" if draws else "MICE"

    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        self.dummies_ = Dummies(table)
        numbers = _sampled(self.dummies_.numbers(table), seed)
        self.imputer_ = IterativeImputer(
            sample_posterior=self.draws > 0,
            tol=0.0,
            random_state=seed,
            keep_empty_features=True,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # tol=0 never counts as converged
            self.imputer_.fit(numbers)

    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        numbers = self.dummies_.numbers(table)
        if not np.isnan(numbers).any():
            return table
        return self.dummies_.table(self.imputer_.transform(numbers), table)

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, and ask the model; once, or on average over the draws."""
        predictions = [super(Iterative, self).predict(table) for _ in range(max(1, self.draws))]
        return np.asarray(np.mean(predictions, axis=0))


class Neighbours(Imputing):
    """The mean of the five nearest training rows, on standardised columns: ``KNNImputer``."""

    name = "nearest neighbours"

    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        self.dummies_ = Dummies(table)
        numbers = _sampled(self.dummies_.numbers(table), seed)
        self.scaler_ = StandardScaler()
        self.imputer_ = KNNImputer(keep_empty_features=True)
        with warnings.catch_warnings():
            # Of a column never observed: it is filled with zeros.
            warnings.filterwarnings("ignore", message="(Degrees of freedom|invalid value)")
            self.imputer_.fit(self.scaler_.fit_transform(numbers))

    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        numbers = self.dummies_.numbers(table)
        if not np.isnan(numbers).any():
            return table
        filled = self.imputer_.transform(self.scaler_.transform(numbers))
        return self.dummies_.table(self.scaler_.inverse_transform(filled), table)


class Learned(Imputing):
    """An imputer that fits a model to every column, and breaks on one with hardly any values.

    The holes of such columns are left to the model.
    """

    def _fit_imputer(self, table: pd.DataFrame, seed: int) -> None:
        self.learned_ = list(table.columns[table.notna().sum() >= FEWEST_VALUES])
        self._fit_learned(table[self.learned_], seed)

    def _fill(self, table: pd.DataFrame) -> pd.DataFrame:
        return self._filled(table)[0]

    def predict(self, table: pd.DataFrame) -> Floats:
        """Fill, and ask the model; on average where there are several fillings."""
        found = [outputs(self.model_, filled, self.task_) for filled in self._filled(table)]
        return np.asarray(np.mean(found, axis=0))

    def _filled(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        learned = table[self.learned_]
        if not learned.isna().any(axis=None):
            return [table]
        fillings = self._fill_learned(learned.reset_index(drop=True))
        return [
            table.assign(**{str(name): filled[name].set_axis(table.index) for name in learned})
            for filled in fillings
        ]

    @abstractmethod
    def _fit_learned(self, table: pd.DataFrame, seed: int) -> None:
        """Learn how to fill columns that can be learned."""

    @abstractmethod
    def _fill_learned(self, table: pd.DataFrame) -> list[pd.DataFrame]:
        """Fill such columns, in one way or several."""


class Miceforest(Learned):
    """Chained LightGBM models with mean matching: miceforest, two rounds, five datasets.

    A complete training table is given practice holes, because miceforest learns only columns that
    have some. Predictions are averaged over the datasets; the model is trained on the first.
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
    """Whole numbers as floats: with holes they are, and miceforest wants the same types always."""
    return table.astype(dict.fromkeys(table.select_dtypes("number").columns, np.float64))


class MissForest(Learned):
    """Forests in turn: MissForest with its defaults, categories given to it as numbers.

    It refuses a complete training table, which is given practice holes, and a table with a column
    that is missing in all rows, which is handed over with one typical row below it: rows are filled
    by what was learned in training, none from another.
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
    """The table with holes in every column, where some have none."""
    if table.isna().any().all():
        return table
    poked: pd.DataFrame = missingness.mcar(table, PRACTICE_RATE, seed)
    return poked.reset_index(drop=True)


def _sampled(numbers: Floats, seed: int) -> NDArray[np.float64]:
    if len(numbers) <= LEARNED_ROWS:
        return numbers
    rows = np.random.default_rng(seed).permutation(len(numbers))[:LEARNED_ROWS]
    return numbers[rows]

"""Ways to fill holes that people use: a column's middle, or chained regressions.

Categories are filled as categories: by the most frequent one, or through dummies, of which the
largest wins.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol, Self

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (it registers the class)
from sklearn.impute import IterativeImputer
from threadpoolctl import threadpool_limits

from knothole.arrays import Floats

# Rows that slow imputers learn from; more hardly change them, and their time grows with the square
# of the rows (neighbours) or of the dummies (regressions).
LEARNED_ROWS = 5000


class Imputer(Protocol):
    """Learns from a table with or without holes how to fill those of others."""

    def fit(self, table: pd.DataFrame, seed: int) -> Self:
        """Learn how to fill."""

    def fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Make a table without holes; what was observed stays as it was."""


class Filled(Imputer):
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
        # A column never observed has nothing to fill with; its holes are left to the model.
        observed = [name for name in table if table[name].notna().any()]
        self.values_ = {name: self._of(table[name]) for name in observed}
        return self

    def fill(self, table: pd.DataFrame) -> pd.DataFrame:
        """Put it into the holes."""
        return table.fillna(self.values_)

    def _of(self, column: pd.Series[Any]) -> Any:
        if self.statistic == "mode" or isinstance(column.dtype, pd.CategoricalDtype):
            return column.mode().iloc[0]
        return column.mean() if self.statistic == "mean" else column.median()


class Iterative(Imputer):
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

"""The paper's preprocessing: continuous columns into bins, and everything into dummies.

Two ways to it. :class:`OneHotBinning` has bins by an irregular histogram of penalised likelihood
(Rozenholc, Mildenberger, Gather 2010): the best of ten at most, or by the paper's own rule, ten of
equal width where more than ten would be best. :func:`authors_insurance` is the encoding and the
split that the authors published for Insurance: ten bins of equal width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import gammaln, xlogy

from knothole.arrays import Floats
from knothole.columns.columns import Columns, Kind
from knothole.errors import InvalidInput, NotFitted

# Possible bin ends that are searched; of more distinct values, as many quantiles.
CANDIDATES = 512


# --- histograms ----------------------------------------------------------------------------------


def penalty(n: int, bins: int) -> float:
    """Penalty of an irregular histogram with so many bins on ``n`` values.

    log C(n - 1, D - 1) + (D - 1) + log(D)^2.5: the simplified version of formula (5) in Rozenholc,
    Mildenberger and Gather (2010) that they recommend, with c = alpha = 1 ("penB", the default of
    their R package).
    """
    choices = gammaln(n) - gammaln(bins) - gammaln(n - bins + 1)
    return float(choices + (bins - 1) + np.log(bins) ** 2.5)


def irregular_edges(values: Any, max_bins: int | None = 10) -> Floats:
    """Edges of the histogram with the largest penalised likelihood.

    Maximises sum_i N_i log(N_i / (n w_i)) - penalty(n, D) over all partitions into D <=
    ``max_bins`` bins whose ends are observed values, by dynamic programming. A bin contains its
    right end; the first one its left end too.

    Parameters
    ----------
    values : array (n,)
        NaN are left out.
    max_bins : int or None
        How many bins there may be; None: as many as the penalty allows.

    Returns
    -------
    float64 (bins + 1,)
        Two edges, or one where all values are the same, say that no structure was found.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sample = np.concatenate([rng.uniform(0, 1, 900), rng.uniform(1, 10, 100)])
    >>> irregular_edges(sample).round(1).tolist()
    [0.0, 1.0, 9.7]
    """
    observed = np.sort(_observed(values))
    if max_bins is not None and max_bins < 1:
        raise InvalidInput(f"max_bins must be at least 1; got {max_bins}.")
    ends = _candidates(observed)
    n, last = len(observed), len(ends) - 1
    if last == 0:
        return ends
    gain = _bin_gains(observed, ends)
    # best[j]: the largest likelihood of the values up to ends[j] in the current number of bins.
    best = gain[0].copy()
    origins: list[NDArray[np.intp]] = []
    scores = [best[last] - penalty(n, 1)]
    for bins in range(2, min(max_bins or last, last) + 1):
        through = best[:, None] + gain
        origins.append(through.argmax(axis=0))
        best = through.max(axis=0)
        scores.append(best[last] - penalty(n, bins))
    chosen = [last]
    for origin in reversed(origins[: int(np.argmax(scores))]):
        chosen.append(int(origin[chosen[-1]]))
    return ends[[0, *reversed(chosen)]]


def _candidates(observed: Floats) -> Floats:
    ends = np.unique(observed)
    if len(ends) > CANDIDATES:
        levels = np.linspace(0, 1, CANDIDATES)
        ends = np.unique(np.quantile(observed, levels, method="inverted_cdf"))
    return ends


def _bin_gains(observed: Floats, ends: Floats) -> Floats:
    """Log-likelihood of the values in a bin from ``ends[i]`` to ``ends[j]``; -inf unless i < j."""
    n = len(observed)
    up_to = np.searchsorted(observed, ends, side="right")
    up_to[0] = 0  # the smallest value belongs to the first bin
    count = (up_to[None, :] - up_to[:, None]).astype(np.float64)
    width = (ends[None, :] - ends[:, None]) / (ends[-1] - ends[0])
    proper = np.triu(np.ones(count.shape, dtype=np.bool_), 1)
    density = np.divide(count, n * width, out=np.ones_like(count), where=proper)
    return np.where(proper, xlogy(count, density), -np.inf)


def equal_width_edges(values: Any, bins: int = 10) -> Floats:
    """Edges of bins of the same width over the range of the values.

    Examples
    --------
    >>> equal_width_edges([0.0, 1.0, 4.0], bins=2).tolist()
    [0.0, 2.0, 4.0]
    """
    observed = _observed(values)
    if observed.min() == observed.max():
        return observed[:1].copy()
    return np.histogram_bin_edges(observed, bins=bins).astype(np.float64)


def histogram_edges(values: Any, max_bins: int = 10) -> Floats:
    """Irregular edges, or ``max_bins`` of equal width where one bin was the best histogram.

    A single bin would throw the column away, whose distribution may say nothing about how much it
    matters to a target.

    Examples
    --------
    >>> len(histogram_edges(np.linspace(0, 1, 100)))
    11
    """
    edges = irregular_edges(values, max_bins)
    return equal_width_edges(values, max_bins) if len(edges) == 2 else edges


def paper_edges(values: Any, max_bins: int = 10) -> Floats:
    """The paper's rule: irregular edges, or ``max_bins`` of equal width where more were found.

    A single bin stays one.

    Examples
    --------
    Eleven steps, dense and sparse in turn:

    >>> steps = np.concatenate([np.linspace(2 * k, 2 * k + 0.1, 200) for k in range(6)])
    >>> len(irregular_edges(steps, max_bins=None)) - 1
    11
    >>> np.diff(paper_edges(steps)).round(2).tolist()
    [1.01, 1.01, 1.01, 1.01, 1.01, 1.01, 1.01, 1.01, 1.01, 1.01]
    """
    edges = irregular_edges(values, None)
    return equal_width_edges(values, max_bins) if len(edges) > max_bins + 1 else edges


#: Rules for the bins of a column: the best of so many at most, and the paper's to the letter.
RULES = {"best": histogram_edges, "paper": paper_edges}


def _observed(values: Any) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    observed = numbers[~np.isnan(numbers)]
    if not len(observed):
        raise InvalidInput("values must have at least one that is not NaN; got none.")
    return observed


# --- dummies -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Encoded:
    """A one-hot table and its groups, by column names; all dummies of a missing value are NaN."""

    table: pd.DataFrame
    one_hot: Mapping[str, tuple[str, ...]]


def dummies(name: str, codes: Floats, labels: Mapping[int, Any]) -> pd.DataFrame:
    """One column ``name=label`` for every code; NaN where the code is NaN.

    Examples
    --------
    >>> dummies("hue", np.array([1.0, np.nan]), {0: "red", 1: "blue"}).to_numpy().tolist()
    [[0.0, 1.0], [nan, nan]]
    """
    missing = np.isnan(codes)
    return pd.DataFrame(
        {
            f"{name}={label}": np.where(missing, np.nan, codes == code)
            for code, label in labels.items()
        }
    )


class OneHotBinning:
    """Bins numeric columns and encodes everything one-hot.

    Parameters
    ----------
    max_bins : int
        Bins of a continuous column; an integer column with no more distinct values than that
        has a dummy for each.
    rule : "best" or "paper"
        Bins by :func:`histogram_edges` or by :func:`paper_edges`.

    Examples
    --------
    >>> table = pd.DataFrame({"rooms": [1, 2, 2, np.nan], "city": ["Graz", "Linz", None, "Graz"]})
    >>> encoded = OneHotBinning().fit(table).transform(table)
    >>> dict(encoded.one_hot)
    {'rooms': ('rooms=1', 'rooms=2'), 'city': ('city=Graz', 'city=Linz')}
    >>> encoded.table.iloc[3].tolist()
    [nan, nan, 1.0, 0.0]
    """

    def __init__(self, max_bins: int = 10, rule: str = "best") -> None:
        self.max_bins, self.rule = max_bins, rule

    def fit(self, table: Any) -> Self:
        """Learn edges and levels from a training table."""
        if self.rule not in RULES:
            raise InvalidInput(f"rule must be one of {sorted(RULES)}; got {self.rule!r}.")
        columns = Columns.infer(table)
        matrix = columns.matrix(table)
        self.columns_ = columns
        self.edges_: dict[str, Floats] = {}
        self.levels_: dict[str, tuple[Any, ...]] = {}
        for column, values in zip(columns, matrix.T, strict=True):
            distinct = np.unique(_observed(values))
            if column.kind is Kind.CATEGORICAL:
                self.levels_[column.name] = column.levels
            elif column.kind is Kind.INTEGER and len(distinct) <= self.max_bins:
                self.levels_[column.name] = tuple(int(value) for value in distinct)
            else:
                self.edges_[column.name] = RULES[self.rule](values, self.max_bins)
        return self

    def transform(self, table: Any) -> Encoded:
        """Encode a table with the same columns.

        Numbers beyond those of training fall into the nearest bin or count; a category that was
        not there is refused.
        """
        if not hasattr(self, "columns_"):
            raise NotFitted("OneHotBinning must be fitted first: call .fit(training_table).")
        matrix = self.columns_.matrix(table)
        parts = {
            column.name: self._dummies(column.name, column.kind, matrix[:, i])
            for i, column in enumerate(self.columns_)
        }
        encoded = pd.concat(list(parts.values()), axis=1)
        if isinstance(table, pd.DataFrame):
            encoded.index = table.index
        return Encoded(encoded, {name: tuple(part.columns) for name, part in parts.items()})

    def _dummies(self, name: str, kind: Kind, values: Floats) -> pd.DataFrame:
        if kind is Kind.CATEGORICAL:
            return dummies(name, values, dict(enumerate(self.levels_[name])))
        if name in self.edges_:
            inner = self.edges_[name][1:-1]
            labels = dict(enumerate(range(1, len(inner) + 2)))
        else:
            levels = self.levels_[name]
            inner = (np.array(levels[1:]) + np.array(levels[:-1])) / 2
            labels = dict(enumerate(levels))
        codes = np.where(np.isnan(values), np.nan, np.searchsorted(inner, values))
        return dummies(name, codes, labels)


# --- the authors' encoding of Insurance ----------------------------------------------------------

#: Columns of Insurance in the authors' order; those that they binned come last.
AUTHORS_CATEGORICAL = ("children", "smoker", "region", "sex")
AUTHORS_BINNED = ("age", "bmi")
AUTHORS_BINS = 10
AUTHORS_SEED = 1337


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a split: encoded table, target, and positions in the original table."""

    table: pd.DataFrame
    target: Floats
    rows: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class AuthorsSplit:
    """Train, validation and test parts of Insurance as the authors published them."""

    train: Part
    valid: Part
    test: Part
    one_hot: Mapping[str, tuple[str, ...]]
    edges: Mapping[str, Floats]


def authors_insurance(insurance: pd.DataFrame) -> AuthorsSplit:
    """Encode and split Insurance exactly as Khosravi et al. (2019) did.

    Rows are permuted by ``RandomState(1337)``; the first int(0.7 n) are the training set, the next
    int(0.2 of those) the validation set, the rest the test set. Age and bmi go into ten bins of
    equal width, fitted on the training set; the maximum has an eleventh bin to itself, because
    ``np.digitize`` leaves the right end out. Then everything is one-hot.

    Parameters
    ----------
    insurance : DataFrame
        ``insurance.csv``, its rows in the order of the file.
    """
    n = len(insurance)
    order = np.random.RandomState(AUTHORS_SEED).permutation(n)
    first = int(0.7 * n)
    second = first + int(0.2 * first)
    train, valid, test = order[:first], order[first:second], order[second:]
    parts: list[pd.DataFrame] = []
    edges: dict[str, Floats] = {}
    for name in AUTHORS_CATEGORICAL:
        levels = sorted(insurance[name].unique())
        codes = np.searchsorted(levels, insurance[name].to_numpy()).astype(np.float64)
        parts.append(dummies(name, codes, dict(enumerate(levels))))
    for name in AUTHORS_BINNED:
        values = insurance[name].to_numpy(dtype=np.float64)
        edges[name] = equal_width_edges(values[train], AUTHORS_BINS)
        codes = np.digitize(values, edges[name]).astype(np.float64)
        parts.append(dummies(name, codes, {code: code for code in range(1, AUTHORS_BINS + 2)}))
    table = pd.concat(parts, axis=1)
    charges = insurance["charges"].to_numpy(dtype=np.float64)
    names = (*AUTHORS_CATEGORICAL, *AUTHORS_BINNED)

    def part(rows: NDArray[np.intp]) -> Part:
        return Part(table.iloc[rows].reset_index(drop=True), charges[rows], rows)

    one_hot = {name: tuple(part.columns) for name, part in zip(names, parts, strict=True)}
    return AuthorsSplit(part(train), part(valid), part(test), one_hot, edges)

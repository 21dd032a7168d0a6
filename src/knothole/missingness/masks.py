"""Masks of tables, by mechanism (:mod:`knothole.missingness`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats, Mask
from knothole.checks import check_choice, check_number, check_whole
from knothole.columns.columns import Columns, Kind, OneHotGroups, variable_of
from knothole.columns.evidence import checked_mask
from knothole.errors import InvalidInput

__all__ = [
    "apply_mask", "mar", "mar_mask", "mar_probability", "mcar", "mcar_mask",
    "mcar_probability", "mnar", "mnar_mask", "mnar_probability", "outage", "outage_mask",
]  # fmt: skip


# Bisection steps for an intercept: down to the last bit of a float64.
_HALVINGS = 80


# --- completely at random ------------------------------------------------------------------------


def mcar(X: Any, rate: float, seed: int, *, one_hot: OneHotGroups | None = None) -> Any:
    """Make every entry missing with the same probability, independent of everything.

    Parameters
    ----------
    X : numpy array or pandas DataFrame
        Not changed.
    rate : float
        Probability that an entry goes missing, 0 to 1.
    seed : int
        The same seed gives the same mask.
    one_hot : "auto" or mapping, optional
        One-hot groups whose dummies go missing together.

    Returns
    -------
    The same kind of table with missing values; integer and boolean columns that lose an
    entry become float.

    Examples
    --------
    >>> mcar(np.ones((2, 4)), 0.5, seed=3)
    array([[nan, nan, nan, nan],
           [ 1.,  1., nan,  1.]])
    """
    return _table(_mcar, X, rate, seed, one_hot=one_hot).with_missing()


def mcar_mask(X: Any, rate: float, seed: int, *, one_hot: OneHotGroups | None = None) -> Mask:
    """The mask of :func:`mcar`: True where an entry goes missing."""
    return _table(_mcar, X, rate, seed, one_hot=one_hot).mask()


def mcar_probability(X: Any, rate: float, *, one_hot: OneHotGroups | None = None) -> Floats:
    """The probability with which :func:`mcar` makes each entry missing."""
    return _table(_mcar, X, rate, 0, one_hot=one_hot).probability()


def _mcar(table: VariableTable, rate: float) -> Floats:
    return np.full(table.points.shape, rate)


# --- at random, given columns that stay observed -------------------------------------------------


def mar(
    X: Any,
    rate: float,
    seed: int,
    *,
    observed: float | Sequence[str | int] = 0.3,
    strength: float = 2.0,
    one_hot: OneHotGroups | None = None,
    reference: Any = None,
    mechanism: int | None = None,
) -> Any:
    """Make entries missing depending on columns that stay observed.

    Some columns are never touched. Every other column has a logistic model of them,
    p = 1 / (1 + exp(-a - strength * z)), where z is a random combination of the observed columns
    with mean 0 and standard deviation 1, and ``a`` is found by bisection so that p averages to
    ``rate``. In the observed columns a category acts through a random number of its own, and a
    missing value as the mean.

    Parameters
    ----------
    X : numpy array or pandas DataFrame
        It is not changed.
    rate : float
        Share of entries that go missing *in the columns that can*.
    seed : int
        The same seed gives the same mask.
    observed : float, or names or positions of columns
        Which columns (or one-hot groups) stay observed; a share of them is chosen at random, at
        least one.
    strength : float
        How much they matter: 0 is MCAR in the other columns.
    one_hot : "auto" or mapping, optional
        One-hot groups whose dummies go missing together.
    reference : table, optional
        Table that fixes means, quantiles and intercepts; ``X`` itself by default.
    mechanism : int, optional
        Seed of what is random in the mechanism: which columns stay observed, how they act, the
        order of categories. By default ``seed``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(1000, 2))
    >>> missing = np.isnan(mar(X, 0.3, seed=1, observed=[0]))
    >>> missing.mean(axis=0).round(2).tolist()
    [0.0, 0.28]
    >>> bool(abs(X[missing[:, 1], 0].mean() - X[~missing[:, 1], 0].mean()) > 0.5)
    True
    """
    return _table(
        _mar, X, rate, seed, observed=observed, strength=strength, one_hot=one_hot,
        reference=reference, mechanism=mechanism,
    ).with_missing()  # fmt: skip


def mar_mask(X: Any, rate: float, seed: int, **options: Any) -> Mask:
    """The mask of :func:`mar`, which has the same options."""
    return _table(_mar, X, rate, seed, **options).mask()


def mar_probability(X: Any, rate: float, seed: int, **options: Any) -> Floats:
    """The probability with which :func:`mar` makes each entry missing; it has the same options."""
    return _table(_mar, X, rate, seed, **options).probability()


def _mar(
    table: VariableTable,
    rate: float,
    observed: float | Sequence[str | int] = 0.3,
    strength: float = 2.0,
) -> Floats:
    drivers = table.drivers(observed)
    scores, reference_scores = table.scores()
    weights = table.rng.normal(size=(len(drivers), table.points.shape[1]))
    own = scores[:, drivers] @ weights
    fitted = reference_scores[:, drivers] @ weights
    slope = strength / np.where(fitted.std(axis=0) > 0, fitted.std(axis=0), 1.0)
    p = _logistic(own * slope, fitted * slope, table.reference_known, rate)
    p[:, drivers] = 0.0
    return p


# --- not at random -------------------------------------------------------------------------------


def mnar(
    X: Any,
    rate: float,
    seed: int,
    *,
    kind: Literal["self", "quantile"] = "self",
    strength: float = 2.0,
    tail: Literal["upper", "lower", "both"] = "upper",
    share: float | None = None,
    one_hot: OneHotGroups | None = None,
    reference: Any = None,
    mechanism: int | None = None,
) -> Any:
    """Make entries missing depending on their own value.

    ``kind="self"`` (self-masking): p = 1 / (1 + exp(-a - strength * z)) with z the entry itself,
    standardised, and ``a`` found by bisection. ``kind="quantile"`` (cut-off): only the ``share`` of
    a column's entries in the tail can go missing, with probability rate / share; by default the
    share is the rate, so that everything beyond the quantile is gone. Categories are put in a
    random order.

    Parameters
    ----------
    X, rate, seed
        As for :func:`mar`; every column can go missing.
    kind : {"self", "quantile"}
        The variant.
    strength : float
        Of self-masking: how much the value matters; negative, small values go missing.
    tail : {"upper", "lower", "both"}
        Of the cut-off: which values can go missing.
    share : float, optional
        With ``kind="quantile"``: the share of values that can go missing, at least ``rate``.
    one_hot, reference, mechanism
        As for :func:`mar`.

    Examples
    --------
    >>> X = np.arange(8.0).reshape(-1, 1)
    >>> mnar(X, 0.25, seed=0, kind="quantile").ravel()
    array([ 0.,  1.,  2.,  3.,  4.,  5., nan, nan])
    """
    return _table(
        _mnar, X, rate, seed, kind=kind, strength=strength, tail=tail, share=share, one_hot=one_hot,
        reference=reference, mechanism=mechanism,
    ).with_missing()  # fmt: skip


def mnar_mask(X: Any, rate: float, seed: int, **options: Any) -> Mask:
    """The mask of :func:`mnar`, which has the same options."""
    return _table(_mnar, X, rate, seed, **options).mask()


def mnar_probability(X: Any, rate: float, seed: int, **options: Any) -> Floats:
    """The probability with which :func:`mnar` makes each entry missing; it has the same options."""
    return _table(_mnar, X, rate, seed, **options).probability()


def _mnar(
    table: VariableTable,
    rate: float,
    kind: str = "self",
    strength: float = 2.0,
    tail: str = "upper",
    share: float | None = None,
) -> Floats:
    scores, fitted = table.scores()
    if kind == "self":
        return _logistic(scores * strength, fitted * strength, table.reference_known, rate)
    check_choice("kind", kind, ("self", "quantile"))
    check_choice("tail", tail, _EXTREME)
    share = rate if share is None else share
    check_number("share", share, rate, 1)
    p = np.zeros(scores.shape)
    for j, known in enumerate(table.reference_known.T):
        if known.any() and share > 0:
            centre = np.median(fitted[known, j])
            own, others = (_EXTREME[tail](s[:, j], centre) for s in (scores, fitted[known]))
            p[:, j] = rate / share * _beyond(own, others, share)
    return p


#: How far a value lies in the tail.
_EXTREME: dict[str, Callable[[Floats, float], Floats]] = {
    "upper": lambda scores, centre: scores,
    "lower": lambda scores, centre: -scores,
    "both": lambda scores, centre: np.abs(scores - centre),
}


def _beyond(values: Floats, reference: Floats, share: float) -> Floats:
    """Whether values are among the largest ``share`` of the reference; a fraction for ties."""
    ordered = np.sort(reference)
    above = len(ordered) - np.searchsorted(ordered, values, side="right")
    equal = len(ordered) - np.searchsorted(ordered, values, side="left") - above
    room = share * len(ordered) - above
    return np.where(equal > 0, np.clip(room / np.maximum(equal, 1), 0.0, 1.0), room > 0)


# --- outage --------------------------------------------------------------------------------------


def outage(X: Any, columns: Sequence[str | int], *, one_hot: OneHotGroups | None = None) -> Any:
    """Make whole columns missing; with ``one_hot``, names of one-hot groups may be given too.

    Examples
    --------
    >>> outage(np.array([[1, 2], [3, 4]]), [1])
    array([[ 1., nan],
           [ 3., nan]])
    """
    return apply_mask(X, outage_mask(X, columns, one_hot=one_hot))


def outage_mask(
    X: Any, columns: Sequence[str | int], *, one_hot: OneHotGroups | None = None
) -> Mask:
    """The mask of :func:`outage`: True where an entry goes missing."""
    if isinstance(columns, (str, int)):
        raise InvalidInput(f"columns must be a list of names or positions; got {columns!r}.")
    table = VariableTable(X, 0, one_hot)
    gone = np.zeros(table.points.shape, dtype=np.bool_)
    gone[:, [table.variable_of(column, "columns") for column in columns]] = True
    return table.spread(gone)


# --- shared --------------------------------------------------------------------------------------


def _logistic(own: Floats, fitted: Floats, known: Mask, rate: float) -> Floats:
    """expit(a + own) by entry, with ``a`` such that the mean over the reference is the rate."""
    from scipy.special import expit, logit

    if rate in (0.0, 1.0):
        return np.full(own.shape, rate)
    centre = float(logit(rate))
    low, high = centre - fitted.max(axis=0), centre - fitted.min(axis=0)
    count = np.maximum(known.sum(axis=0), 1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mean = np.where(known, expit(fitted + middle), 0.0).sum(axis=0) / count
        low, high = np.where(mean < rate, middle, low), np.where(mean < rate, high, middle)
    return np.asarray(expit(own + (low + high) / 2))


def _table(
    model: Callable[..., Floats],
    X: Any,
    rate: float,
    seed: int,
    /,
    *,
    one_hot: OneHotGroups | None = None,
    reference: Any = None,
    mechanism: int | None = None,
    **options: Any,
) -> VariableTable:
    """The table of variables, with their probabilities under a model and its options."""
    check_number("rate", rate, most=1)
    table = VariableTable(X, seed, one_hot, reference, mechanism)
    table.p = model(table, float(rate), **options)
    return table


# --- a table as variables ------------------------------------------------------------------------


def apply_mask(X: Any, mask: Mask) -> Any:
    """A copy of a table with missing values where the mask is True.

    Integer and boolean columns become float.

    Examples
    --------
    >>> apply_mask(np.array([[1, 2]]), np.array([[True, False]]))
    array([[nan,  2.]])
    """
    mask = checked_mask(mask, np.shape(X), "mask")
    if isinstance(X, np.ndarray):
        out = X.astype(np.float64) if X.dtype.kind in "biu" else X.copy()
        out[mask] = None if out.dtype == object else np.nan
        return out
    import pandas as pd  # not needed for numpy arrays

    if not isinstance(X, pd.DataFrame):
        raise InvalidInput(
            f"X must be a numpy array or a pandas DataFrame; got {type(X).__name__}. Convert "
            f"it, or take the mask alone."
        )
    plain = [isinstance(dtype, np.dtype) and dtype.kind in "biu" for dtype in X.dtypes]
    lost = X.columns[np.array(plain, dtype=np.bool_) & mask.any(axis=0)]
    return X.astype(dict.fromkeys(lost, np.float64)).mask(mask)


class VariableTable:
    """A table as points of its variables, and the reference that fixes the mechanism.

    A mechanism sets ``p``, the probability that each variable goes missing in each row.
    """

    p: Floats

    def __init__(
        self,
        X: Any,
        seed: int,
        one_hot: OneHotGroups | None = None,
        reference: Any = None,
        mechanism: int | None = None,
    ) -> None:
        self.table, self.seed = X, seed
        self.rng = generator(seed if mechanism is None else mechanism, 0)
        self.columns = Columns.infer(X if reference is None else reference, one_hot=one_hot)
        self.matrix = self.columns.matrix(X, handle_unknown="missing")
        self.points = self.reference = self.columns.evidence(self.matrix).points
        if reference is not None:
            fixed = self.columns.matrix(reference, handle_unknown="missing")
            self.reference = self.columns.evidence(fixed).points
        self.reference_known = ~np.isnan(self.reference)

    def variable_of(self, column: str | int, parameter: str) -> int:
        """Variable of a column given in a parameter."""
        return variable_of(column, self.columns.names, self.columns.variables, parameter)

    def drivers(self, observed: float | Sequence[str | int]) -> NDArray[np.intp]:
        """Variables that stay observed and drive the others."""
        n = len(self.columns.variables)
        if isinstance(observed, (int, float)):
            check_number("observed", observed, above=0, below=1)
            count = min(max(1, round(observed * n)), n - 1)
            drivers = np.sort(self.rng.permutation(n)[:count])
        else:
            found = {self.variable_of(column, "observed") for column in observed}
            drivers = np.array(sorted(found), dtype=np.intp)
        if not 0 < len(drivers) < n:
            raise InvalidInput(
                f"observed must leave at least one column that stays observed and one that can go "
                f"missing; of {n} columns {len(drivers)} would stay."
            )
        return drivers

    def scores(self) -> tuple[Floats, Floats]:
        """Standardised points and reference; categories get random numbers, missing values 0."""
        own, fitted = self.points.copy(), self.reference.copy()
        for j, variable in enumerate(self.columns.variables):
            if variable.kind is Kind.CATEGORICAL:
                number = np.append(self.rng.normal(size=len(variable.levels)), np.nan)
                own[:, j], fitted[:, j] = (
                    number[np.where(np.isnan(codes), -1, codes).astype(np.intp)]
                    for codes in (self.points[:, j], self.reference[:, j])
                )
        known = self.reference_known
        count = np.maximum(known.sum(axis=0), 1)
        mean = np.where(known, fitted, 0.0).sum(axis=0) / count
        spread = np.sqrt((np.where(known, fitted - mean, 0.0) ** 2).sum(axis=0) / count)
        spread[spread == 0] = 1.0
        return np.nan_to_num((own - mean) / spread), np.nan_to_num((fitted - mean) / spread)

    def probability(self) -> Floats:
        """The probability that each entry goes missing, (rows, columns)."""
        return self.spread(self.p)

    def mask(self) -> Mask:
        """A random mask of the columns."""
        uniform = generator(self.seed, 1).random(self.p.shape)
        return self.spread(uniform < self.p) & ~np.isnan(self.matrix)

    def with_missing(self) -> Any:
        """The table with random missing values."""
        return apply_mask(self.table, self.mask())

    def spread(self, of_variables: NDArray[Any]) -> NDArray[Any]:
        """From variables to columns: all dummies of a one-hot group get the group's entry."""
        out = np.empty((len(of_variables), len(self.columns)), dtype=of_variables.dtype)
        for j, variable in enumerate(self.columns.variables):
            out[:, list(variable.columns)] = of_variables[:, [j]]
        return out


def generator(seed: int, stream: int) -> np.random.Generator:
    """A generator for one of the streams of a seed.

    Masks have a stream of their own, so that they do not depend on how many random numbers the
    mechanism used.
    """
    check_whole("seed", seed, least=0)
    return np.random.default_rng([int(seed), stream])

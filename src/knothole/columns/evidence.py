"""Evidence: what is known of each variable of each row.

A variable is observed (a point), missing, or, for a one-hot group with some dummies missing,
restricted to a set of categories.

A NaN can have three meanings.

=====================  ============================================================================
lost                   There was a value. Predictions integrate over it.
not recorded           There was none. NaN occurred in training, and the model has learned which way
                       to send it. Columns in which this can happen are *nullable*, and a density
                       has a state for it.
taken for NaN          The table holds a number that the model itself reads as NaN: XGBoost's
                       ``missing=0``, LightGBM's zeros. It becomes NaN (:func:`with_nan`); then it
                       is "not recorded" in a nullable column and missing in any other.
=====================  ============================================================================

In a nullable column the first two look the same. Which one it is, is inferred
(:mod:`knothole.missingness.inference`) unless the policy or a mask of lost values decides. A
one-hot group is "not recorded" if all of its dummies are NaN; if only some are, they are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from knothole._core import columns as kernels
from knothole.arrays import Floats, Mask, Words
from knothole.bits import pack, set_words, starts, unpack, word_offsets
from knothole.errors import InvalidInput

if TYPE_CHECKING:
    from knothole.columns.columns import Columns, Variable

#: The point of a numeric variable that is not recorded. Tables never hold infinite values, so
#: the number is free. A categorical variable has one more level for it instead.
NOT_RECORDED = np.inf


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """Possible explanations of the missing values of each row, with their probabilities.

    Attributes
    ----------
    chance : float64 (rows, hypotheses)
        The probability of each, descending; 0 where a row has fewer.
    rate : float64 (rows, hypotheses)
        The probability with which a recorded value was lost; 0: nothing was lost.
    gone : int64 (rows, hypotheses)
        A variable that was lost, whether or not it had been recorded; -1 for none.
    unknown : bool (rows, variables)
        The missing values that ``rate`` applies to.
    not_recorded : float64 (variables,)
        The point that stands for "not recorded" in each variable.
    """

    chance: Floats
    rate: Floats
    gone: NDArray[np.int64]
    unknown: Mask
    not_recorded: Floats

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Hypotheses:
        """The hypotheses of some of the rows."""
        of_rows = self.chance[rows], self.rate[rows], self.gone[rows], self.unknown[rows]
        return Hypotheses(*of_rows, self.not_recorded)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of each variable in each row.

    Attributes
    ----------
    points : float64 (rows, variables)
        The value, or the code of the category; NaN where it is missing; where it is known not to be
        recorded, :data:`NOT_RECORDED` for a numeric variable and the code of the last level (None)
        for a categorical one.
    allowed : uint64 (rows, words) or None
        None where no one-hot group is partly observed. Otherwise, for each row, the categories that
        each categorical variable may have, as sets (:mod:`knothole.bits`) one after the other; the
        bit of unseen categories is never set. An observed value has one bit, a missing one all
        bits, and a partly observed group those that remain; it is NaN in ``points``.
    n_levels : int64 (variables,)
        Levels of each variable in ``allowed``, 0 where it is numeric.
    odds : float64 (rows, variables) or None
        How likely a missing value of a nullable variable is if nothing was recorded, relative to
        1 for every recorded value. At 1 (everywhere, if None) being missing says nothing; at 0
        the value was recorded, and lost.
    hypotheses : Hypotheses or None
        None where ``odds`` say it all. Otherwise the possible explanations for each row.
    """

    points: Floats
    allowed: Words | None = None
    n_levels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    odds: Floats | None = None
    hypotheses: Hypotheses | None = None

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Evidence:
        """The evidence of some of the rows."""
        allowed = None if self.allowed is None else self.allowed[rows]
        odds = None if self.odds is None else self.odds[rows]
        hypotheses = None if self.hypotheses is None else self.hypotheses[rows]
        return Evidence(self.points[rows], allowed, self.n_levels, odds, hypotheses)

    def odds_by_hypothesis(self) -> tuple[Floats, Floats]:
        """Probabilities of the hypotheses, (rows, hypotheses), and their odds (.., variables).

        Odds are infinite where a hypothesis implies that a variable is not recorded.
        """
        what = self.hypotheses
        own = np.ones_like(self.points) if self.odds is None else self.odds
        if what is None:
            return np.ones((len(own), 1)), own[:, None]
        odds = np.repeat(own[:, None], what.chance.shape[1], axis=1)
        unknown = what.unknown[:, None]
        with np.errstate(divide="ignore"):
            told = 1 / what.rate[:, :, None]
        of_columns = odds[:, :, : unknown.shape[2]]
        np.copyto(of_columns, told, where=unknown)
        row, number = np.nonzero(what.gone >= 0)
        odds[row, number, what.gone[row, number]] = 1.0
        return what.chance, odds

    def cases(self) -> tuple[NDArray[np.intp], Floats, Evidence]:
        """One row per row and hypothesis: the number of the row, the probability, the evidence."""
        what = self.hypotheses
        assert what is not None
        chance, of_all = self.odds_by_hypothesis()
        row, number = np.nonzero(chance > 0)
        odds, points = of_all[row, number], self.points[row]
        n = len(what.not_recorded)
        points[:, :n] = np.where(np.isinf(odds[:, :n]), what.not_recorded, points[:, :n])
        odds[np.isinf(odds)] = 1.0
        cases = replace(self, hypotheses=None)[row]
        return row, chance[row, number], replace(cases, points=points, odds=odds)

    def hidden(self, hide: Mask) -> Evidence:
        """The same rows with some variables (rows, variables) hidden.

        Examples
        --------
        >>> Evidence(np.array([[1.0, 2.0]])).hidden(np.array([[False, True]])).points.tolist()
        [[1.0, nan]]
        """
        points, odds, what = np.where(hide, np.nan, self.points), self.odds, self.hypotheses
        if odds is not None:
            odds = np.where(hide[:, : odds.shape[1]], 1.0, odds)
        if what is not None:  # not even the fact that it is missing is known
            what = replace(what, unknown=what.unknown & ~hide[:, : what.unknown.shape[1]])
        hidden = replace(self, points=points, odds=odds, hypotheses=what)
        if self.allowed is None:
            return hidden
        categorical = np.flatnonzero(self.n_levels)
        levels = self.n_levels[categorical]
        owner = np.repeat(np.arange(len(levels)), levels)
        _, anything = pack(levels, owner, np.arange(len(owner)) - starts(levels)[owner])
        words = np.repeat(categorical, set_words(levels))
        return replace(hidden, allowed=np.where(hide[:, words], anything, self.allowed))

    def parts(self, size: int | None = None) -> Iterator[tuple[NDArray[np.intp], Evidence]]:
        """The rows without sets, then those with a partly observed one-hot group.

        Both are divided further: rows without ``odds`` come before rows with them. Each part has at
        most ``size`` rows and comes with their numbers. So what is computed for a row does not
        depend on whether other rows have sets or odds.
        """
        if self.allowed is None and self.odds is None:
            step = size or max(1, len(self.points))
            for start in range(0, len(self.points), step):
                stop = min(start + step, len(self.points))
                yield np.arange(start, stop), self[start:stop]
            return
        partly, told = self.partly_observed(), np.zeros(len(self.points), dtype=np.bool_)
        for _, rows, _ in self.missing_with_odds():
            told[rows] = True
        for sets, odds in product((False, True), repeat=2):
            rows = np.flatnonzero((partly == sets) & (told == odds))
            step = size or max(1, len(rows))
            for start in range(0, len(rows), step):
                own = rows[start : start + step]
                part = self[own]
                allowed = part.allowed if sets else None
                yield own, replace(part, allowed=allowed, odds=part.odds if odds else None)

    def partly_observed(self) -> NDArray[np.bool_]:
        """Rows with a partly observed one-hot group, (rows,)."""
        out = np.zeros(len(self.points), dtype=np.bool_)
        for _, rows, _ in self.restricted():
            out[rows] = True
        return out

    def restricted(self) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.bool_]]]:
        """Partly observed one-hot groups: (variable, rows, allowed levels (rows, levels))."""
        if self.allowed is None:
            return
        offsets = word_offsets(self.n_levels)
        for v in np.flatnonzero(self.n_levels).tolist():
            rows = np.flatnonzero(np.isnan(self.points[:, v]))
            words = self.allowed[rows, offsets[v] : offsets[v + 1]]
            allowed = unpack(words, int(self.n_levels[v]))
            partly = ~allowed.all(axis=1)
            if partly.any():
                yield v, rows[partly], allowed[partly]

    def missing_with_odds(self) -> Iterator[tuple[int, NDArray[np.intp], Floats]]:
        """Variables whose missing values carry information: (variable, rows, odds (rows,))."""
        if self.odds is None:
            return
        says = np.isnan(self.points[:, : self.odds.shape[1]]) & (self.odds != 1)
        for v in np.flatnonzero(says.any(axis=0)).tolist():
            rows = np.flatnonzero(says[:, v])
            yield v, rows, self.odds[rows, v]


class Variables(NamedTuple):
    """The variables of a table as plain arrays for the kernels.

    ``members[start[v]:start[v + 1]]`` are the columns of variable ``v``. ``n_levels`` counts all
    levels: dummies, then the baseline if there is one, then "not recorded" if it is a state.
    """

    start: NDArray[np.int64]
    members: NDArray[np.int64]
    n_levels: NDArray[np.int64]
    one_hot: NDArray[np.bool_]
    nullable: NDArray[np.bool_]


def read_evidence(
    variables: Variables, described: Sequence[Variable], X: Floats, missing_mask: Mask | None = None
) -> Evidence:
    """Evidence of rows in which every NaN (or every entry marked in the mask) is missing."""
    if missing_mask is None:
        if not (variables.n_levels.any() or variables.nullable.any()):
            return Evidence(X)
        missing_mask = np.isnan(X)
    X, missing_mask = np.ascontiguousarray(X), np.ascontiguousarray(missing_mask)
    points = np.empty((len(X), len(variables.n_levels)))
    numbers, missing_numbers = X, missing_mask
    if variables.one_hot.any():
        first = variables.members[variables.start[:-1]]
        numbers, missing_numbers = X.take(first, axis=1), missing_mask.take(first, axis=1)
    may_be_nan = variables.nullable | (variables.n_levels > 0)
    row = kernels.read_numbers(numbers, missing_numbers, may_be_nan, points)
    if row >= 0:
        unexpected = np.isnan(numbers[row]) & ~missing_numbers[row] & ~may_be_nan
        raise _refusal(
            variables, described, kernels.NOT_NULLABLE, row, int(np.argmax(unexpected)), X
        )
    categorical = np.flatnonzero(variables.n_levels)
    if not len(categorical):
        return Evidence(points)
    problem, row, variable = kernels.read_categories(
        X, missing_mask, variables, categorical, points
    )
    if problem > kernels.RESTRICTED:
        raise _refusal(variables, described, problem, row, variable, X)
    if problem == kernels.POINTS:
        return Evidence(points)
    offsets = word_offsets(variables.n_levels)
    allowed = np.zeros((len(X), int(offsets[-1])), dtype=np.uint64)
    kernels.read_allowed(missing_mask, variables, categorical, offsets, points, allowed)
    return Evidence(points, allowed, variables.n_levels)


def decode_points(variables: Variables, points: Floats) -> Floats:
    """Rows of columns from points; see :meth:`knothole.columns.columns.Columns.decode`."""
    start, members, n_levels, one_hot, nullable = variables
    plain = np.array_equal(members, np.arange(len(n_levels)))
    if plain and not one_hot.any() and not nullable.any():
        return points  # each variable is a column
    X = np.empty((len(points), len(members)))
    for v, levels in enumerate(n_levels.tolist()):
        columns = members[start[v] : start[v + 1]]
        point = points[:, v : v + 1]
        state = levels - 1 if levels else NOT_RECORDED
        unknown = np.isnan(point) | (nullable[v] & (point == state))
        entries = point == np.arange(len(columns)) if one_hot[v] else point
        X[:, columns] = np.where(unknown, np.nan, entries)
    return X


def _refusal(
    variables: Variables,
    described: Sequence[Variable],
    problem: int,
    row: int,
    variable: int,
    X: Floats,
) -> InvalidInput:
    members = variables.members[variables.start[variable] : variables.start[variable + 1]]
    name = described[variable].name
    where = f"in row {row}, "
    if problem == kernels.NOT_NULLABLE:
        return InvalidInput(
            f"{where}variable {name!r} is said to be not recorded, but "
            f"'not recorded' is not one of the variable's states. Declare the column nullable "
            f"(Columns.with_nullable) before the density is fitted, or mark it as missing."
        )
    got = X[row, members].tolist()
    if problem == kernels.NOT_A_CODE:
        return InvalidInput(
            f"{where}column {name!r} must hold codes of its levels, whole numbers from 0 to "
            f"{variables.n_levels[variable] - variables.nullable[variable] - 1}; got {got[0]}. "
            f"Encode tables with Columns.matrix."
        )
    rule = {
        kernels.NOT_A_DUMMY: "dummies must be 0 or 1",
        kernels.TWO_ONES: "at most one dummy may be 1",
        kernels.NO_CATEGORY: "all dummies are 0, but a row of zeros never occurred in training",
        kernels.BOTH: "some dummies are observed, others are the model's own NaN",
    }[problem]
    return InvalidInput(
        f"{where}one-hot group {name!r} contradicts itself: {rule}; got {got}. Correct the "
        f"row, or set what is not known to NaN."
    )


# --- which NaN is missing ------------------------------------------------------------------------


def nowhere(variable: Variable, matrix: Floats) -> Mask:
    """Rows in which all columns of a variable are NaN, (rows,)."""
    return np.asarray(np.isnan(matrix[:, list(variable.columns)]).all(axis=1))


def missing_in(columns: Columns, matrix: Floats) -> Mask:
    """Every NaN except those of variables that are "not recorded", (rows, columns).

    Examples
    --------
    >>> from knothole.columns.columns import Column, Columns
    >>> columns = Columns((Column("a"), Column("b"))).with_nullable([False, True])
    >>> missing_in(columns, np.array([[np.nan, np.nan]])).tolist()
    [[True, False]]
    """
    missing_mask = np.isnan(matrix)
    for variable in columns.variables:
        members = list(variable.columns)
        if variable.nullable:
            missing_mask[:, members] &= ~nowhere(variable, matrix)[:, None]
    return missing_mask


def nullable_as_met(columns: Columns, matrix: Floats) -> Columns:
    """The columns, also nullable where a training matrix has NaN.

    Examples
    --------
    >>> from knothole.columns.columns import Column, Columns
    >>> met = nullable_as_met(Columns((Column("a"), Column("b"))), np.array([[1, np.nan], [2, 3]]))
    >>> [column.nullable for column in met]
    [False, True]
    """
    nullable = np.zeros(len(columns), dtype=np.bool_)
    for variable in columns.variables:
        nullable[list(variable.columns)] = variable.nullable or nowhere(variable, matrix).any()
    return columns.with_nullable(nullable)


def without_nullable(columns: Columns) -> Columns:
    """The columns, with none of them nullable."""
    return columns.with_nullable(np.zeros(len(columns), dtype=np.bool_))


def with_nan(matrix: Floats, sentinel: Floats, columns: Columns) -> Floats:
    """Rows with NaN in place of values that the model takes for NaN; not copied if there are none.

    Dummies of a one-hot group are unchanged: a zero there excludes a category, and
    :func:`knothole.trees.in_variables.in_variables` knows which way the model sends it.
    ``sentinel`` is an :class:`~knothole.trees.ensemble.Ensemble`'s.
    """
    low, high = sentinel.T
    applies = ~np.isnan(low)
    if not applies.any():
        return matrix
    applies[[column for group in columns.one_hot for column in group.columns]] = False
    return np.where(applies & (low <= matrix) & (high >= matrix), np.nan, matrix)


def checked_mask(mask: Any, shape: tuple[int, ...], name: str = "lost") -> Mask:
    """A caller's mask, which must have the shape of the rows."""
    given: Mask = np.asarray(mask)
    if given.shape != shape or given.dtype != np.bool_:
        raise InvalidInput(
            f"{name} must be booleans of shape {shape}; got {given.dtype} of shape {given.shape}."
        )
    return given


def mark_missing(
    matrix: Floats,
    sentinel: Floats,
    columns: Columns,
    native: bool,
    lost: Mask | None = None,
    absent: Sequence[int] = (),
) -> tuple[Floats, Mask | None]:
    """Rows as the model reads them (:func:`with_nan`), and a mask of their missing values.

    A mask of None means that every NaN is missing. Otherwise, entries outside the mask are known to
    be "not recorded": in nullable columns, numbers that the model takes for NaN and, if ``native``,
    every NaN that is neither ``lost`` (rows, columns) nor in a column ``absent`` from the table.

    Examples
    --------
    >>> from knothole.columns.columns import Column, Columns
    >>> columns = Columns((Column("a"), Column("b"))).with_nullable([False, True])
    >>> zero_is_nan = np.zeros((2, 2))
    >>> values, missing = mark_missing(np.array([[0.0, 0.0]]), zero_is_nan, columns, native=False)
    >>> values.tolist(), missing.tolist()
    ([[nan, nan]], [[True, False]])
    """
    values = with_nan(matrix, sentinel, columns)
    if not columns.nullable.any():
        return values, None
    marked = np.isnan(values)
    if native:
        marked = missing_in(columns, values)
        if lost is not None:
            marked |= lost
        marked[:, list(absent)] = True
    return values, np.asarray(marked & (np.isnan(matrix) | ~columns.nullable))


def checked_lost(lost: Any, matrix: Floats, names: Sequence[str]) -> Mask:
    """The caller's mask of lost values, all of which must be NaN in ``matrix``."""
    mask = checked_mask(lost, matrix.shape)
    if not np.isnan(matrix[mask]).all():
        row, column = np.argwhere(mask & ~np.isnan(matrix))[0].tolist()
        raise InvalidInput(
            f"lost: row {row} of {names[column]!r} is marked as lost, but it has a value; mark "
            f"missing values alone."
        )
    return mask

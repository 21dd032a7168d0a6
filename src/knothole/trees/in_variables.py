"""An ensemble over a density's variables, over other categories, or over fewer categories.

A density is over variables, a model over columns. A one-hot group is one categorical variable, so a
split on one of its dummies becomes a split on a set of its categories. Where a variable has the
state "not recorded", that state goes where the library sends NaN.

Levels that no split tells apart can be merged: of a million levels, trees name a few hundred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from knothole._core import regions as kernels
from knothole.arrays import Floats, Integers, Ints, Mask, Words
from knothole.bits import set_words, starts, unpack
from knothole.columns.columns import NOT_RECORDED, Column, Columns, Kind
from knothole.errors import ColumnMismatch
from knothole.trees.ensemble import Ensemble, left_codes, pack_sides


def in_variables(ensemble: Ensemble, columns: Columns) -> Ensemble:
    """The same trees over the variables of a table.

    Its rows are the points of :meth:`~knothole.columns.columns.Columns.evidence`, of rows that
    went through :func:`knothole.columns.evidence.with_nan`. They reach the same leaves as those
    rows do in ``ensemble``.

    Parameters
    ----------
    ensemble : Ensemble
        Over the columns of the table.
    columns : Columns
        The same columns as described from the training table
        (:meth:`~knothole.columns.columns.Columns.describe`): with one-hot groups, nullable columns,
        and possibly levels after the model's own, which go where the model sends categories that it
        has never seen.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.trees.read import read
    >>> X = np.eye(3)[[0, 1, 2, 0]]
    >>> ensemble = read(DecisionTreeRegressor(max_depth=1).fit(X, [0, 5, 5, 0]))
    >>> columns = ensemble.columns.describe(X, one_hot={"hue": [0, 1, 2]})
    >>> variables = in_variables(ensemble, columns)
    >>> variables.columns.names, [f"{word:03b}" for word in variables.sets]  # x0 goes right
    (('hue',), ['1110'])
    """
    _check_match(ensemble, columns)
    variables = columns.variables
    variable_of = np.empty(len(columns), dtype=np.int32)
    dummy_of = np.full(len(columns), -1, dtype=np.int32)
    for v, variable in enumerate(variables):
        variable_of[list(variable.columns)] = v
    for group in columns.one_hot:
        dummy_of[list(group.columns)] = np.arange(len(group.columns))

    inner = ensemble.feature >= 0
    dummy = np.where(inner, dummy_of[ensemble.feature], -1)
    feature = np.where(inner, variable_of[ensemble.feature], -1).astype(np.int32)
    has_set = (dummy >= 0) | (ensemble.set_start >= 0)
    splits = _SplitsOnColumns(
        n_levels=np.array([len(variable.levels) for variable in variables])[feature],
        nullable=np.array([variable.nullable for variable in variables], dtype=np.bool_)[feature],
        dummy=dummy,
        dummy_left=_zero_and_one_left(ensemble),
        missing_left=ensemble.missing_left,
        own_levels=ensemble.n_levels[ensemble.feature],
        own_start=ensemble.set_start,
        own_sets=ensemble.sets,
    )
    words = np.where(has_set, set_words(splits.n_levels), 0)
    set_start = np.where(has_set, starts(words), -1).astype(np.int32)
    sets = np.zeros(int(words.sum()), dtype=np.uint64)
    kernels.variable_sets(splits, np.flatnonzero(has_set), set_start, sets)
    return replace(
        ensemble,
        columns=columns.as_variables(),
        feature=feature,
        threshold=np.where(has_set, np.nan, ensemble.threshold),
        set_start=set_start,
        sets=sets,
        sentinel=_sentinel(ensemble, columns),
    )


def in_levels(ensemble: Ensemble, columns: Columns) -> Ensemble:
    """The same trees over the categories of other columns: in their order, and all of them.

    Categories that the model has never seen go where it sends unseen ones.
    """
    described = list(ensemble.columns)
    codes: dict[int, Ints] = {}
    for i, (column, wanted) in enumerate(zip(ensemble.columns, columns, strict=True)):
        if column.kind is wanted.kind is Kind.CATEGORICAL and column.levels != wanted.levels:
            known = {level: code for code, level in enumerate(column.levels)}
            described[i] = replace(column, levels=wanted.levels)
            codes[i] = np.array(
                [*(known.get(level, len(known)) for level in wanted.levels), len(known)]
            )
    return _recoded(ensemble, described, codes)


def _recoded(ensemble: Ensemble, columns: Sequence[Column], codes: Mapping[int, Ints]) -> Ensemble:
    """The same trees with other codes for levels.

    ``codes`` has, for some columns, the old code of each new code; the last is for an unseen level.
    """
    if not codes:
        return ensemble
    nodes = np.flatnonzero(ensemble.set_start >= 0)
    lefts = []
    for node, column in zip(nodes.tolist(), ensemble.feature[nodes].tolist(), strict=True):
        left = left_codes(ensemble, node)
        lefts.append(left[codes[column]] if column in codes else left)
    start, sets = pack_sides(lefts)
    set_start = ensemble.set_start.copy()
    set_start[nodes] = start
    described = replace(ensemble.columns, columns=tuple(columns))
    return replace(ensemble, columns=described, set_start=set_start, sets=sets)


# ---- levels that no split tells apart -----------------------------------------------------------

# With fewer levels, merging gains nothing.
MANY = 4096


@dataclass(frozen=True, eq=False)
class Merged:
    """An ensemble over merged levels: the codes are numbers of classes of levels."""

    ensemble: Ensemble
    classes: Mapping[int, Ints]  # by column, the class of each level and, last, of an unseen one

    @classmethod
    def of(cls, ensemble: Ensemble, but: Sequence[int] = (), least: int | None = None) -> Merged:
        """Merge the levels that every split treats as unseen, in columns with more than ``least``.

        Columns listed in ``but`` are left as they are.

        Examples
        --------
        >>> from sklearn.ensemble import HistGradientBoostingRegressor
        >>> from knothole.trees.read import read
        >>> X = np.repeat(np.arange(4.0), 30)[:, None]
        >>> model = HistGradientBoostingRegressor(max_iter=1, categorical_features=[0])
        >>> merged = Merged.of(read(model.fit(X, X[:, 0] == 2)), least=2)
        >>> merged.classes[0].tolist(), merged.ensemble.n_levels.tolist()  # 2, and the rest
        ([1, 1, 0, 1, 2], [2])
        """
        least = MANY if least is None else least
        many = {v: int(n) for v, n in enumerate(ensemble.n_levels) if n > least and v not in but}
        named = {v: _distinguished_levels(ensemble, v, n) for v, n in many.items()}
        for v, n in many.items():
            if ensemble.columns.nullable[v]:  # "not recorded" has a class of its own
                named[v] = np.union1d(named[v], [n - 1])
        classes = {v: np.full(n + 1, len(named[v])) for v, n in many.items()}
        for v, apart in named.items():
            classes[v][apart] = np.arange(len(apart))
            classes[v][-1] += len(apart) < many[v]
        columns = list(ensemble.columns)
        codes = {}
        for v, apart in named.items():
            n_classes = len(apart) + (len(apart) < many[v])
            columns[v] = replace(columns[v], levels=tuple(range(n_classes)))
            codes[v] = np.append(apart, np.full(n_classes + 1 - len(apart), many[v]))
        return cls(_recoded(ensemble, columns, codes), classes)

    def not_recorded(self) -> Ints:
        """The class of "not recorded" of each nullable categorical column, else -1."""
        ensemble = self.ensemble
        out = np.where(ensemble.columns.nullable, ensemble.n_levels - 1, -1).astype(np.int64)
        for v, classes in self.classes.items():
            out[v] = classes[-2] if ensemble.columns.nullable[v] else -1
        return out

    def points(self, points: Floats, axis: int = 1) -> Floats:
        """Points or draws with classes in place of levels; ``axis`` is that of the variables."""
        points = points.copy() if self.classes else points
        for v, classes in self.classes.items():
            values = np.moveaxis(points, axis, 0)[v]
            known = (values >= 0) & (values < len(classes))  # others may hold anything
            values[known] = classes[values[known].astype(np.int64)]
        return points


def _distinguished_levels(ensemble: Ensemble, v: int, n: int) -> Ints:
    """Levels of a column that some split sends another way than an unseen category."""
    differs = np.zeros(set_words(n), dtype=np.uint64)
    for start in ensemble.set_start[ensemble.feature == v].tolist():
        words = ensemble.sets[start : start + len(differs)]
        differs |= ~words if words[-1] >> np.uint64(n % 64) & np.uint64(1) else words
    return np.flatnonzero(unpack(differs[None], n)[0])


# ---- in_variables, step by step -----------------------------------------------------------------


def _check_match(ensemble: Ensemble, columns: Columns) -> None:
    if len(columns) != len(ensemble.columns):
        raise ColumnMismatch(
            f"the description has {len(columns)} columns, but the model {len(ensemble.columns)}."
        )
    if ensemble.columns.named and columns.named:
        for column, described in zip(ensemble.columns, columns, strict=True):
            if column.name != described.name:
                raise ColumnMismatch(
                    f"column {described.name!r} stands where the model has {column.name!r}. Use "
                    f"ensemble.columns.describe(table)."
                )
    split = np.isin(np.arange(len(columns)), ensemble.feature)
    wrong = np.flatnonzero(split & (columns.auxiliary | ensemble.columns.auxiliary)).tolist()
    if wrong:
        raise ColumnMismatch(
            f"column {columns[wrong[0]].name!r} is said to be auxiliary, but the model splits on "
            f"it: it is a feature."
        )
    in_group = {column for group in columns.one_hot for column in group.columns}
    numeric_split = np.zeros(len(columns), dtype=np.bool_)
    numeric_split[ensemble.feature[(ensemble.feature >= 0) & (ensemble.set_start < 0)]] = True
    for i, (column, described) in enumerate(zip(ensemble.columns, columns, strict=True)):
        is_categorical = described.kind is Kind.CATEGORICAL
        if (
            described.levels[: len(column.levels)] != column.levels
            or is_categorical != (column.kind is Kind.CATEGORICAL)
            or (is_categorical and (i in in_group or numeric_split[i]))
        ):
            raise ColumnMismatch(
                f"column {described.name!r} is described as {described.kind} with levels "
                f"{described.levels}, which does not suit the model: there it is {column.kind} "
                f"with levels {column.levels}. Use ensemble.columns.describe(table)."
            )


def _zero_and_one_left(ensemble: Ensemble) -> Mask:
    """Whether the values 0 and 1 go left at each node, (nodes, 2); as NaN does if taken for NaN."""
    low, high = ensemble.sentinel[ensemble.feature].T[..., None]
    x = np.array([0.0, 1.0])
    missing = (low <= x) & (x <= high)
    left = np.where(missing, ensemble.missing_left[:, None], x < ensemble.threshold[:, None])
    return np.ascontiguousarray(left)


def _sentinel(ensemble: Ensemble, columns: Columns) -> Floats:
    """What counts as NaN, by variable: "not recorded", or the column's own sentinel."""
    sentinel = np.full((len(columns.variables), 2), np.nan)
    one_hot = {group.columns for group in columns.one_hot}
    for v, variable in enumerate(columns.variables):
        if variable.columns in one_hot:
            continue
        sentinel[v] = ensemble.sentinel[variable.columns[0]]
        if variable.nullable and variable.kind is not Kind.CATEGORICAL:
            sentinel[v] = NOT_RECORDED
    return sentinel


class _SplitsOnColumns(NamedTuple):
    """Which categories go left at each node, by the codes of its variable and of its column."""

    n_levels: Ints
    nullable: Mask
    dummy: Integers
    dummy_left: Mask
    missing_left: Mask
    own_levels: Integers
    own_start: Integers
    own_sets: Words

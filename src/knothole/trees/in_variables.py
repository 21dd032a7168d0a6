"""From columns to variables: an ensemble whose splits are on what a density is over.

A one-hot block is one categorical variable, and a split on one of its dummies is a split on a set
of its categories. "Not recorded", where a variable has it as a state, goes where the library
sends NaN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.compiled.bits import has, put
from knothole.compiled.policy import njit
from knothole.errors import ColumnMismatch
from knothole.tables.columns import NOT_RECORDED, Columns, Kind
from knothole.trees.ensemble import Ensemble


def in_variables(ensemble: Ensemble, columns: Columns) -> Ensemble:
    """The same trees over the variables of a table.

    Its rows are points (:meth:`~knothole.tables.columns.Columns.evidence`) of rows that went
    through :func:`knothole.tables.holes.with_nan`; their leaves are those of the rows in
    ``ensemble``.

    Parameters
    ----------
    ensemble : Ensemble
        Over the columns of the table.
    columns : Columns
        The same columns as the training table shows them
        (:meth:`~knothole.tables.columns.Columns.describe`): with blocks, nullable columns, and
        perhaps levels after the model's own, which go where the model sends categories it has never
        seen.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeRegressor
    >>> from knothole.trees.read import read
    >>> from knothole.trees.regions import regions
    >>> X = np.eye(3)[[0, 1, 2, 0]]
    >>> ensemble = read(DecisionTreeRegressor(max_depth=1).fit(X, [0, 5, 5, 0]))
    >>> columns = ensemble.columns.describe(X, blocks={"hue": [0, 1, 2]})
    >>> regions(in_variables(ensemble, columns)).describe(0)
    {'hue': "one of 'x1', 'x2', unseen"}
    """
    _check_match(ensemble, columns)
    variables = columns.variables
    variable_of = np.empty(len(columns), dtype=np.int32)
    dummy_of = np.full(len(columns), -1, dtype=np.int32)
    for v, variable in enumerate(variables):
        variable_of[list(variable.columns)] = v
    for block in columns.blocks:
        dummy_of[list(block.columns)] = np.arange(len(block.columns))

    inner = ensemble.feature >= 0
    dummy = np.where(inner, dummy_of[ensemble.feature], -1)
    feature = np.where(inner, variable_of[ensemble.feature], -1).astype(np.int32)
    has_set = (dummy >= 0) | (ensemble.set_start >= 0)
    n_levels = np.array([len(variable.levels) for variable in variables], dtype=np.int64)
    nullable = np.array([variable.nullable for variable in variables], dtype=np.bool_)
    words = np.where(has_set, n_levels[feature] // 64 + 1, 0)
    set_start = np.where(has_set, np.cumsum(words) - words, -1).astype(np.int32)
    sets = np.zeros(int(words.sum()), dtype=np.uint64)
    old = (ensemble.n_levels[ensemble.feature], ensemble.set_start, ensemble.sets)
    fill_sets(
        np.flatnonzero(has_set), n_levels[feature], nullable[feature], dummy,
        _zero_and_one_left(ensemble), ensemble.missing_left, old, set_start, sets,
    )  # fmt: skip
    return replace(
        ensemble,
        columns=columns.as_variables(),
        feature=feature,
        cut=np.where(has_set, np.nan, ensemble.cut),
        set_start=set_start,
        sets=sets,
        sentinel=_sentinel(ensemble, columns),
    )


def _check_match(ensemble: Ensemble, columns: Columns) -> None:
    if len(columns) != len(ensemble.columns):
        raise ColumnMismatch(
            f"the description has {len(columns)} columns, but the model {len(ensemble.columns)}."
        )
    in_block = {column for block in columns.blocks for column in block.columns}
    numeric_split = np.zeros(len(columns), dtype=np.bool_)
    numeric_split[ensemble.feature[(ensemble.feature >= 0) & (ensemble.set_start < 0)]] = True
    for i, (own, described) in enumerate(zip(ensemble.columns, columns, strict=True)):
        is_categorical = described.kind is Kind.CATEGORICAL
        if (
            described.levels[: len(own.levels)] != own.levels
            or is_categorical != (own.kind is Kind.CATEGORICAL)
            or (is_categorical and (i in in_block or numeric_split[i]))
        ):
            raise ColumnMismatch(
                f"column {described.name!r} is described as {described.kind} with levels "
                f"{described.levels}, which does not suit the model: there it is {own.kind} with "
                f"levels {own.levels}. Use ensemble.columns.describe(table)."
            )


def _zero_and_one_left(ensemble: Ensemble) -> NDArray[np.bool_]:
    """Where the values 0 and 1 go at each numeric split, (nodes, 2): NaN's way if taken for it."""
    low, high = ensemble.sentinel[ensemble.feature].T
    sides = [
        np.where((low <= x) & (x <= high), ensemble.missing_left, x < ensemble.cut) for x in (0, 1)
    ]
    return np.stack(sides, axis=1)


def _sentinel(ensemble: Ensemble, columns: Columns) -> Floats:
    """What counts as NaN: "not recorded", and what did before where it is no dummy."""
    sentinel = np.full((len(columns.variables), 2), np.nan)
    blocks = {block.columns for block in columns.blocks}
    for v, variable in enumerate(columns.variables):
        if variable.columns in blocks:
            continue
        sentinel[v] = ensemble.sentinel[variable.columns[0]]
        if variable.nullable and variable.kind is not Kind.CATEGORICAL:
            sentinel[v] = NOT_RECORDED
    return sentinel


@njit
def fill_sets(splits, n_levels, nullable, dummy, sides, missing_left, old, start, sets):  # type: ignore[no-untyped-def]
    """Which categories of its variable go left at each split; the bit of the unseen is last."""
    old_levels, old_start, old_sets = old
    for n in splits:
        for code in range(n_levels[n] + 1):
            if nullable[n] and code == n_levels[n] - 1:
                left = missing_left[n]
            elif dummy[n] >= 0:
                left = sides[n, 1 if code == dummy[n] else 0]
            else:
                left = has(old_sets, old_start[n], min(code, old_levels[n]))
            if left:
                put(sets, start[n], code)

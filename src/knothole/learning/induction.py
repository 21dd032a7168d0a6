"""Weighted completions: any learner can minimise its own expected loss on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from knothole.arrays import Floats
from knothole.densities.base import Density
from knothole.errors import InvalidInput
from knothole.tables.columns import Columns
from knothole.tables.encoding import row_weights


@dataclass(frozen=True, eq=False)
class Expanded:
    """Rows with every hole filled, and what each of them weighs.

    Attributes
    ----------
    X : DataFrame, or float64 array where X was an array
        Rows without a hole once, the others ``draws`` times.
    y : array or None
        Targets of these rows.
    weight : float64 array
        Sample weights: the completions of a row share its weight.
    row : int array
        The row of X that each came from.
    """

    X: Any
    y: Any
    weight: Floats
    row: NDArray[np.intp]


def expand(
    density: Density,
    X: Any,
    y: Any = None,
    draws: int = 20,
    *,
    sample_weight: Any = None,
    holes: NDArray[np.bool_] | None = None,
    condition_on_target: bool = True,
    seed: int = 0,
) -> Expanded:
    """Complete rows from p(x_m | x_o), or p(x_m | x_o, y) where the density has a target.

    A learner that takes sample weights, whatever its loss, minimises the expected loss when it is
    trained on the result.

    Parameters
    ----------
    density : Density
        Fitted; with ``target=y`` to condition on y.
    X : table
    y : array (rows,), optional
    draws : int
        Completions of each row that has holes.
    sample_weight : array (rows,), optional
    holes : bool array (rows, columns), optional
        Which NaN are holes; by default every NaN of a column that is not nullable.
    condition_on_target : bool
        Whether to use y where the density has a target.
    seed : int
        Of the draws.

    Examples
    --------
    >>> from knothole.densities.mixture.density import Factorized
    >>> X = np.array([[0.0, 1.0], [1.0, np.nan], [0.5, 2.0]])
    >>> full = expand(Factorized(random_state=0).fit(X), X, [1, 2, 3], draws=2)
    >>> full.row.tolist(), full.weight.tolist(), full.y.tolist()
    ([0, 1, 1, 2], [1.0, 0.5, 0.5, 1.0], [1, 2, 2, 3])
    """
    if draws < 1 or int(draws) != draws:
        raise InvalidInput(f"draws must be a whole number from 1; got {draws!r}.")
    target = y if condition_on_target and density.target_ else None
    evidence = density.evidence(X, holes, target)
    n_rows = len(evidence.points)
    weight = row_weights(sample_weight, n_rows)
    if y is not None and len(y) != n_rows:
        raise InvalidInput(f"X has {n_rows} rows; y must have as many, but has {len(y)}.")
    columns = density.columns_
    n_variables = len(columns.variables)
    has_hole = np.asarray(np.isnan(evidence.points[:, :n_variables]).any(axis=1))
    row = np.repeat(np.arange(n_rows), np.where(has_hole, draws, 1))
    points = evidence.points[row]
    open_rows = np.flatnonzero(has_hole)
    drawn = density.complete_points(evidence[open_rows], int(draws), seed)
    points[np.isin(row, open_rows)] = drawn.reshape(-1, points.shape[1])
    matrix = columns.decode(points[:, :n_variables])
    share = (weight / np.where(has_hole, draws, 1))[row]
    plain = isinstance(X, np.ndarray) and not any(column.levels for column in columns)
    filled = matrix if plain else _table(columns, matrix)
    return Expanded(filled, None if y is None else np.asarray(y)[row], share, row)


def _table(columns: Columns, matrix: Floats) -> pd.DataFrame:
    """Codes back to the levels that they stand for."""
    parts: dict[str, Any] = {}
    for name, column, values in zip(columns.names, columns, matrix.T, strict=True):
        if column.levels:
            levels = [level for level in column.levels if level is not None]
            codes = np.where(np.isnan(values), -1, values).astype(np.int64)
            parts[name] = pd.Categorical.from_codes(codes, categories=pd.Index(levels))
        else:
            parts[name] = values
    return pd.DataFrame(parts)
